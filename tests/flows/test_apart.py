"""Shards that share no folder: each has its own, with copies of what the others write, and may lose it."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from handmade import random_dataset
from processes import LASTING, Flow, Running, free_port, until

SHARDS, EPOCHS = 3, 40


@pytest.fixture
def flow(tmp_path: Path) -> Iterator[Flow]:
    random_dataset(tmp_path / "data", size=40)
    with Flow(tmp_path) as flow:
        flow.run("keys", "keys")
        yield flow


class Cluster:
    """Shards with folders `run-K`, and workers without a dataset."""

    def __init__(self, flow: Flow, *words: str | float) -> None:
        self.flow, self.words = flow, words
        self.ports = [(free_port(), free_port()) for _ in range(SHARDS)]
        self.shards = [self.shard(number) for number in range(SHARDS)]

    def shard(self, number: int) -> Running:
        """Start a shard, for the first time or again."""
        peers = [word for _, port in self.ports for word in ("--peer", f"tcp://127.0.0.1:{port}")]
        data = ["data"] if number == 0 else ["--cache", f"cache-{number}"]
        bind = f"tcp://127.0.0.1:{self.ports[number][0]}"
        return self.flow.start(
            "server", *data, "--out", f"run-{number}", "--shard", f"{number}/{SHARDS}", "--bind", bind,
            "--publish", "tcp://127.0.0.1:0", "--dim", 8, "--epochs", EPOCHS, "--checkpoint-every", 1, "--recover",
            "--keys", "keys", "--workers", 2, *peers, *self.words,
        )  # fmt: skip

    def workers(self) -> list[Running]:
        """Start two workers that train slowly enough for something to happen."""
        where = [word for port, _ in self.ports for word in ("--server", f"tcp://127.0.0.1:{port}")]
        return [
            self.flow.start(
                "worker", *where, "--keys", "keys", "--name", name, "--cache", "cache", "--timeout", 120, *LASTING
            )
            for name in ("anna", "bert")
        ]

    def lose(self, number: int) -> None:
        """Kill a shard, remove its folder, and start it again."""
        self.shards[number].signal(signal.SIGKILL)
        self.shards[number].ends(-signal.SIGKILL)
        shutil.rmtree(self.flow.path(f"run-{number}"))
        self.shards[number] = self.shard(number)

    def has_copies(self) -> bool:
        """Whether every shard has a checkpoint of all."""
        folders = [self.flow.path(f"run-{number}", "checkpoints") for number in range(SHARDS)]
        return all(len(list(folder.glob(f"round-*-of-{SHARDS}"))) >= 2 * SHARDS for folder in folders)


def have_joined(workers: list[Running], times: int) -> bool:
    """Whether every worker has joined so many generations of the run."""
    return all(worker.err.count("event=joined") >= times for worker in workers)


def test_what_is_trained_apart_is_the_same_though_disks_are_lost(flow: Flow) -> None:
    cluster = Cluster(flow)
    workers = cluster.workers()
    for times, number in enumerate((1, 0), 1):
        until(partial(have_joined, workers, times), "training goes on")
        until(cluster.has_copies, "checkpoints are copied")
        cluster.lose(number)
    for process in (*cluster.shards, *workers):
        process.ends(0)
    assert have_joined(workers, 3), "it was over too soon to show anything"
    flow.train("calm", "--workers", 1, "--epochs", EPOCHS).ends(0)
    assert flow.vectors("run-0") == flow.vectors("calm")
