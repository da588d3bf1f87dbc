"""Keep one session with the shards of a dense model: join, pull and push rows, report.

`worker.dense.client` maps tensor names to rows, and creates a new session after a restart of a server.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from glovewire.common import errors
from glovewire.common.array_types import Array
from glovewire.common.endings import Ending, RunEnd
from glovewire.common.model.options import TrainingOptions
from glovewire.common.model.sharding import Sharding, ShardRange
from glovewire.common.model.tensor_layout import ROW, TABLE, ModelSpec
from glovewire.common.protocol import messages as m
from glovewire.common.transport.client import POLL_MS, RequestClient, check_reply
from glovewire.common.transport.curve_keys import ClientKeys

from ..training.loss_sums import LossSums

PIECE_BYTES = 32 << 20
IN_FLIGHT = 4
"""Number of unanswered pushes allowed per shard."""

OnError = Callable[[errors.GlovewireError], None]


@dataclass
class _PendingRows:
    """Rows being pulled, with the version of each shard's part; `missing` replies have not arrived."""

    rows: Array
    versions: list[int]
    missing: int = 0
    failure: errors.GlovewireError | None = None

    def take(self, shard: int, at: slice, reply: m.Message) -> None:
        """Store the rows of one reply of `shard` at rows `at`."""
        assert isinstance(reply, m.Rows)
        self.rows[at], self.versions[shard] = reply.values, reply.version
        self.missing -= 1

    def fail(self, error: errors.GlovewireError) -> None:
        """Record why the rows will not arrive."""
        self.failure = error


