"""The processes of a small training in which a fault is injected: who takes part, and who is behind a relay.

They are real processes, forked from a warm one (`forked.py`). This module starts them and knows their addresses;
`matrix.py` injects the faults and checks the outcome.
"""

from __future__ import annotations

import enum
import signal
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forked import Forked
from processes import free_port, until
from relay import Fault, MessageRelay, Relay, StreamRelay, TcpRelay

SHARDS, WORKERS = 2, 2
LEASE_S = 3.0
SILENCE_S, MONITOR_SILENCE_S = 20.0, 60.0
SHORT_SILENCE_S = 8.0
"""The `--timeout` of a monitor that may miss the end of the run."""
CHECKPOINT_EVERY = 10
SLOW = (Fault.DELAY, Fault.REORDER, Fault.DROP)
ON_MESSAGES = (*SLOW, Fault.DUPLICATE)


class Role(enum.Enum):
    """The victim: shard 1, worker w0 or the monitor, or its connections."""

    SHARD = "server shard"
    WORKER = "worker"
    MONITOR = "monitor"


MODES: dict[str, list[str]] = {
    "blocks/exclusive": [],
    "blocks/async": ["--consistency", "async"],
    "minibatch/async": ["--schedule", "minibatch", "--lr", "0.05"],
    "minibatch/sync": ["--schedule", "minibatch", "--consistency", "sync", "--lr", "0.05"],
}


@dataclass(frozen=True)
class Cell:
    """What is played: `rate` is the share of messages that are hit, `epochs` the length of the training if not 0."""

    fault: Fault
    role: Role
    mode: str
    rate: float = 0.2
    seed: int = 1
    epochs: int = 0

    @property
    def length(self) -> int:
        """Epochs of the training: enough that the fault comes in the middle, few if messages are slow."""
        if self.epochs or (self.fault in SLOW and self.role is not Role.MONITOR):
            return self.epochs or 4
        return 300 if self.mode.startswith("blocks") else 100

    @property
    def deadline_s(self) -> float:
        """Seconds within which the cell has to be over, on an otherwise idle machine."""
        return 120.0 if self.fault in (Fault.DROP, Fault.REORDER) else 60.0

    @property
    def possible(self) -> bool:
        """Whether the fault can hit the role: workers and monitors write no checkpoints."""
        return self.fault is not Fault.DISK or self.role is Role.SHARD

    @property
    def end_unheard(self) -> bool:
        """Whether the run may end without the monitor hearing of it."""
        return self.role is Role.MONITOR and self.fault in (Fault.CUT, Fault.DROP)


