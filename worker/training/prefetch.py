"""How many leased blocks a worker has rows on their way for: as many as it trains while rows come. Pure.

Rows of another worker's block come in two ways: it pushes them, and we pull them. While they do, other blocks can be
trained here. What is ahead costs memory: where a way is shorter than a block it is as little as keeps a worker busy.
"""

from __future__ import annotations

import math
from collections.abc import Set
from typing import Generic, TypeVar

TASKS, TASKS_OF_MANY_BYTES, TASKS_AT_MOST = 3, 2, 6
AHEAD_BYTES = 16 << 20
"""With more rows pulled for them, tasks count as those of many bytes."""
WAYS = 2
REMEMBERED = 7 / 8
"""Of what was known before, when another way or block was measured."""


class PrefetchWindow:
    """The number of tasks, from how long pushes and blocks took of late; rows come in partitions of so many bytes."""

    def __init__(self, partition_bytes: int) -> None:
        self._partition_bytes = partition_bytes
        self._way_s = self._block_s = 0.0

    def pushed(self, seconds: float) -> None:
        """A push was answered, but not before so many seconds."""
        self._way_s += (1 - REMEMBERED) * (seconds - self._way_s)

    def trained(self, seconds: float) -> None:
        """A block was trained in so many seconds."""
        self._block_s += (1 - REMEMBERED) * (seconds - self._block_s)

    def tasks(self, pulled: int) -> int:
        """How many tasks to have, the one that is trained among them, when so many partitions are pulled for them."""
        few = TASKS if pulled * self._partition_bytes < AHEAD_BYTES else TASKS_OF_MANY_BYTES
        on_their_way = math.ceil(WAYS * self._way_s / self._block_s) if self._block_s else 0
        return max(few, min(1 + on_their_way, TASKS_AT_MOST))


# ---- What a worker has of the partitions that it trained last, as they stand at the start of which round. Pure.
#
# In exclusive order a partition is what it was after the round before, wherever it is: what is here need not be pulled.
#

T = TypeVar("T")
At = tuple[int, int]
"""A partition at the start of a round."""

KEPT_BYTES = 20 << 20


def cache_capacity(partition_bytes: int) -> int:
    """How many partitions to keep that nobody is known to need."""
    return KEPT_BYTES // max(partition_bytes, 1)


class PartitionCache(Generic[T]):
    """Something for each partition and round that is here: what leased blocks need, and the `most` newest others."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._here: dict[At, T] = {}

    def has(self, at: At) -> bool:
        """Whether it is here."""
        return at in self._here

    def take(self, at: At) -> T:
        """Give it away."""
        return self._here.pop(at)

    def put(self, at: At, value: T, needed: Set[At]) -> None:
        """A partition has come to a round here; what nobody needs stays only in the last of its rounds.

        One that is trained again for others passes through rounds that it was in before.
        """
        self._here.pop(at, None)
        self._here[at] = value
        last = {partition: max(r for p, r in self._here if p == partition) for partition, _ in self._here}
        spare = [(p, r) for p, r in reversed(self._here) if (p, r) not in needed]
        newest = [(p, r) for p, r in spare if r == last[p]]
        for other in set(spare) - set(newest[: self._most]):
            del self._here[other]
