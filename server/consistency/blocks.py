"""Order the pulls and pushes of block training: exclusively by rounds, or not at all. No I/O, no clock."""

from collections.abc import Iterator

import numpy as np

from glovewire.common.array_types import Indices
from glovewire.common.errors import BadRequest, LeaseLost
from glovewire.common.model.bfloat16 import BFLOAT16
from glovewire.common.model.rounds import Rounds
from glovewire.common.protocol.messages import NO_VERSION, Pull, Push

from .minibatch import Admission, Asynchronous, PendingPush


class Partitioned(Asynchronous):
    """Knows the partitions of the whole table: `bounds` (partitions + 1,), clipped to this shard; and their `order`."""

    def __init__(self, bounds: Indices, order: Rounds) -> None:
        super().__init__()
        self.bounds, self.order = bounds, order

    def partition(self, first: int, last: int) -> int:
        """Return the partition of rows [first, last); BadRequest if empty, of several partitions, or not here."""
        if not self.bounds[0] <= first < last <= self.bounds[-1]:
            raise BadRequest(f"rows {first}..{last} are not on this shard")
        partition = self.partition_at(first)
        if last > self.bounds[partition + 1]:
            raise BadRequest("in block training a push, or a pull with a version, stays inside one partition")
        return partition

    def require_inside(self, request: Pull | Push) -> None:
        """Raise BadRequest unless the row numbers of a request are ascending, distinct and in its range."""
        rows = request.rows
        if rows is None or not len(rows):
            return
        if not (request.first <= rows[0] and rows[-1] < request.last and (np.diff(rows) > 0).all()):
            raise BadRequest("in block training row numbers are ascending, distinct and in the range of the request")

    def here(self) -> list[int]:
        """Return the partitions that have rows on this shard."""
        found: list[int] = np.flatnonzero(np.diff(self.bounds)).tolist()
        return found

    def partition_at(self, row: int) -> int:
        """Return the partition of a row; no partition's number if the row is not on this shard."""
        return int(np.searchsorted(self.bounds, row, "right")) - 1


class ExclusiveBlocks(Partitioned):
    """Takes every partition through its rounds in order: a pull names the round it needs, the last push ends its visit.

    A round visits only some partitions; `rounds[p]` is the next round that visits partition p, `begun[p]` the newest of
    which a push has arrived. A push for an earlier round is a repeat: its lease had passed to another worker, which has
    trained the strip. Training a strip is a function of its rows, so both pushes bring the same bytes, and the second
    is not applied.

    The pushes of a visit bring ranges of rows, in order, that make up all rows that the shard has of the partition
    (`leases.pushes` checks it); rows of such a range that a push leaves out are unchanged. With `bfloat16` a push adds
    differences, otherwise it assigns rows. No worker is waited for here: strips have holders, see `leases.patience`.
    """

    def __init__(self, bounds: Indices, start: int, order: Rounds, *, bfloat16: bool = False) -> None:
        super().__init__(bounds, order)
        self._bfloat16 = bfloat16
        partitions = range(len(bounds) - 1)
        self.rounds = np.array([order.next_visit(partition, start) for partition in partitions], np.int64)
        self.begun = np.full(len(partitions), start - 1, np.int64)

    def may_pull(self, pull: Pull, _worker: int) -> bool:
        """Return whether the partition has reached the pull's version, if it names one."""
        if pull.version == NO_VERSION:
            return True
        partition = self.partition(pull.first, pull.last)
        self.require_inside(pull)
        return bool(self.rounds[partition] >= pull.version)

    def admit(self, push: Push, worker: int) -> Admission:
        """Queue a push that changes rows of a partition at its current round; from an earlier round it is REPEATED."""
        if self._bfloat16 and (push.operation, push.values.dtype) != ("add", BFLOAT16):
            raise BadRequest("in this training a push adds bfloat16 to rows of one partition")
        if not self._bfloat16 and push.operation != "assign":
            raise BadRequest("in exclusive order with float32 a push assigns rows of one partition")
        current = self.rounds[self.partition(push.first, push.last)]
        self.require_inside(push)
        if push.version > current:
            raise LeaseLost(f"the rows are at version {current}, the push comes from version {push.version}")
        if push.version < current:
            return Admission.REPEATED
        self._waiting.append(PendingPush(worker, push))
        return Admission.NEW

    def next_update(self) -> list[PendingPush]:
        """Return the next admitted push; if it completes a visit, its partition turns to its next round."""
        if not self._waiting:
            return []
        pending = self._waiting.pop(0)
        push = pending.push
        partition = self.partition(push.first, push.last)
        self.begun[partition] = push.version
        if push.last == self.bounds[partition + 1]:
            self.rounds[partition] = self.order.next_visit(partition, push.version + 1)
        return [pending]

    def version(self, first: int) -> int:
        """Return the next round that visits the partition of row `first`, NO_VERSION if the row is not here."""
        if not self.bounds[0] <= first < self.bounds[-1]:
            return NO_VERSION
        return int(self.rounds[self.partition_at(first)])

    def visits(self, partition: int, round: int) -> Iterator[int]:
        """Yield the rounds from `round` on that have completed their visit of a partition."""
        while (round := self.order.next_visit(partition, round)) < self.rounds[partition]:
            yield round
            round += 1

    def reached(self) -> tuple[int, int]:
        """Return the first and the last round at whose start all rows of this shard are as they are now.

        (-1, -1) if there is none, because some partitions have been through a round and others have not.
        """
        here = self.here()
        first, last = int(self.begun[here].max()) + 1, int(self.rounds[here].min())
        return (first, last) if first <= last else (-1, -1)

    def is_past(self, round: int) -> bool:
        """Return whether any rows of this shard have been changed by `round` or a later one."""
        return bool((self.begun[self.here()] >= round).any())


class AsynchronousBlocks(Partitioned):
    """Adds each trained block's change to the rows as it arrives; no worker waits.

    `rounds[p]`: every earlier round is in the table.
    """

    operations = ("add",)

    def __init__(self, bounds: Indices, start: int, order: Rounds) -> None:
        super().__init__(bounds, order)
        self.rounds = np.full(len(bounds) - 1, start, np.int64)

    def reached(self) -> tuple[int, int]:
        """Return, twice, the round before which everything is in the table."""
        return int(self.rounds[0]), int(self.rounds[0])

    def is_past(self, round: int) -> bool:
        """Return whether rounds from `round` on are known to be in the table."""
        return bool(self.rounds[0] > round)

    def advance_low_water(self, low_water: int) -> bool:
        """Record that every round before `low_water` is in the table; return whether that is new."""
        advanced = low_water > self.rounds[0]
        self.rounds[:] = max(low_water, self.rounds[0])
        return bool(advanced)


Blocks = ExclusiveBlocks | AsynchronousBlocks
