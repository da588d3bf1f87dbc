"""What a worker has of the partitions that it trained last, as they stand at the start of which round. Pure.

In exclusive order a partition is what it was after the round before, wherever it is: what is here need not be pulled.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Generic, TypeVar

T = TypeVar("T")

KEPT_BYTES = 20 << 20


def most(partition_bytes: int) -> int:
    """How many partitions to keep that nobody is known to need."""
    return KEPT_BYTES // max(partition_bytes, 1)


class Kept(Generic[T]):
    """Something for each partition that is here; of those that no leased block needs, the `most` newest."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._here: dict[int, tuple[int, T]] = {}

    def has(self, partition: int, round: int) -> bool:
        """Whether the partition is here as a block of `round` needs it."""
        return partition in self._here and self._here[partition][0] == round

    def take(self, partition: int) -> T:
        """Give a partition away."""
        return self._here.pop(partition)[1]

    def put(self, partition: int, round: int, value: T, needed: Set[int]) -> None:
        """A partition has come to `round` here. A block that is trained again may leave one that is older than ours."""
        here = self._here.pop(partition, (round, value))
        self._here[partition] = here if here[0] > round else (round, value)
        for other in [other for other in reversed(self._here) if other not in needed][self._most :]:
            del self._here[other]