@dataclass
class Stage:
    """The processes of one cell, in `folder`, which has `data`; `relays` are in front of the victim."""

    folder: Path
    cell: Cell
    out: str
    stack: ExitStack
    all: list[Forked] = field(default_factory=list)
    relays: list[Relay] = field(default_factory=list)
    ports: list[int] = field(default_factory=lambda: [free_port() for _ in range(SHARDS)])
    streams: list[int] = field(default_factory=lambda: [free_port() for _ in range(SHARDS)])

    def start(self) -> None:
        """Start all processes. Shard 1 is stopped until all workers have joined shard 0, so none trains before that."""
        self.servers = [self.server(shard) for shard in range(SHARDS)]
        self.until(lambda: all(server.out for server in self.servers), "every shard is ready")
        self.monitor = self.start_monitor()
        self.until(
            lambda: all(f'"shard": {shard}' in self._watched for shard in range(SHARDS)), "the monitor hears all"
        )
        self.servers[1].signal(signal.SIGSTOP)
        self.workers = [self.worker(rank) for rank in range(WORKERS)]
        for rank in range(WORKERS):
            self.until(lambda rank=rank: f"event=joined subject=w{rank}" in self.servers[0].err, f"w{rank} has joined")
        self.servers[1].signal(signal.SIGCONT)

    def until(self, happened: Callable[[], Any], what: str) -> None:
        """Wait until `happened()` is true; fail at once if a process ends before, with its error."""

        def ended() -> list[Forked]:
            return [one for one in self.all if one.status is not None]

        until(lambda: happened() or ended(), what)
        assert not ended(), "; ".join(f"before {what}: {one.name}: {one.last_words}" for one in ended())

    def server(self, shard: int) -> Forked:
        lease = LEASE_S if self.cell.fault in (Fault.KILL, Fault.STOP) else 30.0
        command = [
            "server", "data", "--out", self.out, "--shard", f"{shard}/{SHARDS}", "--recover", "--dim", 8, "--epochs",
            self.cell.length, "--bind", here(self.ports[shard]), "--publish", here(self.streams[shard]), "--lease",
            lease, "--checkpoint-every", CHECKPOINT_EVERY, "--no-verify", "--json", *MODES[self.cell.mode],
        ]  # fmt: skip
        return self._start(f"server-{shard}", *command, hurt=self.cell.role is Role.SHARD and shard == 1)

    def worker(self, rank: int) -> Forked:
        where = [word for port in range(SHARDS) for word in ("--server", self._seen_by(rank, port))]
        words = ["worker", "data", "--name", f"w{rank}", "--timeout", SILENCE_S, "--no-verify", "--json", *where]
        return self._start(f"worker-{rank}", *words, hurt=self.cell.role is Role.WORKER and rank == 0)

    def start_monitor(self) -> Forked:
        hurt = self.cell.role is Role.MONITOR
        where = [here(port) for port in self.streams]
        if hurt and self.cell.fault in ON_MESSAGES:
            where = [self._relay(lambda s=s: StreamRelay(s, *self._how)) for s in where]
        elif hurt and self.cell.fault is Fault.CUT:
            where = [self._relay(lambda s=s: TcpRelay(s, self.cell.seed)) for s in where]
        silence = SHORT_SILENCE_S if self.cell.end_unheard else MONITOR_SILENCE_S
        words = ["--timeout", silence, "--log", self._log, "--json"]
        return self._start("monitor", "monitor", *where, *words, hurt=hurt)

    def victim(self) -> Forked:
        """The process that faults of processes hit."""
        return {Role.SHARD: self.servers[1], Role.WORKER: self.workers[0], Role.MONITOR: self.monitor}[self.cell.role]

    @property
    def unheard(self) -> set[Forked]:
        """Workers that may miss the end: stopped ones, or those whose messages are dropped until all shards end."""
        hurt = {Role.SHARD: self.workers, Role.WORKER: self.workers[:1], Role.MONITOR: []}[self.cell.role]
        stopped = self.cell.fault is Fault.STOP and self.cell.role is Role.WORKER
        return set(hurt) if stopped or self.cell.fault is Fault.DROP else set()

    def restart_victim(self) -> None:
        """Restart the victim, as a supervisor does."""
        if self.cell.role is Role.SHARD:
            self.servers[1] = self.server(1)
        elif self.cell.role is Role.WORKER:
            self.workers[0] = self.worker(0)
        else:
            self.monitor = self.start_monitor()

    @property
    def _log(self) -> Path:
        return self.folder / f"{self.out}-watched.jsonl"

    @property
    def _watched(self) -> str:
        return self._log.read_text(encoding="utf-8") if self._log.exists() else ""

    @property
    def path(self) -> Path:
        return self.folder / self.out

    @property
    def _how(self) -> tuple[Fault, float, int]:
        return self.cell.fault, self.cell.rate, self.cell.seed

    def _seen_by(self, rank: int, shard: int) -> str:
        """The address at which a worker reaches a shard: that of a relay, if the connection is to be hit."""
        address = here(self.ports[shard])
        hurt = shard == 1 if self.cell.role is Role.SHARD else self.cell.role is Role.WORKER and rank == 0
        if hurt and self.cell.fault in ON_MESSAGES:
            return self._relay(lambda: MessageRelay(address, *self._how))
        if hurt and self.cell.fault is Fault.CUT:
            return self._relay(lambda: TcpRelay(address, self.cell.seed))
        return address

    def _relay(self, make: Callable[[], Any]) -> str:
        relay = self.stack.enter_context(make())
        self.relays.append(relay)
        return str(relay.address)

    def _start(self, name: str, *words: str | float | Path, hurt: bool) -> Forked:
        jumps = self.cell.seed if hurt and self.cell.fault is Fault.CLOCK else None
        forked = Forked(self.path.parent, f"{self.out}-{name}-{len(self.all)}", *words, jumps=jumps)
        self.all.append(forked)
        self.stack.callback(forked.kill)
        return forked


def here(port: int) -> str:
    return f"tcp://127.0.0.1:{port}"
