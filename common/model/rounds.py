"""Order the strips of a training into rounds: a function of (partitions, epochs) alone.

A strip is one partition with every block between it and the partitions before it, which hold more frequent words. A
round trains one strip; an epoch has one round for each partition. Rounds overlap: each partition is changed by one
strip after the other, in the order of the rounds, but a strip may begin while earlier ones are at work on other
partitions.

A strip visits the other partitions in the order of their own next strips. So strips follow each other like a wave: the
next one can begin as soon as its partition has been visited, which comes first. None can overtake the one before it,
so neighbours in the order should be of about equal length, at the turn of an epoch too: first every second partition
upwards, to ever longer strips, then the others downwards.
"""

from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Rounds:
    """All rounds of a training over `partitions` partitions, numbered from 0 over `epochs` epochs."""

    partitions: int
    epochs: int

    @property
    def total(self) -> int:
        """Return the number of rounds of all epochs."""
        return self.partitions * self.epochs

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Return the partitions in the order in which each epoch trains their strips."""
        return *range(0, self.partitions, 2), *range(1, self.partitions, 2)[::-1]

    def epoch(self, round: int) -> int:
        """Return the epoch (from 0) that a round belongs to."""
        return round // self.partitions

    def strip(self, round: int) -> int:
        """Return the partition whose strip is trained in a round."""
        return self.order[round % self.partitions]

    def visits(self, round: int) -> list[int]:
        """Return the partitions that a round changes, in the order of its work: its own, then the more frequent."""
        own = self.strip(round)
        return [own, *(other for other in map(self.strip, range(round + 1, round + self.partitions)) if other < own)]

    def next_visit(self, partition: int, round: int) -> int:
        """Return the first round from `round` on that changes `partition`; `total` if there is none."""
        while round < self.total and self.strip(round) < partition:
            round += 1
        return min(round, self.total)