class TensorSession:
    """Session of a worker or observer (`role`) with every shard; `over` once a server has reported the end of the run.

    The error of a push is raised by the next call.
    """

    def __init__(
        self, addresses: Sequence[str], name: str, role: str, timeout_s: float, keys: ClientKeys | None = None
    ) -> None:
        self.over = self.joined = False
        self.versions = [m.NO_VERSION] * len(addresses)
        self._addresses, self._timeout_s = addresses, timeout_s
        self._sequences = [0] * len(addresses)
        self._in_flight: set[tuple[int, int]] = set()
        self._reports, self._sums = 0, LossSums()
        self._next_rows: _PendingRows | None = None
        self._failure: errors.GlovewireError | None = None
        self._client = RequestClient(addresses, name, "", timeout_s, keys)
        try:
            self.options = TrainingOptions.from_message(self._client.connect(role).options)
        except BaseException:
            self._client.close()
            raise

    def join(self, spec: ModelSpec | None, trained: Array | None, fixed: Array | None, wait_s: float) -> ModelSpec:
        """Join the model `spec` (None: the server's own), fill shards that have no values, and return the spec in use.

        Shard 0 is asked first and filled last, so that one worker sends all values. The others wait for them; raises
        DeadlineExceeded after `wait_s` seconds.
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
        """Return the rows of the trained (or fixed) tensors, shape (rows, ROW), once every shard has `after` updates.

        Trained rows were already requested by the last push, unless `after` is given.
        """
        pending = None
        if trained:
            pending, self._next_rows = self._next_rows, None
        if pending is None or after != m.NO_VERSION:
            pending = self._request_rows(trained=trained, after=after)
        while pending.missing and pending.failure is None:
            self._wait()
        if pending.failure is not None:
            self._fail(pending.failure)
            raise pending.failure
        if trained:
            self.versions = pending.versions
        return pending.rows

    def push(self, gradient: Array, rate: float) -> None:
        """Push a gradient of all trained rows, without copying it; wait while too many pushes are unanswered.

        Every shard gets a push, even one of no rows: all shards count the steps, and so agree on checkpoints and on the
        end. The same messages pull the rows of the next step, which arrive while the caller prepares its next batch.
        """
        self._raise_failure()
        self._next_rows = self._empty_rows(trained=True)
        for part in self._trained_parts():
            self._push("gradient", part, gradient[part.first : part.last], rate, self._next_rows)
        while len(self._in_flight) > IN_FLIGHT * len(self._addresses):
            self._wait()

    def assign(self, rows: Array, first: int) -> None:
        """Set the rows from row `first` on to `rows`."""
        self._raise_failure()
        for part in self._pieces(first, first + len(rows)):
            self._push("assign", part, rows[part.first - first : part.last - first])

    def count(self, examples: int, loss: float, norm: float) -> None:
        """Add a batch (mean loss, gradient norm) to the sums since the last report, and report when due."""
        self._sums.add(examples, loss * examples, 0.0, norm)
        if self._sums.is_due:
            self._report()

    def ask(self, shard: int, request: m.Message) -> m.Message:
        """Send one request and return its reply."""
        return self._client.ask(shard, request, self._timeout_s)

    def flush(self) -> None:
        """Report the remaining sums, and wait until every push is answered."""
        self._report()
        while self._in_flight:
            self._wait()
        self._raise_failure()

    def leave(self) -> None:
        """Report the remaining sums and leave the servers, unless a request failed before the end of the run."""
        if self._client.failed is None and (self._failure is None or self.over):
            self._report()
            self._client.part(RunEnd(Ending.LEFT))

    def close(self) -> None:
        """Close every socket; a second call does nothing."""
        self._client.close()

    def _create(self, shard: int, create: m.Create, wait_s: float) -> m.Created:
        replies: list[m.Message] = []
        self._client.send(shard, create, replies.append)
        deadline = time.monotonic() + wait_s
        while not replies:
            self._client.poll(POLL_MS)
            if time.monotonic() > deadline:
                raise errors.DeadlineExceeded(
                    f"no worker has brought values for the tensors of {self._addresses[shard]} within {wait_s:g} s"
                )
        created = check_reply(replies[0])
        assert isinstance(created, m.Created)
        return created

    def _fill(self, shard: int, trained: Array, fixed: Array) -> None:
        first, last = self._sharding.range(shard)
        for rows, at in ((trained, 0), (fixed, len(trained))):
            low, high = max(first, at), min(last, at + len(rows))
            if low < high:
                self.assign(rows[low - at : high - at], low)
        self.flush()

    def _push(
        self, operation: str, part: ShardRange, values: Array, rate: float = 0.0, pulled: _PendingRows | None = None
    ) -> None:
        """Push rows of one shard; with `pulled`, the same message also pulls them, into `pulled`."""
        self._sequences[part.shard] += 1
        version = m.NO_VERSION if pulled is None else self.versions[part.shard]
        sent = part.shard, self._sequences[part.shard]
        push = m.Push(
            TABLE, sent[1], operation, part.first, part.last, version, -1, rate, values, then_pull=pulled is not None
        )

        def arrived(reply: m.Message) -> None:
            self._in_flight.discard(sent)
            if pulled is not None and isinstance(reply, m.Rows):
                pulled.take(part.shard, slice(part.first, part.last), reply)

        def failed(error: errors.GlovewireError) -> None:
            only_rows = sent not in self._in_flight or isinstance(error, errors.RunOver)
            self._in_flight.discard(sent)
            (pulled.fail if pulled is not None and only_rows else self._fail)(error)

        self._client.wait_for_credit(values.nbytes)
        self._in_flight.add(sent)
        if pulled is not None:
            pulled.missing += 1
        self._send(part.shard, push, arrived, failed)

    def _trained_parts(self) -> Iterator[ShardRange]:
        """Yield one range per shard, which fits in a message: its trained rows, possibly none."""
        for shard in range(len(self._addresses)):
            first, last = self._sharding.range(shard)
            yield ShardRange(shard, first, max(first, min(last, self._spec.trained_rows)))

    def _pieces(self, first: int, last: int) -> Iterator[ShardRange]:
        """Yield rows [first, last) of the table as ranges that each lie on one shard and fit in a message."""
        most = PIECE_BYTES // (ROW * self._spec.dtype.itemsize)
        return (part for part, _ in self._sharding.split_small(first, last, most))

    def _empty_rows(self, *, trained: bool) -> _PendingRows:
        first, last = self._spec.part(trained)
        return _PendingRows(np.empty((last - first, ROW), self._spec.dtype), list(self.versions))

    def _request_rows(self, *, trained: bool, after: int) -> _PendingRows:
        first, last = self._spec.part(trained)
        rows = self._empty_rows(trained=trained)
        for part in self._trained_parts() if trained else self._pieces(first, last):
            arrived = partial(rows.take, part.shard, slice(part.first - first, part.last - first))
            rows.missing += 1
            self._send(part.shard, m.Pull(TABLE, part.first, part.last, after), arrived, rows.fail)
        return rows

    def _report(self) -> None:
        if self._sums.entries:
            self._reports += 1
            self._send(0, self._sums.report(self._reports, self._client.bytes_sent), self._recorded)
            self._sums = LossSums()

    def _recorded(self, reply: m.Message) -> None:
        self.over = self.over or (isinstance(reply, m.Recorded) and reply.stop)

    def _send(
        self, shard: int, request: m.Message, arrived: Callable[[m.Message], None], failed: OnError | None = None
    ) -> None:
        def settle(reply: m.Message) -> None:
            try:
                arrived(check_reply(reply))
            except errors.GlovewireError as error:
                (failed or self._fail)(error)

        self._client.send(shard, request, settle)

    def _fail(self, error: errors.GlovewireError) -> None:
        self.over = self.over or isinstance(error, errors.RunOver)
        self._failure = error

    def _wait(self) -> None:
        self._client.poll(POLL_MS)
        self._raise_failure()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
