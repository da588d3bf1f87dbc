"""Keep parameters on the shards of a parameter server: turn a trainer's calls into messages, limited by credit."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from glovewire.common.array_types import Array, Indices, Rows
from glovewire.common.client.pending import Pending
from glovewire.common.endings import Ending, RunEnd
from glovewire.common.model.bfloat16 import BFLOAT16
from glovewire.common.model.options import TrainingOptions
from glovewire.common.model.row_layout import RowLayout
from glovewire.common.model.sharding import Sharding
from glovewire.common.protocol import messages as m
from glovewire.common.transport.client import LEAVING_S, POLL_MS, RequestClient

from .interface import Change, Pulled, empty_aligned

TABLE = "rows"
PIECE_BYTES = 1 << 20, 4 << 20
PIECE_SHARE = 1 / 16
"""Largest pull and push of a partition's rows in one message: a share of the table, within these limits. So the buffers
for a small table stay small."""
ADDED_BYTES = 1 << 18
"""Largest push of differences; small pushes limit the memory that many workers take on a server."""
NO_LEASE = m.Granted(-1, m.NO_VERSION, 0)
"""Passed to `push_range` for changes without a lease, to tables that are not trained in blocks."""


@dataclass
class ServerStore:
    """A Store on the shards of a parameter server, through a connected client.

    `latency()` returns the seconds by which the next push is delayed, to simulate a slow network.
    """

    client: RequestClient
    options: TrainingOptions
    rows: int
    in_place: bool = False
    latency: Callable[[], float] = float

    def __post_init__(self) -> None:
        """Take the width of a row from the options; start the sequence numbers of pushes, leases and reports."""
        self.width = RowLayout.of(self.options).width
        self._sharding = Sharding(self.rows, len(self.client.channels))
        self._sequences = [0] * len(self.client.channels)
        self._tickets = self._reports = 0
        self._low_water = 0, 0  # with its token

    def now(self) -> float:
        """See Store."""
        return self.client.now()

    def lease(self, has: npt.NDArray[np.uint8] | None = None) -> Pending[m.Granted | m.Done]:
        """See Store."""
        lease: Pending[m.Granted | m.Done] = Pending()
        self._tickets += 1

        def arrived(message: m.Message) -> None:
            lease.value = message if isinstance(message, m.Granted | m.Done) else None
            if isinstance(message, m.Granted):
                self._low_water = message.low_water, message.low_water_token

        self.client.request(0, m.Lease(self._tickets, self.client.worker, has), lease, arrived)
        return lease

    def pull_range(
        self, first: int, last: int, version: int, rows: Indices | None = None, *, bfloat16: bool = False
    ) -> Pending[Array]:
        """See Store. A pull that waits for a version also goes to shards with none of the rows, as the push will.

        Of several pulls to one shard, the others are sent when the first is answered, and then need not wait: a server
        limits the number of a worker's waiting requests.
        """
        count = last - first if rows is None else len(rows)
        out: Array = np.empty((count, self.width), BFLOAT16) if bfloat16 else empty_aligned(count, self.width)
        reply: Pending[Array] = Pending(out, 0)
        pieces: dict[int, list[tuple[m.Pull, Array]]] = {}
        for part, span in self._sharding.split_small(first, last, self._piece_rows(out), rows):
            if span.start < span.stop or version != m.NO_VERSION:
                pull = m.Pull(TABLE, part.first, part.last, version, None if rows is None else rows[span], bfloat16)
                reply.missing += 1
                pieces.setdefault(part.shard, []).append((pull, out[span]))
        for shard, found in pieces.items():
            self._pull_pieces(shard, found, reply)
        return reply

    def _pull_pieces(self, shard: int, pieces: list[tuple[m.Pull, Array]], reply: Pending[Array]) -> None:
        (pull, out), *others = pieces

        def arrived(message: m.Message) -> None:
            _put_range(out, message)
            for later, where in others:
                self.client.request(shard, later, reply, partial(_put_range, where))

        self.client.request(shard, pull, reply, arrived)

    def pull_rows(self, rows: Indices) -> Pending[Pulled]:
        """See Store. Shards with none of the rows are asked too, because every shard counts the steps."""
        pulled, reply = self._expect_rows(len(rows))
        for shard, span in self._sharding.split_rows(rows):
            request = m.Pull(TABLE, 0, 0, m.NO_VERSION, rows[span])
            reply.missing += 1
            self.client.request(shard, request, reply, partial(pulled.take, shard, span))
        return reply

    def push_range(self, operation: str, lease: m.Granted, change: Change) -> Pending[int]:
        """See Store. A shard with none of the changed rows gets a push too, because it ends the partition's visit."""
        reply: Pending[int] = Pending(0, 0)
        small = operation == "add" and self.options.consistency != "exclusive"
        most = ADDED_BYTES // (self.width * change.values.itemsize) if small else self._piece_rows(change.values)

        def arrived(message: m.Message) -> None:
            assert reply.value is not None
            reply.value ^= message.receipt if isinstance(message, m.Applied) else 0

        self._pause()
        for part, span in self._sharding.split_small(change.first, change.last, most, change.rows):
            push = m.Push(
                TABLE, self._next(part.shard), operation, part.first, part.last, lease.round, lease.lease, 0.0,
                change.values[span], None if change.rows is None else change.rows[span], None, lease.token,
                *self._low_water, worker=self.client.worker,
            )  # fmt: skip
            reply.missing += 1
            self.client.request(part.shard, push, reply, arrived)
        return reply

    def push_rows(
        self,
        operation: str,
        rows: Indices,
        values: Rows,
        rate: float,
        pulled: Pulled | None = None,
        wanted: Indices | None = None,
    ) -> tuple[Pending[bool], Pending[Pulled]]:
        """See Store. Sends one message per shard; shard 0 decides whether a gradient is late. `wanted` may be None."""
        reply: Pending[bool] = Pending(True, 0)
        known, requested = pulled or Pulled(values), rows[:0] if wanted is None else wanted
        next_rows, rows_reply = self._expect_rows(len(requested))
        self._pause()
        parts = zip(self._sharding.split_rows(rows), self._sharding.split_rows(requested), strict=True)
        for (shard, span), (_, next_span) in parts:
            push = m.Push(
                TABLE, self._next(shard), operation, 0, 0, known.clocks.get(shard, m.NO_VERSION), -1, rate,
                values[span], rows[span], None if known.versions is None else known.versions[span],
                then_pull=wanted is not None, wanted=None if wanted is None else wanted[next_span],
                worker=self.client.worker,
            )  # fmt: skip
            reply.missing += 1
            rows_reply.missing += push.then_pull
            take = partial(next_rows.take, shard, next_span)
            self.client.push_and_pull(shard, push, reply, partial(_take_late, reply, shard), rows_reply, take)
        return reply, rows_reply

    def report(self, report: Callable[[int, int], m.Report]) -> Pending[m.Recorded]:
        """See Store."""
        recorded: Pending[m.Recorded] = Pending()
        self._reports += 1
        message = replace(report(self._reports, self.client.bytes_sent), worker=self.client.worker)
        self.client.request(0, message, recorded)
        return recorded

    def poll(self) -> None:
        """See Store."""
        self.client.poll(0)

    def wait(self) -> None:
        """See Store."""
        self.client.poll(POLL_MS)

    def flush(self) -> None:
        """See Store. Does not wait for pulls and leases, whose answers may depend on other workers."""
        self.client.flush()

    def leave(self, end: RunEnd) -> None:
        """Leave every shard; if training has failed, also ask it to end the run, which a worker's key forbids."""
        if end.ending is Ending.FAILED:
            for shard in range(len(self.client.channels)):
                self.client.send(shard, m.Finish(*end), lambda _: None)
        self.client.part(end, LEAVING_S)

    def _pause(self) -> None:
        """Wait for the simulated latency of a push."""
        if not (latency_s := self.latency()):
            return
        until = self.now() + latency_s
        while (rest := until - self.now()) > 0:
            self.client.poll(min(math.ceil(rest * 1e3), POLL_MS))

    def _piece_rows(self, values: Array) -> int:
        """Return the largest number of rows of the dtype of `values` in one message."""
        row = self.width * values.itemsize
        least, most = PIECE_BYTES
        return int(min(max(PIECE_SHARE * self.rows * row, least), most)) // row

    def _next(self, shard: int) -> int:
        self._sequences[shard] += 1
        return self._sequences[shard]

    def _expect_rows(self, rows: int) -> tuple[Pulled, Pending[Pulled]]:
        """Return an empty Pulled for `rows` rows, and the Pending reply whose value it is."""
        pulled = Pulled(np.empty((rows, self.width), np.float32), versions=np.empty(rows, np.int64))
        return pulled, Pending(pulled, 0)


def _take_late(reply: Pending[bool], shard: int, message: m.Message) -> None:
    """Note whether shard 0 has found the gradient too late."""
    if shard == 0 and isinstance(message, m.Applied) and message.late:
        reply.value = False


def _put_range(out: Array, message: m.Message) -> None:
    if isinstance(message, m.Rows):
        out[:] = message.values
