"""Rows out and changes in: what a pull is answered with, what becomes of a push. No sockets, no clock, no files.

The core knows who asks and whether they may; here is what it does to the table, to versions and to what is kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from glovewire.common.errors import BadRequest
from glovewire.common.model.options import POLICIES, Mode, TrainingOptions
from glovewire.common.protocol import messages as m

from ..checkpoints.cuts import Cuts
from ..consistency.interface import Consistency
from ..consistency.minibatch import Admission, PendingPush
from ..consistency.staleness import StalenessHistogram, StalenessPolicy, combine
from ..limits import Credit
from ..sessions import Session
from ..table.hot_rows import HotRows
from ..table.table import Table
from .tensors import Tensors
from .undo_log import Before, Undo


class Exchange:
    """The traffic of one table; `counters` gets pulls and late; what was applied is watched.

    Of `options` only those count that say what becomes of gradients.
    """

    def __init__(
        self,
        table: Table,
        consistency: Consistency,
        options: TrainingOptions,
        cuts: Cuts,
        counters: Counter[str],
        tensors: Tensors | None = None,
    ) -> None:
        self._tensors = tensors
        self._table, self._consistency, self._cuts, self._counters = table, consistency, cuts, counters
        self._policy = StalenessPolicy(Mode.parse(options.staleness, POLICIES), table, by_row=options.clock == "row")
        self._mean = options.mean_gradient
        self.undo, self.credit = Undo(), Credit()
        self.staleness, self.heat = StalenessHistogram(), HotRows(table.first, table.shape[0])

    @property
    def ages(self) -> StalenessHistogram:
        """By how many changes the rows of gradients were behind."""
        return self._policy.ages

    def joined(self, worker: int) -> None:
        """A worker takes part from now on."""
        self._consistency.joined(worker)

    def left(self, worker: int, *, lost: bool) -> None:
        """A worker is gone: others may have waited for nobody else."""
        self._consistency.left(worker, lost=lost)
        self.credit.take_back(worker)
        if self._tensors is not None:
            self._tensors.left(worker)
        self._policy.forget(worker, lost=lost)
        self._carry_out()

    def begin_late(self, workers: Sequence[Session], since: float) -> int:
        """If the first of the workers came before `since`, begin without those still missing; how many they are."""
        missing = self._consistency.missing
        if not missing or not workers or min(each.joined for each in workers) >= since:
            return 0
        self._consistency.begin()
        self._carry_out()
        return missing

    def create(self, create: m.Create, session: Session) -> m.Created | None:
        """What to tell somebody who has a dense model, None while it has to wait."""
        if self._tensors is None:
            raise BadRequest("this server trains word vectors: start one with --objective tensors")
        return self._tensors.join(session, create)

    def check_pull(self, pull: m.Pull, session: Session) -> None:
        """Raise unless the rows are here; learn from a worker's which rounds are in every table whole."""
        self._known(pull.table)
        if self._tensors is not None:
            self._tensors.require_complete()
        self._table.check_pull(pull)
        if session.role == "worker":
            self.whole(pull.floor)

    def reported(self, lease: int, floor: int) -> None:
        """The block of a lease is in every table whole, and so are those of all rounds before `floor`."""
        self.undo.reported(lease)
        self.whole(floor)

    def whole(self, floor: int) -> None:
        """Every block of the rounds before `floor` is in every table whole."""
        self.undo.forget(floor)
        self._cuts.advance_floor(floor)

    def answer(self, pull: m.Pull, worker: int) -> m.Rows | None:
        """The rows of a pull that `check_pull` has passed, None while it has to wait."""
        if not self._consistency.may_pull(pull, worker):
            return None
        version = self._consistency.version(pull.first)
        if self._tensors is not None and version < pull.version:
            return None
        self._counters["pulls"] += 1
        if self._cuts.in_order and pull.version not in (m.NO_VERSION, version):
            return m.Rows(pull.version, self.undo.read(pull.first, pull.last, pull.version))
        values = self._table.read(pull)
        if (versions := self._table.versions_of(pull)) is None:
            return m.Rows(version, values)
        if self._policy.measures:
            self._policy.pulled(worker, self._table.local_rows(pull), version, values)
        return m.Rows(version, values, self._consistency.gradients, versions)

    def take(self, push: m.Push, worker: int) -> m.Applied:
        """Take a push that was never seen before, and carry out what is due; raises when it may not be taken."""
        self._known(push.table)
        self.whole(push.floor)
        if self._tensors is not None:
            push = self._tensors.widened(push)
        self._table.check_push(push)
        if self._tensors is not None and not self._tensors.is_step(push):
            self._table.apply(push)
            self._tensors.assigned(push)
            return self._applied(push, worker)
        if push.operation == "gradient":
            self._policy.check(push, self._consistency.version(push.first))
        fate = self._consistency.admit(push, worker)
        if fate is Admission.NEW and push.operation == "gradient":
            self._policy.admitted(worker, push)
        self._counters["late"] += fate is Admission.LATE
        self._carry_out()
        return self._applied(push, worker, repeated=fate is Admission.REPEATED, late=fate is Admission.LATE)

    def again(self, push: m.Push, worker: int) -> m.Applied:
        """The answer to a push that this session has made before."""
        return self._applied(push, worker, repeated=True)

    def _applied(self, push: m.Push, worker: int, *, repeated: bool = False, late: bool = False) -> m.Applied:
        """The answer to a push. Where rows may be the only one that is sent, it promises nothing else than before."""
        credit = self.credit.of(worker) if push.then_pull else self.credit.grant(worker)
        return m.Applied(push.sequence, self._consistency.version(push.first), repeated, late, credit)

    def _known(self, table: str) -> None:
        if table != self._table.name:
            raise BadRequest(f"no table is called {table[:40]!r}")

    def _carry_out(self) -> None:
        while group := self._consistency.next_update():
            for arrived in group:
                self._watch(arrived.push)
            if group[0].push.operation == "gradient":
                self._step(group)
            else:
                self._change(group[0].push)
            if self._tensors is not None:
                self._cuts.updates_applied(self._consistency.version(0))
            elif group[0].push.operation == "gradient":
                self._cuts.updates_applied(self._consistency.gradients)

    def _step(self, group: Sequence[PendingPush]) -> None:
        """One step of the optimizer for all gradients of a group, at the rate of the newest."""
        version = self._consistency.version(0) - 1
        parts = [self._policy.weigh(arrived, version) for arrived in group]
        self._policy.step(combine(parts, mean=self._mean), min(arrived.push.rate for arrived in group))

    def _change(self, push: m.Push) -> None:
        if self._cuts.in_order:
            self.undo.keep(Before(push.lease, push.first, push.version, self._table.replace(push)))
        else:
            self._table.apply(push)
        self._cuts.push_applied(push)

    def _watch(self, push: m.Push) -> None:
        """Count a push that is about to be applied; without a version nobody can tell how stale it is."""
        if push.version != m.NO_VERSION:
            self.staleness.count(self._consistency.version(push.first) - 1 - push.version)
        self.heat.count(push)
