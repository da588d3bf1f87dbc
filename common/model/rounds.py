"""Order the strips of a training into rounds: a function of (partitions, epochs) alone.

A strip is one partition with every block between it and the partitions before it, which hold more frequent words. A
round trains one strip; an epoch has one round for each partition, in their order. Rounds overlap: each partition is
changed by one strip after the other, in the order of the rounds, but a strip may begin while earlier ones are at work
on other partitions.

All strips visit the other partitions in the same order. So they follow each other through the partitions like a wave,
and none of them waits for the end of another, but for the visit to the partition of the strip before, which is last.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Rounds:
    """All rounds of a training over `partitions` partitions, numbered from 0 over `epochs` epochs."""

    partitions: int
    epochs: int

    @property
    def total(self) -> int:
        """Return the number of rounds of all epochs."""
        return self.partitions * self.epochs

    def epoch(self, round: int) -> int:
        """Return the epoch (from 0) that a round belongs to."""
        return round // self.partitions

    def strip(self, round: int) -> int:
        """Return the partition whose strip is trained in a round."""
        return round % self.partitions

    def visits(self, round: int) -> list[int]:
        """Return the partitions that a round changes, in the order of its work: first its own, then those before it."""
        own = self.strip(round)
        return [own, *range(own)]

    def next_visit(self, partition: int, round: int) -> int:
        """Return the first round from `round` on that changes `partition`; `total` if there is none."""
        return min(round + max(partition - self.strip(round), 0), self.total)
