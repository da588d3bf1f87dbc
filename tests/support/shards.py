"""A server shard without sockets, built as by `glovewire server`, and functions that stand for workers.

`Shard` passes messages to a core and files the replies under the number of their request. `served` runs a daemon in a
thread of this process and ends it.
"""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from handmade import random_dataset

from glovewire.common.endings import RunEnd
from glovewire.common.model.options import TrainingOptions
from glovewire.common.model.rounds import Rounds
from glovewire.common.protocol import messages as m
from glovewire.common.roles import Client
from glovewire.common.storage.dataset import Dataset
from glovewire.server.checkpoints.cuts import Snapshot
from glovewire.server.checkpoints.generations import Generation
from glovewire.server.config import ServerConfig
from glovewire.server.core.core import Core, Effects
from glovewire.server.core.state import NetworkCounts, ShardState
from glovewire.server.daemon import CheckShards, Daemon
from glovewire.server.limits import WORKER_CREDIT_BYTES
from glovewire.server.service import prepare
from glovewire.server.sessions import STALL_S
from glovewire.server.tokens import Tokens

T = TypeVar("T")
MINIBATCH: dict[str, Any] = {"schedule": "minibatch", "consistency": "async"}
ASYNC: dict[str, Any] = {"consistency": "async"}
SECRET = "5ec4e7" * 5 + "00"
TOKENS = Tokens(bytes.fromhex(SECRET))
"""Tokens made with the secret of a test's shards, which no worker knows."""


@dataclass
class Shard:
    """A core and its state; `now` is its clock, `inbox` has the replies it has sent, by (peer, number)."""

    state: ShardState
    dataset: Dataset
    now: float = 0.0
    inbox: dict[tuple[bytes, int], list[m.Message]] = field(default_factory=dict)
    samples: list[m.Message] = field(default_factory=list)
    _snapshots: list[Snapshot] = field(default_factory=list)
    _number: int = 0

    def __post_init__(self) -> None:
        self.core = Core(self.state)

    def send(self, peer: bytes, message: m.Message, number: int | None = None, client: Client | None = None) -> int:
        """Pass a message to the core; return its number."""
        self._number += 1
        number = self._number if number is None else number
        self.carry_out(self.core.receive(peer, number, message, self.now, client))
        return number

    def ask(
        self, peer: bytes, message: m.Message, number: int | None = None, client: Client | None = None
    ) -> m.Message | None:
        """The reply to a message, None while it waits."""
        return self.reply(peer, self.send(peer, message, number, client))

    def reply(self, peer: bytes, number: int) -> m.Message | None:
        """The newest reply to a request."""
        return self.inbox.get((peer, number), [None])[-1]  # type: ignore[list-item]

    def tick(self, seconds: float) -> None:
        """Let time pass; the core ticks now and then."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(self.now + STALL_S / 2, end)
            self.carry_out(self.core.tick(self.now, NetworkCounts()))

    def hello(
        self,
        name: str = "w0",
        *,
        peer: bytes = b"",
        incarnation: int = 1,
        role: str = "worker",
        worker: int | None = None,
    ) -> m.Message | None:
        """Open a session; the peer is the name unless given, `worker` the number from shard 0, by default the next."""
        checksum = self.dataset.checksum if role == "worker" else ""
        if worker is None:
            worker = len(self.state.sessions.workers) if self.state.identity.shard and role == "worker" else -1
        token = TOKENS.worker(worker, name, incarnation)
        return self.ask(peer or name.encode(), m.Hello(role, name, incarnation, checksum, worker, token))

    def events(self, kind: str) -> list[str]:
        """Subjects of the events of a kind that were published, including those that are due now."""
        self.carry_out(self.core.tick(self.now, NetworkCounts()))
        return [s.subject for s in self.samples if isinstance(s, m.Event) and s.kind == kind]

    def take_snapshots(self) -> list[Snapshot]:
        """Checkpoints to be written; each is returned once."""
        taken, self._snapshots = self._snapshots, []
        return taken

    def carry_out(self, effects: Effects) -> Effects:
        """Collect replies, samples and snapshots."""
        for reply in effects.replies:
            self.inbox.setdefault((reply.peer, reply.number), []).append(reply.message)
        self.samples += [published.sample for published in effects.published]
        self._snapshots += effects.snapshots
        return effects


def shard(
    dataset: Dataset, *, number: int = 0, shards: int = 1, out: Path = Path("run"), now: float = 0.0, **options: Any
) -> Shard:
    """A shard of a small model, by default with float32; `options` are those of the training, except `own` ones."""
    asked = options.pop("asked", "")
    generation = Generation(options.pop("generation", 0), "run", secret=SECRET, asked=asked)
    own = {key: options.pop(key) for key in ("lease_s", "patience_s", "checkpoint_every", "workers") if key in options}
    training = TrainingOptions(**{"dim": 4, "epochs": 2, "tied": True, "bfloat16": False, **options})
    config = ServerConfig(dataset=dataset.path, out=out, options=training, shard=number, shards=shards, **own)
    return Shard(prepare(config, dataset, generation, now), dataset, now)


def in_memory(path: Path, **options: Any) -> Dataset:
    """A small dataset whose file is closed, for fixtures that outlive a test."""
    dataset, _ = random_dataset(path, **options)
    entries = np.array(dataset.entries)
    entries.setflags(write=False)  # as in a file: for writable arrays the loops would be compiled once more
    return dataclasses.replace(dataset, entries=entries)


USUAL: dict[str, Any] = {
    "table": "rows", "sequence": 1, "version": m.NO_VERSION, "lease": -1, "token": 0, "low_water": 0,
    "low_water_token": 0, "rate": 0.0, "rows": None, "then_pull": False, "worker": -1, "bfloat16": False,
}  # fmt: skip
"""Values of fields that a test does not care about."""


def pull(first: int = 0, last: int = 0, version: int = m.NO_VERSION, **fields: Any) -> m.Pull:
    """A pull of rows [first, last), or of `rows`."""
    return _request(m.Pull, first=first, last=last, version=version, **fields)


def push(operation: str, values: Any, first: int = 0, last: int = 0, **fields: Any) -> m.Push:
    """A push of float32 `values`."""
    values = np.asarray(values, np.float32)
    return _request(m.Push, operation=operation, values=values, first=first, last=last, **fields)


def _request(kind: type[T], **fields: Any) -> T:
    if fields.get("rows") is not None:
        fields["rows"] = np.array(fields["rows"], np.int64)
    names = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    return kind(**{name: fields.get(name, USUAL.get(name)) for name in names})


def add(of: Shard, sequence: int, amount: float = 1.0, first: int = 0, last: int = 2) -> m.Push:
    values = np.full((last - first, of.state.table.values.shape[1]), amount, np.float32)
    return push("add", values, first, last, sequence=sequence)


def assign(of: Shard, sequence: int, partition: int, version: int, amount: float, **lease: int) -> m.Push:
    """A push in exclusive order; `lease` and `worker` are as in `leased`."""
    first, last = span(of, partition)
    values = np.full((last - first, of.state.table.values.shape[1]), amount, np.float32)
    return leased(push("assign", values, first, last, sequence=sequence, version=version), **lease)


def span(of: Shard, partition: int) -> tuple[int, int]:
    """The rows of a partition that a shard has."""
    first, last = np.clip(of.dataset.layout.span(partition), of.state.table.first, of.state.table.last).tolist()
    return first, last


def rounds_of(of: Shard) -> Rounds:
    """The order of the strips of a shard's training."""
    return Rounds.of(of.state.options, of.dataset.layout.partitions)


