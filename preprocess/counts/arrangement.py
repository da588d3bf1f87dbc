"""Arrange the words of a vocabulary as table rows, and cut the rows into partitions.

Frequent words come first, because most entries of the matrix have a frequent word: a strip of training holds the rows
of one partition and fetches only those rows of more frequent partitions that it needs. Each partition takes part in
about as much work, so frequent words share small partitions and rare words large ones.

Common words are dealt to their partitions at random, so that a block holds words of mixed frequency; so are the others,
in bands of a few partitions. Inside a partition frequent words come first again: tiles of frequent words are dense, and
their rows stay in the processor's cache. No I/O.
"""

import numpy as np

from glovewire.common.array_types import Ids, Indices
from glovewire.common.storage.dataset import MAX_PARTITIONS

WORK_POWER = 0.7
"""A word that occurs n times has about n to this power entries."""
COMMON = 64
"""Words that occur at least this often are common: most strips need their rows, wherever they are."""
BAND = 2
"""Partitions of a band of words that are not common."""
MOST_ROWS = 65_536
"""Rows of a partition, which a worker holds in memory while it trains a strip."""
FEWEST_PARTITIONS = 8


def arrange(counts: Indices, partitions: int, seed: int) -> tuple[tuple[int, ...], Ids]:
    """Return the bounds of the partitions, and the permutation: the word of each row.

    `counts` are the frequencies of the words. There are `partitions` partitions, and more of them where one would have
    more than MOST_ROWS rows.
    """
    draw = np.random.default_rng(seed)
    rows = np.argsort(-counts, kind="stable").astype(np.int32)
    work = np.concatenate([[0.0], np.cumsum(np.maximum(counts[rows], 1.0) ** WORK_POWER)])
    common, words = int(np.count_nonzero(counts >= COMMON)), len(rows)
    bounds, left = [0], partitions
    while (first := bounds[-1]) < words:
        if first == 0 and 0 < common < words and left > 1:
            last, fewest = common, max(left - (words - common), 1)
            share = min(max(round(left * work[common] / work[-1]), fewest), left - 1, common)
        elif first == 0 and common == words:
            last, share = words, left
        else:
            share = min(BAND, max(left, 1))
            goal = work[first] + (work[-1] - work[first]) * share / max(left, share)
            spare = words - max(left - share, 0)  # every later partition needs a row
            last = min(max(int(np.searchsorted(work, goal)), first + share), spare, first + BAND * MOST_ROWS)
        parts = max(min(share, last - first), -(-(last - first) // MOST_ROWS))
        dealt = draw.permutation(rows[first:last])
        for number in range(1, parts + 1):
            low, high = bounds[-1], first + (last - first) * number // parts
            part = dealt[low - first : high - first]
            rows[low:high] = part[np.argsort(-counts[part], kind="stable")]
            bounds.append(high)
        left -= share
    return tuple(bounds), rows


def default_partitions(words: int) -> int:
    """Return the number of partitions for a vocabulary of `words` words, before any is found to have too many rows."""
    return min(max(FEWEST_PARTITIONS, -(-words // MOST_ROWS) + FEWEST_PARTITIONS // 2), words, MAX_PARTITIONS)
