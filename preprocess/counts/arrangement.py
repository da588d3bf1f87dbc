"""Arrange the words of a vocabulary as table rows, and cut the rows into partitions.

Frequent words come first, because most entries of the matrix have a frequent word: a strip of training holds the rows
of one partition and fetches only those rows of more frequent partitions that it needs. Each partition takes part in
about as much work, so frequent words share small partitions and rare words large ones. Inside a band of a few
partitions the words are dealt at random, so that a block holds words of mixed frequency. No I/O.
"""

import numpy as np

from glovewire.common.array_types import Ids, Indices
from glovewire.common.storage.dataset import MAX_PARTITIONS

WORK_POWER = 0.7
"""A word that occurs n times has about n to this power entries."""
BAND = 2
"""Partitions of a band."""
MOST_ROWS = 65_536
"""Rows of a partition, which a worker holds in memory while it trains a strip."""
FEWEST_PARTITIONS = 8


def arrange(counts: Indices, partitions: int, seed: int) -> tuple[tuple[int, ...], Ids]:
    """Return the bounds of the partitions, and the permutation: the word of each row.

    `counts` are the frequencies of the words. There are `partitions` partitions, and more of them where one would have
    more than MOST_ROWS rows.
    """
    bounds = [0]
    draw = np.random.default_rng(seed)
    rows = np.argsort(-counts, kind="stable").astype(np.int32)
    work = np.concatenate([[0.0], np.cumsum(counts[rows].astype(np.float64) ** WORK_POWER)])
    left = partitions
    while (first := bounds[-1]) < len(rows):
        share = min(BAND, max(left, 1))
        goal = work[first] + (work[-1] - work[first]) * share / max(left, share)
        spare = len(rows) - max(left - share, 0)  # every later partition needs a row
        last = min(max(int(np.searchsorted(work, goal)), first + share), spare, first + BAND * MOST_ROWS)
        parts = max(min(share, last - first), -(-(last - first) // MOST_ROWS))
        rows[first:last] = draw.permutation(rows[first:last])
        bounds += [first + (last - first) * number // parts for number in range(1, parts + 1)]
        left -= share
    return tuple(bounds), rows


def default_partitions(words: int) -> int:
    """Return the number of partitions for a vocabulary of `words` words, before any is found to have too many rows."""
    return min(max(FEWEST_PARTITIONS, -(-words // MOST_ROWS) + FEWEST_PARTITIONS // 2), words, MAX_PARTITIONS)
