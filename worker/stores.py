"""Where the parameters live, behind one interface: the trainer's loop is the same for every store.

A store hands out work, rows and the right to change them. `ServerStore` speaks to the shards of a parameter server;
nothing here computes anything of the objective.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from common import messages as m
from common.errors import GlovewireError
from common.options import TrainingOptions
from common.sharding import Sharding

from .buffers import aligned
from .client import ANY_DELAY_MS, Conversation, raised

TABLE = "rows"
CREDIT_BYTES = 64 << 20
LEAVING_S = 10.0
PULL_BYTES = 32 << 20
PUSH_BYTES = 1 << 18
"""Differences go in pieces: what a server has of many workers at once stays small."""
NO_LEASE = m.Granted(-1, 0, m.NO_VERSION, 0, 0, 0)
"""For changes to ranges without a lease, in asynchronous mode."""

Rows = npt.NDArray[np.float32]
Indices = npt.NDArray[np.int64]
T = TypeVar("T")


@dataclass
class Reply(Generic[T]):
    """Something that was asked for and arrives later."""

    value: T | None = None
    missing: int = 1
    error: GlovewireError | None = None

    @property
    def done(self) -> bool:
        """Whether it is here, or failed."""
        return self.missing == 0 or self.error is not None

    def get(self) -> T | None:
        """The value of a reply that is done; raises what went wrong."""
        if self.error is not None:
            raise self.error
        return self.value


def settled(replies: list[Reply[T]]) -> list[Reply[T]]:
    """The replies that are still to come; raises what went wrong with those that are here."""
    for reply in replies:
        if reply.done:
            reply.get()
    return [reply for reply in replies if not reply.done]


@dataclass
class Pulled:
    """Rows by number, and how they stood: the version of each shard, of each row where rows have one.

    `gradients` counts those in the table by then, of all workers.
    """

    values: Rows
    clocks: dict[int, int] = field(default_factory=dict)
    versions: Indices | None = None
    gradients: int = 0


class Store(Protocol):
    """What a trainer asks of the place where parameters live; `in_place` when pulled ranges are the parameters."""

    in_place: bool

    def lease(self) -> Reply[m.Granted | m.Done]:
        """The next block, or word that there is none left."""

    def pull_range(self, first: int, last: int, version: int) -> Reply[Rows]:
        """Rows [first, last) as the caller's own array, once they have reached `version`."""

    def pull_rows(self, rows: Indices) -> Reply[Pulled]:
        """The given rows (ascending, distinct) as the caller's own array; where workers go in step, when it is time."""

    def push_block(self, operation: str, lease: m.Granted, changes: Sequence[tuple[int, Rows]]) -> Reply[None]:
        """Change the rows of a block, (first row, values) each; values must stay as they are until it is done."""

    def push_rows(
        self, operation: str, rows: Indices, values: Rows, rate: float, pulled: Pulled | None = None
    ) -> Reply[bool]:
        """Change the given rows (ascending, distinct); `values` must stay as they are until the reply is done.

        A gradient says by `pulled` how the rows stood. The reply tells whether it counts: it may be late for its step.
        """

    def report(self, report: Callable[[int, int], m.Report]) -> Reply[m.Noted]:
        """Tell what training brought: `report(sequence, bytes_sent)` is the message."""

    def poll(self) -> None:
        """Take in what has arrived, without waiting."""

    def wait(self) -> None:
        """Return when something may have arrived."""

    def flush(self) -> None:
        """Return when everything pushed and reported is in."""

    def leave(self, reason: str) -> None:
        """Say goodbye, passing on why training ended."""


