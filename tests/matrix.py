"""One fault, on one role, in one mode: a small training of two shards, two workers and a monitor that has to bear it.

`play` plays a cell and returns what came of it; what was expected and did not come are its `problems`.
"""

from __future__ import annotations

import contextlib
import enum
import json
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forked import Forked
from processes import free_port, until
from relay import Fault, MessageRelay, Relay, StreamRelay, TcpRelay
from small_disk import small_disk

SHARDS, WORKERS = 2, 2
LEASE_S = 3.0
SILENCE_S, LATE = 20.0, "no server answers at"  # the latter of a worker for whom the others left nothing to do
CHECKPOINT_EVERY = 10
ON_MESSAGES = (Fault.DELAY, Fault.DUPLICATE, Fault.REORDER, Fault.DROP)
BATCH = 64


class Role(enum.Enum):
    """Who is hurt: shard 1, or its connections; worker w0, or its; the monitor, or its."""

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
    """What is played: `rate` is the part of the messages that are hit, `epochs` how long the training is."""

    fault: Fault
    role: Role
    mode: str
    rate: float = 0.2
    seed: int = 1
    epochs: int = 0

    @property
    def length(self) -> int:
        """Epochs: enough that the fault comes in the middle, few where each message takes its time."""
        return self.epochs or (4 if self.fault in ON_MESSAGES and self.role is not Role.MONITOR else 100)

    @property
    def deadline_s(self) -> float:
        """When it has to be over, on a machine that does nothing else."""
        return 120.0 if self.fault in (Fault.DROP, Fault.REORDER) else 60.0

    @property
    def possible(self) -> bool:
        """Workers and monitors write no checkpoints."""
        return self.fault is not Fault.DISK or self.role is Role.SHARD


@dataclass
class Outcome:
    """What came of a cell."""

    cell: Cell
    end: str = ""
    seconds: float = 0.0
    pushes: dict[str, int] = field(default_factory=dict)
    same_bytes: bool | None = None
    lost_on_the_way: int = 0
    problems: list[str] = field(default_factory=list)


@dataclass
class Stage:
    """The processes of one cell, in `folder`, which has `data`; `relays` stand in front of what is hurt."""

    folder: Path
    cell: Cell
    out: str
    stack: ExitStack
    all: list[Forked] = field(default_factory=list)
    relays: list[Relay] = field(default_factory=list)
    ports: list[int] = field(default_factory=lambda: [free_port() for _ in range(SHARDS)])
    streams: list[int] = field(default_factory=lambda: [free_port() for _ in range(SHARDS)])

    def start(self) -> None:
        """Start everybody."""
        self.servers = [self.server(shard) for shard in range(SHARDS)]
        self.monitor = self.start_monitor()
        self.workers = [self.worker(0)]  # it may be the slower one to come in; the others must not be done before
        until(lambda: "event=joined subject=w0" in self.servers[0].err, "w0 has joined")
        self.workers += [self.worker(rank) for rank in range(1, WORKERS)]

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
        return self._start("monitor", "monitor", *where, "--json", hurt=hurt)

    def victim(self) -> Forked:
        """Whom processes' faults hurt."""
        return {Role.SHARD: self.servers[1], Role.WORKER: self.workers[0], Role.MONITOR: self.monitor}[self.cell.role]

    def restart_victim(self) -> None:
        """As whatever supervises processes does it."""
        if self.cell.role is Role.SHARD:
            self.servers[1] = self.server(1)
        elif self.cell.role is Role.WORKER:
            self.workers[0] = self.worker(0)
        else:
            self.monitor = self.start_monitor()

    @property
    def path(self) -> Path:
        return self.folder / self.out

    @property
    def _how(self) -> tuple[Fault, float, int]:
        return self.cell.fault, self.cell.rate, self.cell.seed

    def _seen_by(self, rank: int, shard: int) -> str:
        """Where a worker finds a shard: through a relay, if that connection is hurt."""
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

    def _start(self, name: str, *words: str | float, hurt: bool) -> Forked:
        jumps = self.cell.seed if hurt and self.cell.fault is Fault.CLOCK else None
        forked = Forked(self.path.parent, f"{self.out}-{name}-{len(self.all)}", *words, jumps=jumps)
        self.all.append(forked)
        self.stack.callback(forked.kill)
        return forked


def here(port: int) -> str:
    return f"tcp://127.0.0.1:{port}"


def undisturbed(folder: Path, epochs: int) -> bytes:
    """The vectors after so many epochs of blocks/exclusive with one shard, one worker and no fault."""
    out, port = f"alone-{epochs}", free_port()
    with ExitStack() as stack:
        server = Forked(
            folder, f"{out}-server", "server", "data", "--out", out, "--dim", 8, "--epochs", epochs, "--bind",
            here(port), "--publish", "tcp://127.0.0.1:0", "--no-verify",
        )  # fmt: skip
        stack.callback(server.kill)
        worker = Forked(folder, f"{out}-worker", "worker", "data", "--server", here(port), "--no-verify")
        stack.callback(worker.kill)
        until(lambda: server.status is not None, f"{out} ends: {server.err[-300:]!r}")
    return (folder / out / "vectors.npy").read_bytes()


