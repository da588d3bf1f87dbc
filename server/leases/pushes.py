"""Check that the pushes of block training come under a lease, and tell when a partition is complete. No I/O, no clock.

Shards other than 0 know no leases, only tokens. A shard keeps one entry for each partition and round in which it was
pushed, until the round is complete; shard 0 grants at most a sweep of rounds ahead of the first that is not.
"""

from glovewire.common.errors import BadRequest, LeaseLost
from glovewire.common.protocol.messages import Push

from ..consistency.blocks import Blocks
from ..tokens import Tokens


class LeasedPushes:
    """Pushes to the rows that `shard` has of the partitions of `blocks`.

    `low_water`: every round before it is in every table, as shard 0 said.
    """

    def __init__(self, tokens: Tokens, shard: int, blocks: Blocks) -> None:
        self._tokens, self._shard, self._blocks = tokens, shard, blocks
        self._pushed: dict[tuple[int, int], tuple[int, int]] = {}  # (round, partition) -> lease, end of the rows pushed
        self.low_water = 0

    def check(self, push: Push, worker: int) -> None:
        """Raise unless `worker` may make this push, which is no repeat: BadRequest, or LeaseLost if the lease ended.

        Under a lease each row is pushed once, in order.
        """
        if push.then_pull:
            raise BadRequest("in block training a push pulls no rows")
        if push.low_water > self.low_water and push.low_water_token ^ self._tokens.low_water(push.low_water):
            raise BadRequest(f"shard 0 has not said that the rounds before {push.low_water} are complete")
        partition = self._blocks.partition(push.first, push.last)
        self._blocks.require_inside(push)
        granted = not push.token ^ self._tokens.lease(push.lease, worker, push.version)
        if not granted or partition > self._blocks.order.strip(push.version):
            raise BadRequest(f"shard 0 granted no lease {push.lease} of partition {partition} in round {push.version}")
        newest, end = self._pushed.get((push.version, partition), (0, 0))
        if push.lease < newest or push.version < self.low_water:
            raise LeaseLost(f"lease {push.lease} has ended: another worker has trained the strip")
        start = end if push.lease == newest else int(self._blocks.bounds[partition])
        if push.first != start:
            raise BadRequest(f"under lease {push.lease} the next push begins at row {start}, not {push.first}")

    def record(self, push: Push) -> None:
        """Record that a push, which has passed `check`, is in the table."""
        key = push.version, self._blocks.partition(push.first, push.last)
        self._pushed[key] = push.lease, push.last

    def receipt(self, push: Push) -> int:
        """Return the receipt of a push that completed its partition, 0 for any other; `push` may be a repeat."""
        partition = self._blocks.partition_at(push.first)
        if self._pushed.get((push.version, partition)) != (push.lease, push.last):
            return 0
        complete = push.last == self._blocks.bounds[partition + 1]
        return self._tokens.receipt(self._shard, push.lease, partition) if complete else 0

    def advance(self, low_water: int) -> None:
        """Record that every round before `low_water` is in every table."""
        if low_water > self.low_water:
            self.low_water = low_water
            self._pushed = {key: value for key, value in self._pushed.items() if key[0] >= low_water}
