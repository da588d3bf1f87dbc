"""Order the strips of a training into rounds: a function of partitions and epochs alone.

A strip is one partition with every block between it and the partitions before it, which hold more frequent words. A
round trains one strip; a sweep has one round for each partition, and trains one epoch or more. A worker that has the
rows of a block trains it for all epochs of the sweep, one after the other, so that rows are sent once a sweep. Rounds
overlap: each partition is changed by one strip after the other, in the order of the rounds, but a strip may begin while
earlier ones are at work on other partitions.

A strip visits the other partitions in the order of their own next strips. So strips follow each other like a wave: the
next one can begin as soon as its partition has been visited, which comes first. None can overtake the one before it,
so neighbours in the order should be of about equal length, at the turn of a sweep too: first every second partition
upwards, to ever longer strips, then the others downwards.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Self

from .options import TrainingOptions


@dataclass(frozen=True)
class Rounds:
    """All rounds of a training over `partitions` partitions, numbered from 0.

    A sweep trains `local_epochs` of the `epochs`, which they divide.
    """

    partitions: int
    epochs: int
    local_epochs: int = 1

    @classmethod
    def of(cls, options: TrainingOptions, partitions: int) -> Self:
        """Return the rounds of a training with these options."""
        return cls(partitions, options.epochs, options.local_epochs)

    @property
    def total(self) -> int:
        """Return the number of rounds of all sweeps."""
        return self.partitions * (self.epochs // self.local_epochs)

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Return the partitions in the order in which each sweep trains their strips."""
        return *range(0, self.partitions, 2), *range(1, self.partitions, 2)[::-1]

    def sweep(self, round: int) -> int:
        """Return the sweep (from 0) that a round belongs to."""
        return round // self.partitions

    def epochs_of(self, round: int) -> range:
        """Return the epochs (from 0) for which a round trains its strip."""
        first = self.sweep(round) * self.local_epochs
        return range(first, first + self.local_epochs)

    def progress(self, round: int, epoch: int) -> float:
        """Return the share of the training, 0 to 1, that is done when a round begins with one of its epochs."""
        return (epoch * self.partitions + round % self.partitions) / (self.epochs * self.partitions)

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
