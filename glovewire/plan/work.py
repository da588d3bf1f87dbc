"""Compute the work and traffic of the strips of an epoch: counted in a dataset, or estimated from word counts."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from glovewire.common.array_types import Floats, Indices
from glovewire.common.storage.dataset import Dataset
from glovewire.preprocess.counts.arrangement import WORK_POWER, arrange

SAMPLE = 1000
"""Number of rows of a partition that are sampled to estimate how many rows a strip moves."""
ZIPF_OFFSET, RARE_RANK, MOST_COUNT = 2.7, 15_000.0, 1e15
ENTRIES_OF_WORK = 14.0
"""Entries of a word that occurs n times, divided by n^WORK_POWER: 9 to 16 in English text with a window of 5."""


@dataclass(frozen=True)
class Work:
    """Partitions with their `bounds`, and two figures for the strip of each partition a and each partition b <= a.

    `entries[a, b]` are the entries of the full matrix between them, `rows[a, b]` the rows of b that the strip moves;
    both of shape (partitions, partitions).
    """

    bounds: tuple[int, ...]
    entries: Floats
    rows: Floats

    @property
    def partitions(self) -> int:
        """Return the number of partitions."""
        return len(self.bounds) - 1


def counted(dataset: Dataset) -> Work:
    """Return the work of a dataset's partitions."""
    layout = dataset.layout
    entries, rows = np.zeros((2, layout.partitions, layout.partitions))
    for a in range(layout.partitions):
        for b in range(a + 1):
            entries[a, b] = sum(dataset.full_entries(*pair) for pair in layout.between(a, b))
            rows[a, b] = layout.size(a) if a == b else len(dataset.distinct(a, b))
    return Work(layout.bounds, entries, rows)


def estimated(counts: Indices, entries: float, partitions: int) -> Work:
    """Return the work of `partitions` partitions of words that occur `counts` times, with `entries` entries in all."""
    bounds, order = arrange(counts, partitions, 0)
    weights = counts[order].astype(np.float64) ** WORK_POWER
    shares = [weights[low:high] for low, high in pairwise(bounds)]
    sums = np.array([share.sum() for share in shares])
    between = np.tril(np.outer(sums, sums) * (entries / sums.sum() ** 2))
    between += np.tril(between, -1)
    rows = np.diag(np.diff(bounds)).astype(np.float64)
    for b, share in enumerate(shares):
        sample = share[:: -(-len(share) // SAMPLE)] / sums[b]
        for a in range(b + 1, len(shares)):
            rows[a, b] = len(share) * (1.0 - np.exp(-sample * between[a, b] / 2)).mean()
    return Work(bounds, between, rows)


def zipf_counts(words: int, entries: float) -> Indices:
    """Return counts of `words` words in a text with about `entries` entries: Zipf's law, steeper for rare words."""
    ranks = np.arange(words, dtype=np.float64)
    shares = 1 / ((ranks + ZIPF_OFFSET) * (1 + ranks / RARE_RANK))
    work = entries / ENTRIES_OF_WORK / (shares**WORK_POWER).sum()
    counts: Indices = np.clip(shares * work ** (1 / WORK_POWER), 1, MOST_COUNT).astype(np.int64)
    return counts
