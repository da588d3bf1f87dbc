"""Run a training in a child process, and sample processor time and memory of its servers and workers."""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from glovewire.common.cli.config_file import configured
from glovewire.common.runtime.memory import memory_bytes
from glovewire.common.runtime.procfs import command_line, cpu_seconds, descendants
from glovewire.common.storage import run_folder

from ..launch.config import LocalConfig
from ..launch.processes import Child, Children

CPU_SAMPLE_S = 0.02
MEMORY_SAMPLE_S = 0.25


@dataclass
class ProcessUsage:
    """A process: its role, `cpu` seconds used at each of `times`, and its peak memory (PSS and private)."""

    role: str
    times: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    pss_bytes: int = 0
    private_bytes: int = 0


@dataclass
class RunOutcome:
    """The outcome of a run; `facts` is the output of `train --json`, None if the run was stopped early."""

    facts: dict[str, Any] | None
    processes: list[ProcessUsage]
    ended: float

    def cpu_seconds(self, role: str) -> float:
        """Return the processor seconds of a role during training, interpolated between samples.

        Leaves out the start and end of its processes.
        """
        times = self.ended - (self.facts["seconds"] if self.facts else 0.0), self.ended
        return sum(float(np.ptp(np.interp(times, p.times, p.cpu))) for p in self.processes if p.role == role)


def run_measured(run: LocalConfig, logs: Path, seconds_limit: float | None = None) -> RunOutcome:
    """Train to the end, or for `seconds_limit` after the first loss; raise ProcessDied with the run's error."""
    name, metrics, usages = run.out.name, run.out / run_folder.METRICS, dict[int, ProcessUsage]()
    began: float | None = None
    measured = 0.0
    with Children(logs) as children:
        child = children.start(name, [*configured("train", run, logs / f"{name}.toml"), "--json"])
        while child.running:
            now = time.time()
            with_memory = now - measured >= MEMORY_SAMPLE_S
            measured = now if with_memory else measured
            _sample(child, usages, now, memory=with_memory)
            began = now if began is None and metrics.exists() and metrics.stat().st_size else began
            if seconds_limit is not None and began is not None and now - began > seconds_limit:
                child.process.terminate()
                child.process.wait()
                return RunOutcome(None, list(usages.values()), now)
            time.sleep(CPU_SAMPLE_S)
    return RunOutcome(child.facts(), list(usages.values()), metrics.stat().st_mtime)


def _sample(child: Child, usages: dict[int, ProcessUsage], now: float, *, memory: bool) -> None:
    for pid in descendants(child.process.pid):
        if pid not in usages:
            role = _role(command_line(pid))
            if not role:
                continue
            usages[pid] = ProcessUsage(role)
        usage, cpu = usages[pid], cpu_seconds(pid)
        if cpu:
            usage.times.append(now)
            usage.cpu.append(cpu)
        if memory:
            pss, private = memory_bytes(pid)
            usage.pss_bytes, usage.private_bytes = max(usage.pss_bytes, pss), max(usage.private_bytes, private)


def _role(words: list[str]) -> str:
    """Return `server`, `worker` (also for processes of stores without a server), or "" for other processes."""
    after = words[words.index("glovewire") + 1 :] if "glovewire" in words else []
    if after and after[0] in ("server", "worker"):
        return after[0]
    return "worker" if any("spawn_main" in word for word in words) else ""