@dataclass
class ServerStore:
    """Rows on the shards of a parameter server, through a connected client.

    `latency()` is how many seconds the next push takes on its way, beside what the network takes.
    """

    client: Conversation
    options: TrainingOptions
    rows: int
    width: int
    in_place: bool = False
    latency: Callable[[], float] = float
    _sequences: list[int] = field(default_factory=list)
    _tickets: int = 0
    _reports: int = 0
    _in_flight: int = 0
    _floor: int = 0

    def __post_init__(self) -> None:
        """Begin every shard's sequence of pushes."""
        self._sharding = Sharding(self.rows, len(self.client.links))
        self._sequences = [0] * len(self.client.links)

    def lease(self) -> Reply[m.Granted | m.Done]:
        """See Store."""
        reply: Reply[m.Granted | m.Done] = Reply()
        self._tickets += 1

        def arrived(message: m.Message) -> None:
            reply.value = message if isinstance(message, m.Granted | m.Done) else None
            self._floor = message.floor if isinstance(message, m.Granted) else self._floor

        self._send(0, m.Lease(self._tickets), reply, arrived)
        return reply

    def pull_range(self, first: int, last: int, version: int) -> Reply[Rows]:
        """See Store."""
        out = aligned(last - first, self.width)
        reply: Reply[Rows] = Reply(out, 0)
        for shard, low, high in self._pieces(first, last, PULL_BYTES):
            into = slice(low - first, high - first)
            self._pull(shard, m.Pull(TABLE, low, high, version, self._floor), reply, out, into)
        return reply

    def pull_rows(self, rows: Indices) -> Reply[Pulled]:
        """See Store. Every shard is asked, be it for no rows: each counts the steps."""
        pulled = Pulled(np.empty((len(rows), self.width), np.float32), versions=np.empty(len(rows), np.int64))
        reply: Reply[Pulled] = Reply(pulled, 0)
        for shard, span in self._sharding.split_rows(rows):
            request = m.Pull(TABLE, 0, 0, m.NO_VERSION, self._floor, rows[span])
            reply.missing += 1
            self._send(shard, request, reply, partial(_put, pulled, shard, span))
        return reply

    def push_block(self, operation: str, lease: m.Granted, changes: Sequence[tuple[int, Rows]]) -> Reply[None]:
        """See Store."""
        reply: Reply[None] = Reply(None, 0)
        at_once = sys.maxsize if operation == "assign" else PUSH_BYTES  # rows in order come to a shard all at once
        self._pause()
        for first, values in changes:
            for shard, low, high in self._pieces(first, first + len(values), at_once):
                piece = values[low - first : high - first]
                number = self._next(shard)
                what = (low, high, lease.round, lease.lease, 0.0, piece)
                push = m.Push(TABLE, number, operation, *what, floor=self._floor)
                self._push(shard, push, reply)
        return reply

    def push_rows(
        self, operation: str, rows: Indices, values: Rows, rate: float, pulled: Pulled | None = None
    ) -> Reply[bool]:
        """See Store. Whether a gradient counts is as shard 0 says."""
        reply: Reply[bool] = Reply(True, 0)
        known = pulled or Pulled(values)
        self._pause()
        for shard, span in self._sharding.split_rows(rows):
            push = m.Push(
                TABLE, self._next(shard), operation, 0, 0, known.clocks.get(shard, m.NO_VERSION), -1, rate,
                values[span], rows[span], None if known.versions is None else known.versions[span],
            )  # fmt: skip
            self._push(shard, push, reply)
        return reply

    def report(self, report: Callable[[int, int], m.Report]) -> Reply[m.Noted]:
        """See Store."""
        reply: Reply[m.Noted] = Reply()
        self._reports += 1

        def arrived(message: m.Message) -> None:
            reply.value = message if isinstance(message, m.Noted) else None

        self._send(0, report(self._reports, self.client.bytes_sent), reply, arrived)
        return reply

    def poll(self) -> None:
        """See Store."""
        self.client.poll(0)

    def wait(self) -> None:
        """See Store."""
        self.client.poll(ANY_DELAY_MS)

    def flush(self) -> None:
        """See Store."""
        self.client.flush()

    def leave(self, reason: str) -> None:
        """Tell every shard; the others hear from us what one of them knows: that the run is over."""
        for shard in range(len(self.client.links)):
            self.client.send(shard, m.Finish(reason), lambda _: None)
        self.client.part(reason, LEAVING_S)

    def _pause(self) -> None:
        """Let the simulated latency pass before a push."""
        until = time.monotonic() + self.latency()
        while (rest := until - time.monotonic()) > 0:
            self.client.poll(min(math.ceil(rest * 1e3), ANY_DELAY_MS))

    def _pieces(self, first: int, last: int, nbytes: int) -> Iterator[tuple[int, int, int]]:
        """(shard, first row, last row) of what is asked or pushed in one message each, of at most `nbytes`."""
        at_once = max(nbytes // (self.width * 4), 1)
        for part in self._sharding.split(first, last):
            for low in range(part.first, part.last, at_once):
                yield part.shard, low, min(low + at_once, part.last)

    def _next(self, shard: int) -> int:
        self._sequences[shard] += 1
        return self._sequences[shard]

    def _pull(self, shard: int, pull: m.Pull, reply: Reply[Rows], out: Rows, into: slice) -> None:
        def arrived(message: m.Message) -> None:
            if isinstance(message, m.Rows):
                out[into] = message.values

        reply.missing += 1
        self._send(shard, pull, reply, arrived)

    def _push(self, shard: int, push: m.Push, reply: Reply[Any]) -> None:
        def arrived(message: m.Message) -> None:
            self._in_flight -= push.values.nbytes
            if shard == 0 and isinstance(message, m.Applied) and message.late:
                reply.value = False

        reply.missing += 1
        self._in_flight += push.values.nbytes
        self._send(shard, push, reply, arrived)
        while self._in_flight > CREDIT_BYTES:
            self.wait()

    def _send(self, shard: int, request: m.Message, reply: Reply[T], arrived: Callable[[m.Message], None]) -> None:
        def settle(message: m.Message) -> None:
            reply.missing -= 1
            try:
                arrived(raised(message))
            except GlovewireError as error:
                reply.error = error

        self.client.send(shard, request, settle)


def _put(pulled: Pulled, shard: int, span: slice, message: m.Message) -> None:
    """Take in one shard's part of a pull."""
    if isinstance(message, m.Rows):
        pulled.values[span] = message.values
        pulled.clocks[shard] = message.version
        pulled.gradients = message.gradients if shard == 0 else pulled.gradients
        if message.versions is None:
            pulled.versions = None
        elif pulled.versions is not None:
            pulled.versions[span] = message.versions
