"""Decide for how many leased blocks to prefetch rows, and cache the partitions that were trained last. No I/O.

In exclusive order a partition is the same after a round wherever it is: what was trained here need not be pulled.
"""

import math
from collections.abc import Set
from typing import Generic, TypeVar

MIN_TASKS, MIN_TASKS_OF_BIG_ROWS, MAX_TASKS = 3, 2, 6
BIG_ROWS_BYTES = 16 << 20
"""With more bytes prefetched, MIN_TASKS_OF_BIG_ROWS holds."""
WAYS = 2
"""Ways that the rows of another worker's block travel: it pushes them, then this worker pulls them."""
KEPT_WEIGHT = 7 / 8
"""Of the earlier average, when another push or block is measured."""
CACHE_BYTES = 20 << 20

T = TypeVar("T")
Key = tuple[int, int]
"""(partition, round): a partition at the start of a round."""


class PrefetchWindow:
    """The number of blocks to hold: as many as are trained while rows are on their way, and as few as possible.

    Prefetched rows take memory, `partition_bytes` for each partition.
    """

    def __init__(self, partition_bytes: int) -> None:
        self._partition_bytes = partition_bytes
        self._way_s = self._block_s = 0.0

    def pushed(self, seconds: float) -> None:
        """Record that a push took at least this long to be answered."""
        self._way_s += (1 - KEPT_WEIGHT) * (seconds - self._way_s)

    def trained(self, seconds: float) -> None:
        """Record how long a block took to train."""
        self._block_s += (1 - KEPT_WEIGHT) * (seconds - self._block_s)

    def tasks(self, pulled: int) -> int:
        """Return how many blocks to hold, with the one in training, when `pulled` partitions are pulled for them."""
        fewest = MIN_TASKS if pulled * self._partition_bytes < BIG_ROWS_BYTES else MIN_TASKS_OF_BIG_ROWS
        meanwhile = math.ceil(WAYS * self._way_s / self._block_s) if self._block_s else 0
        return max(fewest, min(1 + meanwhile, MAX_TASKS))


class PartitionCache(Generic[T]):
    """Values by (partition, round): those that leased blocks need, and the `capacity` newest others."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._values: dict[Key, T] = {}

    def has(self, key: Key) -> bool:
        """Return whether there is a value."""
        return key in self._values

    def take(self, key: Key) -> T:
        """Remove and return a value."""
        return self._values.pop(key)

    def put(self, key: Key, value: T, needed: Set[Key]) -> None:
        """Add a value and evict others; of a partition's rounds that no block has `needed`, only the last may stay.

        A partition that is trained again for another worker passes through rounds that it was in before.
        """
        self._values.pop(key, None)
        self._values[key] = value
        last = {partition: max(r for p, r in self._values if p == partition) for partition, _ in self._values}
        spare = [(p, r) for p, r in reversed(self._values) if (p, r) not in needed]
        newest = [(p, r) for p, r in spare if r == last[p]]
        for other in set(spare) - set(newest[: self._capacity]):
            del self._values[other]


def cache_capacity(partition_bytes: int) -> int:
    """Return how many partitions to keep that no leased block needs."""
    return CACHE_BYTES // max(partition_bytes, 1)
