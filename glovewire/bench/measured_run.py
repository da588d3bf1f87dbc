"""One training as a process of its own, watched from outside: how it ended, and what each role took of the machine.

Benchmarks and studies are made of such trials. Nothing here knows what is compared with what.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Any

from glovewire.common.cli.config_file import configured
from glovewire.common.runtime.memory import memory_bytes
from glovewire.common.runtime.procfs import command_line, cpu_seconds, descendants
from glovewire.common.storage import run_folder as runs

from ..launch.config import LocalConfig
from ..launch.processes import Child, Children

CPU_EVERY_S = 0.02
MEMORY_EVERY_S = 0.25


@dataclass
class Usage:
    """One process: its role, its processor time by the clock, and the most memory it has held."""

    role: str
    times: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    pss_bytes: int = 0
    private_bytes: int = 0

    def between(self, begin: float, end: float) -> float:
        """Processor seconds from one moment to another."""
        return self._at(end) - self._at(begin)

    def _at(self, moment: float) -> float:
        after = bisect_left(self.times, moment)
        if after == 0:
            return self.cpu[0]
        if after == len(self.times):
            return self.cpu[-1]
        share = (moment - self.times[after - 1]) / (self.times[after] - self.times[after - 1])
        return self.cpu[after - 1] + share * (self.cpu[after] - self.cpu[after - 1])


@dataclass
class Outcome:
    """How a trial went; `facts` are those of `train --json`, None when it was stopped before its end."""

    facts: dict[str, Any] | None
    processes: list[Usage]
    ended: float

    def cpu_seconds(self, role: str) -> float:
        """Processor seconds of a role while training went on, start and end of the processes left out."""
        seconds = self.facts["seconds"] if self.facts else 0.0
        return sum(p.between(self.ended - seconds, self.ended) for p in self.processes if p.role == role)

    def peak_bytes(self, role: str) -> tuple[int, int]:
        """The most (PSS, private memory) that one process of a role has held."""
        held = [(p.pss_bytes, p.private_bytes) for p in self.processes if p.role == role]
        return max((pss for pss, _ in held), default=0), max((private for _, private in held), default=0)


def carry_out(config: LocalConfig, children: Children, name: str, seconds_limit: float | None = None) -> Outcome:
    """Train to the end, or until `seconds_limit` after the first loss; raises ProcessDied in the run's own words."""
    child = children.start(name, [*configured("train", config, children.logs / f"{name}.toml"), "--json"])
    metrics, found = config.out / runs.METRICS, dict[int, Usage]()
    began: float | None = None
    measured = 0.0
    while child.running:
        now = time.time()
        look = now - measured >= MEMORY_EVERY_S
        measured = now if look else measured
        _sample(child, found, now, memory=look)
        began = now if began is None and metrics.exists() and metrics.stat().st_size else began
        if seconds_limit is not None and began is not None and now - began > seconds_limit:
            child.process.terminate()
            child.process.wait()
            return Outcome(None, list(found.values()), now)
        time.sleep(CPU_EVERY_S)
    if child.failed:
        raise child.died()
    return Outcome(child.facts(), list(found.values()), metrics.stat().st_mtime)


def _sample(child: Child, found: dict[int, Usage], now: float, *, memory: bool) -> None:
    for pid in descendants(child.process.pid):
        if pid not in found:
            role = _role(command_line(pid))
            if not role:
                continue
            found[pid] = Usage(role)
        usage, cpu = found[pid], cpu_seconds(pid)
        if cpu:
            usage.times.append(now)
            usage.cpu.append(cpu)
        if memory:
            pss, private = memory_bytes(pid)
            usage.pss_bytes, usage.private_bytes = max(usage.pss_bytes, pss), max(usage.private_bytes, private)


def _role(words: list[str]) -> str:
    """`server` or `worker`; processes of the stores without a server are workers; the rest has no role."""
    after = words[words.index("glovewire") + 1 :] if "glovewire" in words else []
    if after and after[0] in ("server", "worker"):
        return after[0]
    return "worker" if any("spawn_main" in word for word in words) else ""
