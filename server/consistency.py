"""May this pull be answered now, may this push be applied? One small class a mode; decides only, no clock, no I/O.

Pulls that may not be answered are parked by the core and asked about again after every push.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from common.errors import BadRequest, LeaseLost, UsageError
from common.messages import NO_VERSION, Pull, Push
from common.options import TrainingOptions


class Consistency(Protocol):
    """What the core asks a mode."""

    def may_pull(self, pull: Pull) -> bool:
        """Whether to answer now."""

    def is_repeat(self, push: Push) -> bool:
        """Whether this change is in the table already; raises if it may not be applied at all."""

    def applied(self, push: Push) -> None:
        """The push is in the table now."""

    def version(self, first: int) -> int:
        """Version to report with rows that begin at `first`."""


class ExclusiveBlocks:
    """Every partition goes through the rounds one by one: a pull names the round that it needs, a push ends it.

    A push for a round that is over repeats what another worker did under a lease that had moved: training a block is
    a function of its rows, so it is the same bytes and is not applied again.

    `bounds` are those of the whole table, cut to the rows of this shard: a push must bring all of a partition that
    the shard has, because it ends the round.
    """

    def __init__(self, bounds: npt.NDArray[np.int64], start: int) -> None:
        self.bounds = bounds
        self.rounds = np.full(len(bounds) - 1, start, np.int64)

    def partition(self, first: int, last: int) -> int:
        """The partition that holds rows [first, last); BadRequest when they are none, not here, or of several."""
        if not self.bounds[0] <= first < last <= self.bounds[-1]:
            raise BadRequest(f"rows {first}..{last} are not on this shard")
        partition = int(np.searchsorted(self.bounds, first, "right")) - 1
        if last > self.bounds[partition + 1]:
            raise BadRequest("in exclusive order a push or pull stays inside one partition")
        return partition

    def may_pull(self, pull: Pull) -> bool:
        """Yes once the partition has reached the version; without a version at once."""
        if pull.version == NO_VERSION:
            return True
        if pull.rows is not None:
            raise BadRequest("in exclusive order rows by number have no version")
        return bool(self.rounds[self.partition(pull.first, pull.last)] >= pull.version)

    def is_repeat(self, push: Push) -> bool:
        """Assignments of a whole partition only, and only from the round that it is in."""
        if push.operation != "assign" or push.rows is not None:
            raise BadRequest("in exclusive order a push assigns the rows of one partition")
        partition = self.partition(push.first, push.last)
        if (push.first, push.last) != (self.bounds[partition], self.bounds[partition + 1]):
            raise BadRequest("in exclusive order a push brings every row of a partition that is on this shard")
        current = self.rounds[partition]
        if push.version > current:
            raise LeaseLost(f"the rows are at version {current}, the push comes from version {push.version}")
        return bool(push.version < current)

    def applied(self, push: Push) -> None:
        """The partition enters its next round."""
        self.rounds[self.partition(push.first, push.last)] += 1

    def version(self, first: int) -> int:
        """Rounds that the partition has been through; NO_VERSION for rows that are not here."""
        if not self.bounds[0] <= first < self.bounds[-1]:
            return NO_VERSION
        return int(self.rounds[self.partition(first, first + 1)])


class Asynchronous:
    """Everything at once, in the order of arrival; the version counts pushes to this shard."""

    def __init__(self) -> None:
        self.pushes = 0

    def may_pull(self, pull: Pull) -> bool:
        """Always."""
        del pull
        return True

    def is_repeat(self, push: Push) -> bool:
        """Never: sequences have told repeats apart before."""
        if push.operation not in ("add", "gradient"):
            raise BadRequest("in asynchronous mode a push adds differences or gradients")
        return False

    def applied(self, push: Push) -> None:
        """One more."""
        del push
        self.pushes += 1

    def version(self, first: int) -> int:
        """Pushes so far."""
        del first
        return self.pushes


def make(options: TrainingOptions, bounds: npt.NDArray[np.int64], start: int) -> Consistency:
    """The mode that the options ask for; `bounds` are the partitions' first rows, `start` the round to begin with."""
    if options.consistency == "exclusive":
        return ExclusiveBlocks(bounds, start)
    if options.consistency == "async":
        return Asynchronous()
    raise UsageError(f"no consistency is called {options.consistency!r}")
