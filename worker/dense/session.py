"""One session with the shards of a dense model: joining, rows in and out, reports. Made anew when a server was away.

Rows and messages only: what the tensors are called and when to begin again is `worker.dense.client`'s business.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from glovewire.common import errors
from glovewire.common.array_types import Array
from glovewire.common.model.options import TrainingOptions
from glovewire.common.model.sharding import Sharding, ShardRange
from glovewire.common.model.tensor_layout import ROW, TABLE, ModelSpec
from glovewire.common.protocol import messages as m
from glovewire.common.transport.client import ANY_DELAY_MS, Conversation, raised
from glovewire.common.transport.curve_keys import ClientKeys

from ..training.loss_sums import Brought, Tally

PIECE_BYTES = 32 << 20
IN_FLIGHT = 4
"""Pushes without an answer that a shard may have from us."""

OnError = Callable[[errors.GlovewireError], None]


@dataclass
class _Coming:
    """Rows on their way to us, and the version of each shard's; `missing` messages have not arrived."""

    rows: Array
    versions: list[int]
    missing: int = 0
    failure: errors.GlovewireError | None = None

    def take(self, shard: int, at: slice, reply: m.Message) -> None:
        """A message with some of them has come."""
        assert isinstance(reply, m.Rows)
        self.rows[at], self.versions[shard] = reply.values, reply.version
        self.missing -= 1

    def fail(self, error: errors.GlovewireError) -> None:
        """They do not come."""
        self.failure = error


