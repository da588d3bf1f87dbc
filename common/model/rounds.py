"""Order the strips of a training into rounds: a function of (partitions, epochs, seed) alone.

A strip is one partition with every block between it and the partitions before it, which hold more frequent words. A
round trains one strip, and an epoch has one round for each partition, in a random order. Rounds overlap: each partition
is changed by one strip after the other, in the order of the rounds, but a strip may begin while earlier ones are at
work on other partitions.

A strip visits the other partitions in the order of their own next strips. So it comes first to the partition whose
strip is next, which can then begin, and last to the one whose strip began just before: strips follow each other through
the partitions like a wave, and none of them waits for the end of another.
"""

from dataclasses import dataclass
from functools import lru_cache

from .random_streams import Purpose, stream


@dataclass(frozen=True)
class Rounds:
    """All rounds of a training over `partitions` partitions, numbered from 0 over `epochs` epochs."""

    partitions: int
    epochs: int
    seed: int

    @property
    def total(self) -> int:
        """Return the number of rounds of all epochs."""
        return self.partitions * self.epochs

    def epoch(self, round: int) -> int:
        """Return the epoch (from 0) that a round belongs to."""
        return round // self.partitions

    def strip(self, round: int) -> int:
        """Return the partition whose strip is trained in a round."""
        epoch, place = divmod(round, self.partitions)
        return self._order(epoch)[place]

    def visits(self, round: int) -> list[int]:
        """Return the partitions that a round changes, in the order of its work: first its own, then those before it."""
        own = self.strip(round)
        return [own, *sorted(range(own), key=lambda partition: self._next_own(partition, round))]

    def next_visit(self, partition: int, round: int) -> int:
        """Return the first round from `round` on that changes `partition`; `total` if there is none."""
        while round < self.total and self.strip(round) < partition:
            round += 1
        return min(round, self.total)

    def _next_own(self, partition: int, round: int) -> int:
        """Return the first round after `round` that trains the strip of `partition`, as if epochs never ended."""
        epoch = self.epoch(round)
        own = epoch * self.partitions + self._order(epoch).index(partition)
        return own if own > round else (epoch + 1) * self.partitions + self._order(epoch + 1).index(partition)

    def _order(self, epoch: int) -> tuple[int, ...]:
        return _epoch_order(self.partitions, self.seed, epoch)


@lru_cache(maxsize=64)
def _epoch_order(partitions: int, seed: int, epoch: int) -> tuple[int, ...]:
    """Return the partition of each round of an epoch."""
    return tuple(stream(seed, Purpose.ROUNDS, epoch).permutation(partitions).tolist())
