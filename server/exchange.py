"""Rows out and changes in: what a pull is answered with, what becomes of a push. No sockets, no clock, no files.

The core knows who asks and whether they may; here is what it does to the table, to versions and to what is kept.
"""

from __future__ import annotations

from collections import Counter

from common import messages as m

from .consistency import Consistency
from .cuts import Cuts
from .heat import Heat
from .staleness import Histogram
from .table import Table
from .undo import Before, Undo


class Exchange:
    """The traffic of one table; `counters` gets pulls; what was applied is watched."""

    def __init__(self, table: Table, consistency: Consistency, cuts: Cuts, counters: Counter[str]) -> None:
        self._table, self._consistency, self._cuts, self._counters = table, consistency, cuts, counters
        self.undo = Undo()
        self.staleness, self.heat = Histogram(), Heat(table.first, len(table.values))

    def check_pull(self, pull: m.Pull) -> None:
        """Raise unless the rows are here; learn from it which rounds are in every table whole."""
        self._table.check_pull(pull)
        self.undo.forget(pull.floor)

    def answer(self, pull: m.Pull) -> m.Rows | None:
        """The rows of a pull that `check_pull` has passed, None while it has to wait."""
        if not self._consistency.may_pull(pull):
            return None
        self._counters["pulls"] += 1
        version = self._consistency.version(pull.first)
        if self._cuts.in_order and pull.version not in (m.NO_VERSION, version):
            return m.Rows(pull.version, self.undo.read(pull.first, pull.last, pull.version))
        return m.Rows(version, self._table.read(pull))

    def take(self, push: m.Push) -> m.Applied:
        """Carry out a push that was never seen before; raises when it may not be."""
        self._table.check(push)
        repeated = self._consistency.is_repeat(push)
        if not repeated:
            self._watch(push)
            if self._cuts.in_order:
                self.undo.keep(Before(push.lease, push.first, push.version, self._table.copy(push)))
            self._table.write(push)
            self._consistency.applied(push)
            self._cuts.offer(push)
        return m.Applied(push.sequence, self._consistency.version(push.first), repeated)

    def again(self, push: m.Push) -> m.Applied:
        """The answer to a push that this session has made before."""
        return m.Applied(push.sequence, self._consistency.version(push.first), True)

    def _watch(self, push: m.Push) -> None:
        """Count a push that is about to be applied; without a version nobody can tell how stale it is."""
        if push.version != m.NO_VERSION:
            self.staleness.count(self._consistency.version(push.first) - push.version)
        self.heat.count(push)