class TensorSession:
    """What one worker or observer (`role`) has with every shard; `over` once a server said that the run is.

    What goes wrong with a push is raised by the next call.
    """

    def __init__(
        self, addresses: Sequence[str], name: str, role: str, timeout_s: float, keys: ClientKeys | None = None
    ) -> None:
        self.over = self.joined = False
        self.versions = [m.NO_VERSION] * len(addresses)
        self._addresses, self._timeout_s = addresses, timeout_s
        self._sequences = [0] * len(addresses)
        self._in_flight: set[tuple[int, int]] = set()
        self._reports, self._tally = 0, Tally()
        self._ahead: _Coming | None = None
        self._failure: errors.GlovewireError | None = None
        self._client = Conversation(addresses, name, "", timeout_s, keys)
        try:
            self.options = TrainingOptions.from_message(self._client.connect(role).options)
        except BaseException:
            self._client.close()
            raise

    def join(self, spec: ModelSpec | None, trained: Array | None, fixed: Array | None, wait_s: float) -> ModelSpec:
        """Agree on the tensors (None: on whatever is there) and bring the values that are missing; returns the spec.

        Shard 0 is asked first and filled last: one worker brings all values, the others wait, at most `wait_s`.
        """
        empty = []
        for shard in range(len(self._addresses)):
            created = self._create(shard, m.Create(None if spec is None else spec.to_json()), wait_s)
            spec = ModelSpec.from_json(created.spec)
            empty += [shard] if created.fill else []
        assert spec is not None
        self._spec, self._sharding = spec, Sharding(spec.rows, len(self._addresses))
        for shard in reversed(empty):
            assert trained is not None
            assert fixed is not None
            self._fill(shard, trained, fixed)
        self.joined = True
        return spec

    def pull(self, *, trained: bool, after: int = m.NO_VERSION) -> Array:
        """The rows of the trained (or fixed) tensors, shape (rows, ROW), once every shard has seen `after` updates.

        Trained rows were asked for by the last push, and may be here by now.
        """
        ahead = None
        if trained:
            ahead, self._ahead = self._ahead, None
        coming = ahead if ahead is not None and after == m.NO_VERSION else self._asked_for(trained=trained, after=after)
        while coming.missing and coming.failure is None:
            self._wait()
        if coming.failure is not None:
            self._fail(coming.failure)
            raise coming.failure
        if trained:
            self.versions = coming.versions
        return coming.rows

    def push(self, gradient: Array, rate: float) -> None:
        """Hand in a gradient of all trained rows; it must stay as it is. Waits while too many are without an answer.

        Every shard gets one, be it of no rows: each counts the steps, and so they agree on checkpoints and on the end.
        The next step needs the rows as they are then: they are asked for at once and come while its batch is prepared.
        """
        self._raise_failure()
        self._ahead = self._coming(trained=True)
        for part in self._trained_parts():
            self._push("gradient", part, gradient[part.first : part.last], rate, self._ahead)
        while len(self._in_flight) > IN_FLIGHT * len(self._addresses):
            self._wait()

    def assign(self, rows: Array, first: int) -> None:
        """Set the rows from `first` on."""
        self._raise_failure()
        for part in self._pieces(first, first + len(rows)):
            self._push("assign", part, rows[part.first - first : part.last - first])

    def count(self, examples: int, loss: float, norm: float) -> None:
        """Count what a push was made of, and report when that is due."""
        self._tally.add(Brought(examples, loss * examples, 0.0, norm))
        if self._tally.due:
            self._report()

    def ask(self, shard: int, request: m.Message) -> m.Message:
        """One request and its answer."""
        return self._client.ask(shard, request, self._timeout_s)

    def flush(self) -> None:
        """Return when all that was pushed is in."""
        self._report()
        while self._in_flight:
            self._wait()
        self._raise_failure()

    def leave(self) -> None:
        """Report what is left and say goodbye to servers that still listen; also at the end of the run."""
        if self._client.failed is None and (self._failure is None or self.over):
            self._report()
            self._client.part("left")

    def close(self) -> None:
        """Close every socket; twice is fine."""
        self._client.close()

    def _create(self, shard: int, create: m.Create, wait_s: float) -> m.Created:
        replies: list[m.Message] = []
        self._client.send(shard, create, replies.append)
        deadline = time.monotonic() + wait_s
        while not replies:
            self._client.poll(ANY_DELAY_MS)
            if time.monotonic() > deadline:
                raise errors.DeadlineExceeded(
                    f"no worker has brought values for the tensors of {self._addresses[shard]} within {wait_s:g} s"
                )
        created = raised(replies[0])
        assert isinstance(created, m.Created)
        return created

    def _fill(self, shard: int, trained: Array, fixed: Array) -> None:
        first, last = self._sharding.bound(shard), self._sharding.bound(shard + 1)
        for rows, at in ((trained, 0), (fixed, len(trained))):
            low, high = max(first, at), min(last, at + len(rows))
            if low < high:
                self.assign(rows[low - at : high - at], low)
        self.flush()

    def _push(
        self, operation: str, part: ShardRange, values: Array, rate: float = 0.0, coming: _Coming | None = None
    ) -> None:
        """Send a push of a part; `coming` are the rows that it asks for, of the whole range from 0."""
        self._sequences[part.shard] += 1
        version = m.NO_VERSION if coming is None else self.versions[part.shard]
        sent = part.shard, self._sequences[part.shard]
        push = m.Push(
            TABLE, sent[1], operation, part.first, part.last, version, -1, rate, values, then_pull=coming is not None
        )

        def arrived(reply: m.Message) -> None:
            self._in_flight.discard(sent)
            if coming is not None and isinstance(reply, m.Rows):
                coming.take(part.shard, slice(part.first, part.last), reply)

        def failed(error: errors.GlovewireError) -> None:
            pushed = sent not in self._in_flight or isinstance(error, errors.RunOver)  # it is about the rows
            self._in_flight.discard(sent)
            (coming.fail if coming is not None and pushed else self._fail)(error)

        self._client.make_room(values.nbytes)
        self._in_flight.add(sent)
        if coming is not None:
            coming.missing += 1
        self._send(part.shard, push, arrived, failed)

    def _trained_parts(self) -> Iterator[ShardRange]:
        """The trained rows of every shard in one piece each, which fits in a message; of some shards none."""
        for shard in range(len(self._addresses)):
            first, last = self._sharding.bound(shard), self._sharding.bound(shard + 1)
            yield ShardRange(shard, first, max(first, min(last, self._spec.trained_rows)))

    def _pieces(self, first: int, last: int) -> Iterator[ShardRange]:
        """Rows [first, last) of the table in parts that fit in a message."""
        most = max(PIECE_BYTES // (ROW * self._spec.dtype.itemsize), 1)
        for part in self._sharding.split(first, last):
            for low in range(part.first, part.last, most):
                yield ShardRange(part.shard, low, min(low + most, part.last))

    def _coming(self, *, trained: bool) -> _Coming:
        first, last = self._spec.part(trained)
        return _Coming(np.empty((last - first, ROW), self._spec.dtype), list(self.versions))

    def _asked_for(self, *, trained: bool, after: int = m.NO_VERSION) -> _Coming:
        """Rows that come while others do something else; what goes wrong with them is theirs to say."""
        first, last = self._spec.part(trained)
        coming = self._coming(trained=trained)
        for part in self._trained_parts() if trained else self._pieces(first, last):
            arrived = partial(coming.take, part.shard, slice(part.first - first, part.last - first))
            coming.missing += 1
            self._send(part.shard, m.Pull(TABLE, part.first, part.last, after, 0), arrived, coming.fail)
        return coming

    def _report(self) -> None:
        if self._tally.entries:
            self._reports += 1
            self._send(0, self._tally.message(self._reports, self._client.bytes_sent), self._noted)
            self._tally = Tally()

    def _noted(self, reply: m.Message) -> None:
        self.over = self.over or (isinstance(reply, m.Recorded) and reply.stop)

    def _send(
        self, shard: int, request: m.Message, arrived: Callable[[m.Message], None], failed: OnError | None = None
    ) -> None:
        def settle(reply: m.Message) -> None:
            try:
                arrived(raised(reply))
            except errors.GlovewireError as error:
                (failed or self._fail)(error)

        self._client.send(shard, request, settle)

    def _fail(self, error: errors.GlovewireError) -> None:
        self.over = self.over or isinstance(error, errors.RunOver)
        self._failure = error

    def _wait(self) -> None:
        self._client.poll(ANY_DELAY_MS)
        self._raise_failure()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
