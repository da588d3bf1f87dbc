"""Order the pulls and pushes of block training: exclusively by rounds, or not at all. No I/O, no clock."""

import numpy as np

from glovewire.common.array_types import Indices
from glovewire.common.errors import BadRequest, LeaseLost
from glovewire.common.protocol.messages import NO_VERSION, Pull, Push

from .minibatch import Admission, Asynchronous, PendingPush


class PartitionBounds:
    """The partitions of the whole table: `bounds` (partitions + 1,), clipped to the rows of this shard."""

    bounds: Indices

    def partition(self, first: int, last: int) -> int:
        """Return the partition of rows [first, last); BadRequest if empty, of several partitions, or not here."""
        if not self.bounds[0] <= first < last <= self.bounds[-1]:
            raise BadRequest(f"rows {first}..{last} are not on this shard")
        partition = self.partition_at(first)
        if last > self.bounds[partition + 1]:
            raise BadRequest("in block training a push, or a pull with a version, stays inside one partition")
        return partition

    def partition_at(self, row: int) -> int:
        """Return the partition of a row; no partition's number if the row is not on this shard."""
        return int(np.searchsorted(self.bounds, row, "right")) - 1


class ExclusiveBlocks(PartitionBounds):
    """Takes every partition through its rounds in order: a pull names the round it needs, a push ends the round.

    A push for an earlier round is a repeat: its lease had passed to another worker, which has trained the block.
    Training a block is a function of its rows, so both pushes bring the same bytes, and the second is not applied.

    A push must bring all rows that the shard has of a partition, because it ends the round.
    """

    missing = gradients = steps = 0

    def __init__(self, bounds: Indices, start: int) -> None:
        self.bounds = bounds
        self.rounds = np.full(len(bounds) - 1, start, np.int64)
        self._admitted: list[PendingPush] = []

    def begin(self) -> None:
        """Do nothing: this mode waits for no worker."""

    def joined(self, worker: int) -> None:
        """Do nothing: the order is that of the blocks, whichever worker trains them."""

    def left(self, worker: int, *, lost: bool) -> None:
        """Do nothing: the schedule gives the worker's blocks to others."""

    def may_pull(self, pull: Pull, _: int) -> bool:
        """Return whether the partition has reached the pull's version, if it names one."""
        if pull.version == NO_VERSION:
            return True
        if pull.rows is not None:
            raise BadRequest("in exclusive order rows by number have no version")
        return bool(self.rounds[self.partition(pull.first, pull.last)] >= pull.version)

    def admit(self, push: Push, worker: int) -> Admission:
        """Queue a push that assigns a partition at its current round; from an earlier round it is REPEATED."""
        if push.operation != "assign" or push.rows is not None:
            raise BadRequest("in exclusive order a push assigns the rows of one partition")
        partition = self.partition(push.first, push.last)
        if (push.first, push.last) != (self.bounds[partition], self.bounds[partition + 1]):
            raise BadRequest("in exclusive order a push brings every row of a partition that is on this shard")
        current = self.rounds[partition]
        if push.version > current:
            raise LeaseLost(f"the rows are at version {current}, the push comes from version {push.version}")
        if push.version < current:
            return Admission.REPEATED
        self._admitted.append(PendingPush(worker, push))
        return Admission.NEW

    def next_update(self) -> list[PendingPush]:
        """Return the next admitted push; its partition enters the next round."""
        if not self._admitted:
            return []
        pending = self._admitted.pop(0)
        self.rounds[self.partition(pending.push.first, pending.push.last)] += 1
        return [pending]

    def version(self, first: int) -> int:
        """Return how many rounds the partition of row `first` has completed, NO_VERSION if it is not here."""
        if not self.bounds[0] <= first < self.bounds[-1]:
            return NO_VERSION
        return int(self.rounds[self.partition(first, first + 1)])


class AsynchronousBlocks(PartitionBounds, Asynchronous):
    """Adds each trained block's change to the rows as it arrives; no worker waits.

    `rounds[p]`: every block of earlier rounds is in the table.
    """

    operations = ("add",)

    def __init__(self, bounds: Indices, start: int) -> None:
        super().__init__()
        self.bounds = bounds
        self.rounds = np.full(len(bounds) - 1, start, np.int64)

    def advance_low_water(self, low_water: int) -> bool:
        """Record that every block of the rounds before `low_water` is in the table; return whether that is new."""
        advanced = low_water > self.rounds[0]
        self.rounds[:] = max(low_water, self.rounds[0])
        return bool(advanced)