def play(cell: Cell, folder: Path, expected: bytes | None, out: str = "run", patience: float = 3.0) -> Outcome:
    """Play one cell; `expected` are the vectors of the same training without a fault.

    `patience` stretches deadlines on a machine that is busy with other things.
    """
    outcome = Outcome(cell)
    began = time.monotonic()
    with ExitStack() as stack:
        stage = Stage(folder, cell, out, stack)
        if cell.fault is Fault.DISK:
            stack.enter_context(small_disk(stage.path))
        try:
            stage.start()
            hurt(stage)
            finish(stage, outcome, began + cell.deadline_s * patience)
        except AssertionError as error:
            outcome.problems.append(str(error).splitlines()[0])
        outcome.seconds = time.monotonic() - began
        outcome.end = outcome.end or "hangs"
        if not outcome.problems:
            check(stage, outcome, expected)
    return outcome


def hurt(stage: Stage) -> None:
    """Do what the cell says; messages and connections are hurt all along, by the relays."""
    fault, victim = stage.cell.fault, stage.victim()
    if fault not in (Fault.KILL, Fault.STOP, Fault.DISK):
        return
    under_way(stage)
    if fault is Fault.KILL:
        victim.signal(signal.SIGKILL)
        until(lambda: victim.status is not None, "it is dead")
        stage.restart_victim()
    elif fault is Fault.STOP:
        victim.signal(signal.SIGSTOP)
        if stage.cell.role is Role.WORKER:
            until(lambda: "event=lost subject=w0" in stage.servers[0].err, "the stopped worker is lost")
        else:
            end = time.monotonic() + 1.5 * LEASE_S
            until(lambda: time.monotonic() > end, "the lease is over")
        victim.signal(signal.SIGCONT)
    else:
        filling = stage.path / "filling"
        with contextlib.suppress(OSError), filling.open("wb", buffering=0) as stream:
            while True:
                stream.write(bytes(4096))
        until(lambda: any("no space left" in one.err for one in stage.servers), "a checkpoint does not fit")
        filling.unlink()


def under_way(stage: Stage) -> None:
    """Return when there is something to lose: a checkpoint, or in other modes an epoch."""
    if stage.cell.mode == "blocks/exclusive":
        pattern = f"round-*.shard-1-of-{SHARDS}"
        until(lambda: any((stage.path / "checkpoints").glob(pattern)), "there is a checkpoint")
    else:
        until(lambda: "event=epoch" in stage.servers[0].err, "an epoch is trained")


def finish(stage: Stage, outcome: Outcome, deadline: float) -> None:
    """Wait until everybody has ended; say how."""
    everybody = [*stage.servers, *stage.workers, stage.monitor]
    for one in everybody:
        left = max(deadline - time.monotonic(), 0.1)
        until(lambda one=one: one.status is not None, f"{one.name} hangs: {one.err[-300:]!r}", left)
    failed = {one: why for one in everybody if one.status != 0 and LATE not in (why := said(one))}
    outcome.end = "; ".join(failed.values()) or "completes"
    if stage.cell.fault is Fault.STOP and f"has not answered for {SILENCE_S:g} s" in failed.get(stage.victim(), ""):
        failed.pop(stage.victim())  # the run was over before it came back, and nobody was there to tell it
        outcome.end = f"completes; the stopped worker ends after {SILENCE_S:g} s of silence"
    outcome.problems += [f"{one.name}: {why}" for one, why in failed.items()]


def said(one: Forked) -> str:
    """Its error in one line, or how else it ended."""
    errors = [line for line in one.err.splitlines() if line.startswith("error: ")]
    return (errors or [f"exit status {one.status}: {one.err[-200:]!r}"])[-1]


def check(stage: Stage, outcome: Outcome, vectors: bytes | None) -> None:
    """Compare with what has to be: every block counted once, every push accounted for, the same bytes."""
    facts = [json.loads(server.out.splitlines()[-1]) for server in stage.servers]
    cell, problems = stage.cell, outcome.problems
    outcome.pushes = {key: sum(one["pushes"][key] for one in facts) for key in facts[0]["pushes"]}
    pushes = outcome.pushes
    if pushes["heard"] != pushes["applied"] + pushes["repeated"] + pushes["refused"]:
        problems.append(f"pushes do not reconcile: {pushes}")
    relays = [relay for relay in stage.relays if isinstance(relay, MessageRelay)]
    outcome.lost_on_the_way = pushes["sent"] - pushes["heard"]
    expected = sum(relay.dropped - relay.duplicated for relay in relays)
    exact = cell.fault not in (Fault.KILL, Fault.STOP, Fault.CUT)
    if outcome.lost_on_the_way != expected if exact else outcome.lost_on_the_way < 0:
        problems.append(f"sent {pushes['sent']}, heard {pushes['heard']}, the relays took {expected}")
    manifest = json.loads((stage.folder / "data" / "manifest.json").read_text())
    total, counted = manifest["facts"]["entries"] * cell.length, facts[0]["entries"]
    if cell.mode.startswith("minibatch"):  # what the dead had not reported is in the table
        counted = pushes["applied"] // SHARDS * BATCH
    if counted != total if cell.mode.startswith("blocks") else counted < total:
        problems.append(f"{counted} entries were trained, of {total}")
    if cell.mode == "blocks/exclusive":
        outcome.same_bytes = (stage.path / "vectors.npy").read_bytes() == vectors
        if not outcome.same_bytes:
            problems.append("other bytes than undisturbed")
    if cell.fault is Fault.STOP and cell.role is Role.SHARD and "event=lost" in stage.servers[1].err:
        problems.append("the shard that was stopped took others for lost")