def leased(of: m.Push, *, worker: int = 0, lease: int = 1) -> m.Push:
    """A push under a made-up lease, with the tokens that shard 0 would have given."""
    token = TOKENS.lease(lease, worker, of.version)
    return dataclasses.replace(of, lease=lease, token=token, low_water_token=TOKENS.low_water(of.low_water))


def applied(sequence: int, version: int, repeated: bool = False, late: bool = False) -> m.Applied:
    """The answer to a push, with the credit of a worker among few."""
    return m.Applied(sequence, version, repeated, late, WORKER_CREDIT_BYTES)


def report(sequence: int, lease: int = -1, entries: int = 10, receipt: int = 0) -> m.Report:
    return m.Report(sequence, lease, entries, 1.0, 2.0, 1.0, 0.1, 100, receipt)


def trained(sequence: int, granted: m.Granted, of: Shard, entries: int = 10) -> m.Report:
    """A report with the receipts that a single shard issues once it has all rows of the strip's partitions."""
    receipt = 0
    for partition in rounds_of(of).visits(granted.round):
        receipt ^= TOKENS.receipt(0, granted.lease, partition)
    return report(sequence, granted.lease, entries, receipt)


def statistics(of: Shard) -> dict[str, Any]:
    reply = of.ask(b"eye", m.GetStatus())
    assert isinstance(reply, m.Status)
    found: dict[str, Any] = json.loads(bytes(reply.body))
    return found


def code(reply: m.Message | None) -> str:
    """The code of a refusal, "" for any other reply."""
    return reply.code if isinstance(reply, m.Refused) else ""


@contextmanager
def served(daemon: Daemon, check_shards: CheckShards = lambda _: None) -> Iterator[list[RunEnd]]:
    """Serve in a thread; the list gets the reason for its end. On exit, finish the run and close the daemon."""
    ended: list[RunEnd] = []

    def serve() -> None:
        ended.append(daemon.serve(check_shards))
        daemon.farewell()

    thread = threading.Thread(target=serve, name="daemon")
    thread.start()
    try:
        yield ended
    finally:
        if thread.is_alive():
            daemon.stop()
        thread.join(30)
        daemon.close()
        assert not thread.is_alive()
