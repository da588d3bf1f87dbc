"""Keep one session with the shards of a dense model: join, pull and push rows, report.

`worker.dense.client` maps tensor names to rows, and creates a new session after a restart of a server.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from glovewire.common import errors
from glovewire.common.array_types import Array
from glovewire.common.client.pending import Pending, expect, take_done
from glovewire.common.endings import Ending, RunEnd
from glovewire.common.model.options import TrainingOptions
from glovewire.common.model.sharding import Sharding, ShardRange
from glovewire.common.model.tensor_layout import ROW, TABLE, ModelSpec
from glovewire.common.protocol import messages as m
from glovewire.common.transport.client import LEAVING_S, POLL_MS, RequestClient
from glovewire.common.transport.curve_keys import ClientKeys

from ..stores.interface import Pulled
from ..training.loss_sums import LossSums

PIECE_BYTES = 32 << 20
IN_FLIGHT = 4
"""Number of unanswered pushes allowed per shard."""


class TensorSession:
    """Session of a worker or observer (`role`) with every shard; `over` once a server has reported the end of the run.

    The error of a push is raised by the next call. `left` is True once the servers have been told that it has left.
    """

    def __init__(
        self, addresses: Sequence[str], name: str, role: str, timeout_s: float, keys: ClientKeys | None = None
    ) -> None:
        self.over = self.joined = self.left = False
        self.clocks = dict.fromkeys(range(len(addresses)), m.NO_VERSION)
        self._addresses, self._timeout_s = addresses, timeout_s
        self._sequences = [0] * len(addresses)
        self._unanswered: list[Pending[Any]] = []
        self._reports = 0
        self._trains = role == "worker"
        self._next_rows: Pending[Pulled] | None = None
        self._failure: errors.GlovewireError | None = None
        self._client = RequestClient(addresses, name, "", timeout_s, keys)
        self._sums = LossSums(self._client.now())
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
            try:
                created = self._create(shard, m.Create(None if spec is None else spec.to_json()), wait_s)
            except errors.RunOver as error:  # shard 0 may not know yet, and would then let this worker leave at once
                self._fail(error)
                raise
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
        while not pending.done:
            self._wait()
        if pending.error is not None:
            self._fail(pending.error)
        pulled = pending.get()
        if trained:
            self.clocks = pulled.clocks
        return pulled.values

    def push(self, gradient: Array, rate: float) -> None:
        """Push a gradient of all trained rows, without copying it; wait while too many pushes are unanswered.

        Every shard gets a push, even one of no rows: all shards count the steps, and so agree on checkpoints and on the
        end. The same messages pull the rows of the next step, which arrive while the caller prepares its next batch.
        """
        self._raise_failure()
        self._next_rows = self._empty_rows(trained=True)
        for part in self._trained_parts():
            self._push("gradient", part, gradient[part.first : part.last], rate, self._next_rows)
        while len(self._unanswered) > IN_FLIGHT * len(self._addresses):
            self._wait()

    def assign(self, rows: Array, first: int) -> None:
        """Set the rows from row `first` on to `rows`."""
        self._raise_failure()
        for part in self._pieces(first, first + len(rows)):
            self._push("assign", part, rows[part.first - first : part.last - first])

    def count(self, examples: int, loss: float, norm: float) -> None:
        """Add a batch (mean loss, gradient norm) to the sums since the last report, and report when due."""
        self._sums.add(examples, loss * examples, 0.0, norm)
        if self._sums.is_due(self._client.now()):
            self._report()

    def ask(self, shard: int, request: m.Message) -> m.Message:
        """Send one request and return its reply."""
        return self._client.ask(shard, request, self._timeout_s)

    def flush(self) -> None:
        """Report the remaining sums, and wait until every push is answered."""
        self._report()
        while self._unanswered:
            self._wait()
        self._raise_failure()

    def leave(self, *, over: bool = False) -> None:
        """Report the remaining sums and leave the servers, unless a request failed before the end of the run.

        `over`: a server has refused a request because the run is over. A worker then waits until the tensors of all
        shards are on disk; UnknownSession if a shard was restarted before that and needs the worker again.
        """
        self._settle()
        self.over = self.over or over
        if not self.left and self._client.failed is None and (self._failure is None or self.over):
            self._report()
            self._client.part(self._ending() if self.over and self._trains else RunEnd(Ending.LEFT), LEAVING_S)
            self.left = True

    def _ending(self) -> RunEnd:
        """Return how the run has ended, as shard 0 says when it refuses further work."""
        if isinstance(self._failure, errors.RunOver):
            return self._failure.end
        with contextlib.suppress(errors.DeadlineExceeded):
            try:
                self._client.ask(0, m.Pull(TABLE, 0, 0, m.NO_VERSION), LEAVING_S)
            except errors.RunOver as error:
                return error.end
        return RunEnd(Ending.LEFT)

    def close(self) -> None:
        """Close every socket; a second call does nothing."""
        self._client.close()

    def _create(self, shard: int, create: m.Create, wait_s: float) -> m.Created:
        created: Pending[m.Message] = Pending()
        self._client.request(shard, create, created)
        late = f"no worker has brought values for the tensors of {self._addresses[shard]} within {wait_s:g} s"
        return expect(self._client.wait_for(shard, created, wait_s, late), m.Created)

    def _fill(self, shard: int, trained: Array, fixed: Array) -> None:
        first, last = self._sharding.range(shard)
        for rows, at in ((trained, 0), (fixed, len(trained))):
            low, high = max(first, at), min(last, at + len(rows))
            if low < high:
                self.assign(rows[low - at : high - at], low)
        self.flush()

    def _push(
        self, operation: str, part: ShardRange, values: Array, rate: float = 0.0, rows: Pending[Pulled] | None = None
    ) -> None:
        """Push rows of one shard; with `rows`, the same message also pulls them."""
        self._sequences[part.shard] += 1
        version = m.NO_VERSION if rows is None else self.clocks[part.shard]
        push = m.Push(
            TABLE, self._sequences[part.shard], operation, part.first, part.last, version, -1, rate, values,
            then_pull=rows is not None, worker=self._client.worker,
        )  # fmt: skip
        applied: Pending[Any] = Pending()
        self._unanswered.append(applied)
        if rows is None:
            self._client.request(part.shard, push, applied)
            return
        assert rows.value is not None
        rows.missing += 1
        take = partial(rows.value.take, part.shard, slice(part.first, part.last))
        self._client.push_and_pull(part.shard, push, applied, applied.set, rows, take)

    def _trained_parts(self) -> Iterator[ShardRange]:
        """Yield each shard's trained rows, possibly none, as one range, which fits in a message."""
        for shard in range(len(self._addresses)):
            first, last = self._sharding.range(shard)
            yield ShardRange(shard, first, max(first, min(last, self._spec.trained_rows)))

    def _pieces(self, first: int, last: int) -> Iterator[ShardRange]:
        """Yield rows [first, last) of the table as ranges that each lie on one shard and fit in a message."""
        most = PIECE_BYTES // (ROW * self._spec.dtype.itemsize)
        return (part for part, _ in self._sharding.split_small(first, last, most))

    def _empty_rows(self, *, trained: bool) -> Pending[Pulled]:
        first, last = self._spec.part(trained)
        return Pending(Pulled(np.empty((last - first, ROW), self._spec.dtype), dict(self.clocks)), 0)

    def _request_rows(self, *, trained: bool, after: int) -> Pending[Pulled]:
        first, _ = self._spec.part(trained)
        rows = self._empty_rows(trained=trained)
        assert rows.value is not None
        for part in self._trained_parts() if trained else self._pieces(*self._spec.part(trained)):
            take = partial(rows.value.take, part.shard, slice(part.first - first, part.last - first))
            rows.missing += 1
            self._client.request(part.shard, m.Pull(TABLE, part.first, part.last, after), rows, take)
        return rows

    def _report(self) -> None:
        if self._sums.entries:
            self._reports += 1
            recorded: Pending[Any] = Pending()
            self._unanswered.append(recorded)
            report = self._sums.report(self._client.now(), self._reports, self._client.bytes_sent)
            self._client.request(0, replace(report, worker=self._client.worker), recorded, self._recorded)
            self._sums = LossSums(self._client.now())

    def _recorded(self, reply: m.Message) -> None:
        self.over = self.over or (isinstance(reply, m.Recorded) and reply.stop)

    def _fail(self, error: errors.GlovewireError) -> None:
        self.over = self.over or isinstance(error, errors.RunOver)
        self._failure = error

    def _wait(self) -> None:
        self._client.poll(POLL_MS)
        self._raise_failure()

    def _settle(self) -> None:
        """Forget answered requests, and keep the error of a refused one."""
        for each in take_done(self._unanswered):
            if each.error is not None:
                self._fail(each.error)

    def _raise_failure(self) -> None:
        self._settle()
        if self._failure is not None:
            raise self._failure
