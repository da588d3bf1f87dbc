"""Carry out pulls and pushes: read rows for a pull, and decide what becomes of a push and apply it. No I/O.

The core checks the sender; this module reads and changes the table, versions, undo log and checkpoint cuts.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from glovewire.common.errors import BadRequest
from glovewire.common.model.options import POLICIES, Mode, TrainingOptions
from glovewire.common.protocol import messages as m

from ..checkpoints.cuts import Cuts
from ..consistency.blocks import ExclusiveBlocks
from ..consistency.interface import OBSERVER, Consistency
from ..consistency.minibatch import Admission, PendingPush
from ..consistency.staleness import StalenessHistogram, StalenessPolicy, combine
from ..leases.pushes import LeasedPushes
from ..limits import Credit
from ..sessions import Session
from ..table.hot_rows import HotRows
from ..table.table import Table
from .tensors import Tensors
from .undo_log import UndoLog
from .waiting import Condition, Round, WaitingRequests


class PullPush:
    """Serves the pulls and pushes of one table; after a change, wakes the requests in `waiting` that it may allow.

    Counts `pulls` and `late` gradients in `counters`, and the staleness and hot rows of the pushes that are applied.
    Reads from `options` only how gradients are combined and weighted, and how rows are sent. `leased` checks the pushes
    of block training.
    """

    def __init__(
        self,
        table: Table,
        consistency: Consistency,
        options: TrainingOptions,
        cuts: Cuts,
        counters: Counter[str],
        waiting: WaitingRequests,
        tensors: Tensors | None = None,
        leased: LeasedPushes | None = None,
    ) -> None:
        self._table, self._consistency, self._cuts, self._counters = table, consistency, cuts, counters
        self._exclusive = consistency if isinstance(consistency, ExclusiveBlocks) else None
        self._waiting, self._tensors, self._leased = waiting, tensors, leased
        self._policy = StalenessPolicy(Mode.parse(options.staleness, POLICIES), table, by_row=options.clock == "row")
        self._bfloat16 = options.sends_bfloat16
        self._mean, self._most_updates = options.mean_gradient, options.steps
        self.undo_log, self.credit = UndoLog(), Credit()
        self.staleness, self.hot_rows = StalenessHistogram(), HotRows(table.first, table.rows)
        self.ages = self._policy.ages
        """Ages of the rows of gradients: how often each was changed since it was pulled."""
        self.staleness_of: dict[int, int] = {}
        """By worker, the staleness of its last applied push."""

    def joined(self, worker: int) -> None:
        """Count a worker in, and wake the pulls that may have waited for it."""
        self._consistency.joined(worker)
        self._waiting.wake(Condition.ROWS)

    def left(self, worker: int, *, lost: bool) -> None:
        """Stop waiting for a worker that left or was `lost`, and apply the pushes that waited only for it."""
        self._consistency.left(worker, lost=lost)
        self.credit.take_back(worker)
        self.staleness_of.pop(worker, None)
        if self._tensors is not None:
            self._tensors.left(worker)
            self._waiting.wake(Condition.VALUES)
        self._policy.forget(worker, lost=lost)
        self._apply_due()
        self._waiting.wake(Condition.ROWS)

    def begin_late(self, workers: Sequence[Session], since: float) -> int:
        """Start training without workers that have not joined, if the earliest present one joined before `since`.

        Returns how many are missing, 0 if nothing was started.
        """
        missing = self._consistency.missing
        if not missing or not workers or min(each.joined for each in workers) >= since:
            return 0
        self._consistency.begin()
        self._apply_due()
        self._waiting.wake(Condition.ROWS)
        return missing

    def create(self, create: m.Create, session: Session) -> m.Created | None:
        """Return the reply to a client of a dense model, None while it must wait; BadRequest for word vectors."""
        if self._tensors is None:
            raise BadRequest("this server trains word vectors: start one with --objective tensors")
        before = self._tensors.complete
        created = self._tensors.join(session, create)
        if self._tensors.complete and not before:
            self._waiting.wake(Condition.VALUES)
        return created

    def check_pull(self, pull: m.Pull) -> None:
        """Raise unless this shard can serve the pull."""
        self._check_request(pull)
        if self._tensors is not None:
            self._tensors.require_complete()
        self._table.check_pull(pull)
        if self._exclusive is not None and pull.version != m.NO_VERSION and pull.bfloat16 != self._bfloat16:
            form = "bfloat16" if self._bfloat16 else "float32"
            raise BadRequest(f"in this training, rows with a version are sent as {form}")

    def rounds_complete(self, low_water: int) -> None:
        """Record that every round before `low_water` is in every table."""
        if self._leased is not None:
            self._leased.advance(low_water)
        self.undo_log.drop_before(low_water)
        self._cuts.advance_low_water(low_water)

    def condition(self, pull: m.Pull) -> Condition | Round:
        """Return what a pull waits for when `read` returned None: ROWS, or in exclusive order a round."""
        if self._exclusive is None or pull.version == m.NO_VERSION:
            return Condition.ROWS
        partition = self._exclusive.partition(pull.first, pull.last)
        return Round(partition, self._exclusive.order.next_visit(partition, pull.version))

    def read(self, pull: m.Pull, worker: int) -> m.Rows | None:
        """Return the rows of a pull that has passed `check_pull`, None while it must wait."""
        if not self._consistency.may_pull(pull, worker):
            return None
        version = self._consistency.version(pull.first)
        if self._tensors is not None and version < pull.version:
            return None
        self._counters["pulls"] += 1
        values = self._table.read(pull)
        if self._exclusive is not None and pull.version != m.NO_VERSION:
            partition = self._exclusive.partition(pull.first, pull.last)
            rounds = chain(self._exclusive.visits(partition, pull.version), [version])  # the last one may have begun
            return m.Rows(pull.version, self.undo_log.restore(pull, partition, rounds, values))
        if (versions := self._table.versions_of(pull)) is None:
            return m.Rows(version, values)
        if self._policy.measures and worker != OBSERVER:
            self._policy.pulled(worker, self._table.local_rows(pull), version, values)
        return m.Rows(version, values, self._consistency.gradients, versions)

    def apply(self, push: m.Push, worker: int) -> m.Applied:
        """Admit a push that is no repeat, apply every push now due, and return the reply; raise if it is invalid."""
        self._check_request(push)
        if self._leased is not None:
            self._leased.check(push, worker)
            self.rounds_complete(push.low_water)
        if self._tensors is not None:
            push = self._tensors.widen(push)
        self._table.check_push(push)
        if self._tensors is not None and not self._tensors.is_step(push):
            self._table.apply(push)
            if self._tensors.assigned(push):
                self._waiting.wake(Condition.VALUES)
            return self.applied(push, worker)
        if self._tensors is not None and 0 < self._most_updates <= self._consistency.version(0):
            self._counters["late"] += 1  # a gradient that was on its way when the last update was made
            return self.applied(push, worker, late=True)
        if push.operation == "gradient":
            self._policy.check(push, self._consistency.version(push.first))
        fate = self._consistency.admit(push, worker)
        if fate is Admission.NEW and push.operation == "gradient":
            self._policy.admitted(worker, push)
        self._counters["late"] += fate is Admission.LATE
        self._apply_due()
        if self._leased is not None:
            self._leased.record(push)
        return self.applied(push, worker, repeated=fate is Admission.REPEATED, late=fate is Admission.LATE)

    def applied(self, push: m.Push, worker: int, *, repeated: bool = False, late: bool = False) -> m.Applied:
        """Build the `Applied` reply; if `Rows` may replace it, repeat the last credit, because it may never be seen."""
        credit = self.credit.of(worker) if push.then_pull else self.credit.grant(worker)
        receipt = 0 if self._leased is None else self._leased.receipt(push)
        return m.Applied(push.sequence, self._consistency.version(push.first), repeated, late, credit, receipt)

    def _check_request(self, request: m.Pull | m.Push) -> None:
        if request.table != self._table.name:
            raise BadRequest(f"no table is called {request.table[:40]!r}")
        if request.version < m.NO_VERSION:
            raise BadRequest(f"a version is at least 0, or {m.NO_VERSION} for none, not {request.version}")

    def _apply_due(self) -> None:
        while group := self._consistency.next_update():
            for arrived in group:
                self._measure(arrived)
            first = group[0].push
            if first.operation == "gradient":
                self._step(group)
            else:
                self._change(first)
            if self._tensors is not None:
                self._cuts.updates_applied(self._consistency.version(0))
            elif first.operation == "gradient":
                self._cuts.updates_applied(self._consistency.gradients)
            if self._waiting:
                blocks, row = self._exclusive, first.first
                reached = Condition.ROWS if blocks is None else Round(blocks.partition_at(row), blocks.version(row))
                self._waiting.wake(reached)

    def _step(self, group: Sequence[PendingPush]) -> None:
        """Combine the gradients of a group and take one optimizer step with them, at the lowest of their rates."""
        version = self._consistency.version(0) - 1
        parts = [self._policy.weigh(arrived, version) for arrived in group]
        self._policy.step(combine(parts, mean=self._mean), min(arrived.push.rate for arrived in group))

    def _change(self, push: m.Push) -> None:
        if self._exclusive is not None:
            partition = self._exclusive.partition(push.first, push.last)
            self._undo_partial_visit(partition, push)
            self.undo_log.keep(partition, push, *self._table.exchange(push))
            if push.operation == "add" and self._exclusive.rounds[partition] > push.version:
                self.undo_log.drop_low(partition, push.version)
        else:
            self._table.apply(push)
        self._cuts.push_applied(push)

    def _undo_partial_visit(self, partition: int, push: m.Push) -> None:
        """Restore those rows of a push to which a lost worker has added in the same round."""
        if push.operation == "add" and self.undo_log.overlapping(partition, push):
            rows = self._table.read(m.Pull(push.table, push.first, push.last, push.version, push.rows))
            before = self.undo_log.restore(push, partition, [push.version], rows)
            self._table.apply(replace(push, operation="assign", values=before))

    def _measure(self, arrived: PendingPush) -> None:
        """Count the rows and, if it names a version, the staleness of a push that is about to be applied."""
        push = arrived.push
        if push.version != m.NO_VERSION:
            passed = 0 if self._exclusive is not None else self._consistency.version(push.first) - 1 - push.version
            self.staleness.count(passed)
            self.staleness_of[arrived.worker] = max(passed, 0)
        self.hot_rows.count(push)
