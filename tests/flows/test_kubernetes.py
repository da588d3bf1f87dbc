"""The Kubernetes manifest as processes: its commands run here, each pod with folders and ports of its own."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import yaml
from processes import PROGRAM, Flow, Running, free_port, until
from source import ROOT

EPOCHS = 80


class Pods:
    """What Kubernetes does with the manifest, in so far as the commands notice."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        documents = yaml.safe_load_all((ROOT / "examples" / "kubernetes" / "glovewire.yaml").read_text())
        kinds = {each["kind"]: each["spec"] for each in documents}
        self.shards, self.job = (kinds[kind]["template"]["spec"] for kind in ("StatefulSet", "Job"))
        self.counts = kinds["StatefulSet"]["replicas"], kinds["Job"]["completions"]
        self.ports = {(pod, port): free_port() for pod in range(self.counts[0]) for port in (5555, 5556, 5557)}
        programs = flow.path("bin")
        programs.mkdir()
        (programs / "glovewire").write_text(f'#!/bin/sh\nexec {" ".join(PROGRAM)} "$@"\n')
        (programs / "glovewire").chmod(0o755)

    def start(self, pod: str, spec: dict[str, Any], **environment: str) -> Running:
        """Run a pod's containers: the first ones to their end; its main one, which is returned, comes after them."""
        folder = self.flow.path(pod)
        folder.mkdir(exist_ok=True)
        for volume in ("own", "cache", "keys"):
            (folder / volume).mkdir(exist_ok=True)
        running = None
        for container in [*spec["initContainers"], spec["containers"][0]]:
            if running is not None:
                running.ends(0)
            words = container.get("command") or ["glovewire", *container["args"]]
            values = {entry["name"]: self._here(entry["value"], pod) for entry in container.get("env", ())}
            values |= {"HOSTNAME": pod, "PATH": f"{self.flow.path('bin')}:{os.environ['PATH']}", **environment}
            running = self.flow.start(*(self._here(word, pod) for word in words[1:]), program=words[:1], **values)
        assert running is not None
        return running

    def _here(self, text: str, pod: str) -> str:
        """What a container's text means on this machine."""
        secret = self.flow.path("secret" if pod.startswith("glovewire-") else "worker-secret")
        text = text.replace("/secret", str(secret))
        text = re.sub(r"(?<![\w/.])/(own|cache|keys)", lambda found: str(self.flow.path(pod, found[1])), text)
        text = text.replace("tcp://0.0.0.0:", f"tcp://{pod}.glovewire:")
        return re.sub(
            r"glovewire-(\d)\.glovewire:(\d+)",
            lambda found: f"127.0.0.1:{self.ports[int(found[1]), int(found[2])]}",
            text,
        )

    def shard(self, number: int) -> Running:
        corpus, size = {"CORPUS": str(self.flow.path("text.txt"))}, {"GLOVEWIRE_SERVER_DIM": "8"}
        return self.start(f"glovewire-{number}", self.shards, **corpus, **size, GLOVEWIRE_SERVER_EPOCHS=str(EPOCHS))

    def worker(self, number: int) -> Running:
        return self.start(
            f"worker-{number}", self.job, GLOVEWIRE_WORKER_LATENCY="3ms", GLOVEWIRE_WORKER_NAME=f"w{number}"
        )


def test_pods_train_though_a_shard_loses_its_volume(tmp_path: Path) -> None:
    lines = np.random.default_rng(0).zipf(1.5, (1000, 20)) % 300
    (tmp_path / "text.txt").write_text("".join(" ".join(f"w{n}" for n in line) + "\n" for line in lines))
    with Flow(tmp_path) as flow:
        flow.run("keys", "secret")
        flow.path("worker-secret").mkdir()
        for name in ("server.pub", "worker.key"):
            shutil.copy(flow.path("secret", name), flow.path("worker-secret", name))
        pods = Pods(flow)
        shards = [pods.shard(number) for number in range(pods.counts[0])]
        workers = [pods.worker(number) for number in range(pods.counts[1])]
        kept = flow.path("glovewire-0", "own", "run", "checkpoints")
        until(
            lambda: any(part.with_suffix(".shard-0-of-2").exists() for part in kept.glob("round-*.shard-1-of-2")),
            lambda: f"checkpoints are copied; {shards[0].story}",
        )
        for process in psutil.Process(shards[1].pid).children():
            process.kill()
        shards[1].ends(128 + signal.SIGKILL)
        shutil.rmtree(flow.path("glovewire-1", "own"))
        shards[1] = pods.shard(1)
        for pod in (*workers, *shards):
            pod.ends(0)
        _, *lives = (json.loads(file.read_text()) for file in sorted(kept.glob(".generation-*")))
        began_from = [life["label"] for life in lives if not life["ended"]]
        assert began_from, "it was over too soon to show anything"
        assert all(began_from), f"the shards began anew and not from a checkpoint: {began_from}"
        folder = flow.path("glovewire-0", "own")
        flow.run(
            "train", folder / "dataset", "--out", "calm", "--workers", 1, "--epochs", EPOCHS, "--dim", 8, "--quiet"
        )
        assert (folder / "run" / "vectors.npy").read_bytes() == flow.vectors("calm")
