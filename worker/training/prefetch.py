"""Decide for how many leased blocks to prefetch rows, and cache recently trained partitions. No I/O.

In exclusive order one worker trains a partition per round, so that worker's copy is current and need not be pulled.
"""

import math
from collections.abc import Set
from typing import Generic, TypeVar

MIN_TASKS, MIN_TASKS_OF_BIG_ROWS, MAX_TASKS = 3, 2, 6
BIG_ROWS_BYTES = 16 << 20
"""From this many prefetched bytes on, MIN_TASKS_OF_BIG_ROWS is the minimum."""
WAYS = 2
"""Transfers before this worker can use rows of another worker's block: that worker's push, this worker's pull."""
KEPT_WEIGHT = 7 / 8
"""Weight of the previous moving average when another push or block is measured."""
CACHE_BYTES = 20 << 20

T = TypeVar("T")
Key = tuple[int, int]
"""(partition, round): a partition at the start of a round."""


class PrefetchWindow:
    """Computes the number of leased blocks to hold: just enough to keep training while rows are transferred.

    Each prefetched partition takes `partition_bytes` of memory.
    """

    def __init__(self, partition_bytes: int) -> None:
        self._partition_bytes = partition_bytes
        self._way_s = self._block_s = 0.0

    def pushed(self, seconds: float) -> None:
        """Record that the answer to a push took at least this long."""
        self._way_s += (1 - KEPT_WEIGHT) * (seconds - self._way_s)

    def trained(self, seconds: float) -> None:
        """Record how long a block took to train."""
        self._block_s += (1 - KEPT_WEIGHT) * (seconds - self._block_s)

    def tasks(self, pulled: int) -> int:
        """Return how many blocks to hold, including the one in training; `pulled` partitions are prefetched now."""
        fewest = MIN_TASKS if pulled * self._partition_bytes < BIG_ROWS_BYTES else MIN_TASKS_OF_BIG_ROWS
        meanwhile = math.ceil(WAYS * self._way_s / self._block_s) if self._block_s else 0
        return max(fewest, min(1 + meanwhile, MAX_TASKS))


class PartitionCache(Generic[T]):
    """Cache by (partition, round) of the values that leased blocks need and the `capacity` newest others."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._values: dict[Key, T] = {}

    def has(self, key: Key) -> bool:
        """Return whether there is a value for `key`."""
        return key in self._values

    def take(self, key: Key) -> T:
        """Remove and return the value for `key`; KeyError if there is none."""
        return self._values.pop(key)

    def put(self, key: Key, value: T, needed: Set[Key]) -> None:
        """Add a value and evict others; keep only the last round of each partition, besides the keys in `needed`.

        Rounds may repeat: a partition is trained again in earlier rounds after another worker was lost.
        """
        self._values.pop(key, None)
        self._values[key] = value
        last = {partition: max(r for p, r in self._values if p == partition) for partition, _ in self._values}
        spare = [(p, r) for p, r in reversed(self._values) if (p, r) not in needed]
        newest = [(p, r) for p, r in spare if r == last[p]]
        for other in set(spare) - set(newest[: self._capacity]):
            del self._values[other]


def cache_capacity(partition_bytes: int) -> int:
    """Return how many partitions to cache beyond those that leased blocks need."""
    return CACHE_BYTES // max(partition_bytes, 1)
