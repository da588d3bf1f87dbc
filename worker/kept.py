"""What a worker has of the partitions that it trained last, as they stand at the start of which round. Pure.

In exclusive order a partition is what it was after the round before, wherever it is: what is here need not be pulled.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Generic, TypeVar

T = TypeVar("T")
At = tuple[int, int]
"""A partition at the start of a round."""

KEPT_BYTES = 20 << 20


def most(partition_bytes: int) -> int:
    """How many partitions to keep that nobody is known to need."""
    return KEPT_BYTES // max(partition_bytes, 1)


class Kept(Generic[T]):
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
