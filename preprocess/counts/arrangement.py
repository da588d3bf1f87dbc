"""Arrange the words of a vocabulary as table rows, and cut the rows into partitions.

Frequent words come first, because most entries of the matrix have a frequent word: a strip of training holds the rows
of one partition and fetches only those rows of more frequent partitions that it needs. All partitions take part in
about the same amount of work, so frequent words share small partitions and rare words large ones.

Common words are dealt to their partitions at random, so that blocks and tiles hold words of mixed frequency: sorted
inside a partition, they scored a point lower on WordSim. Rare words follow in order. No I/O.
"""

import numpy as np

from glovewire.common.array_types import Ids, Indices
from glovewire.common.storage.dataset import MAX_PARTITIONS

WORK_POWER = 0.7
"""The number of entries of a word that occurs n times is about proportional to n to this power."""
COMMON = 64
"""Words that occur at least this often are common: most strips need their rows, in whichever partition."""
MOST_ROWS = 65_536
"""Maximum rows of a partition, which a worker holds in memory while it trains a strip."""
FEWEST_PARTITIONS, USUALLY_MOST_PARTITIONS = 6, 16
TOKENS = 9_000_000
"""Tokens per partition, within these limits: more partitions keep more workers busy, but move more rows."""
RARE_PARTITIONS = 4
"""Partitions added to the smallest number that MOST_ROWS allows."""


def arrange(counts: Indices, partitions: int, seed: int) -> tuple[tuple[int, ...], Ids]:
    """Return the bounds of the partitions, and the permutation: the word of each row.

    `counts` are the frequencies of the words. There are `partitions` partitions, or more if one would otherwise exceed
    MOST_ROWS rows.
    """
    draw = np.random.default_rng(seed)
    rows = np.argsort(-counts, kind="stable").astype(np.int32)
    work = np.concatenate([[0.0], np.cumsum(np.maximum(counts[rows], 1.0) ** WORK_POWER)])
    words = len(rows)
    common = words if partitions == 1 else int(np.count_nonzero(counts >= COMMON))
    bounds, left = [0], partitions
    if common:
        fewest, most = (1, left - 1) if common < words else (left, left)
        share = min(max(round(left * work[common] / work[-1]), left - (words - common), fewest), most, common)
        left -= share
        parts = max(share, -(-common // MOST_ROWS))
        bounds += [common * number // parts for number in range(1, parts + 1)]
        rows[:common] = draw.permutation(rows[:common])
    while (first := bounds[-1]) < words:
        goal = work[first] + (work[-1] - work[first]) / max(left, 1)
        last = max(int(np.searchsorted(work, goal)), first + 1) if left > 1 else words
        left -= 1
        bounds.append(min(last, words - max(left, 0), first + MOST_ROWS))
    return tuple(bounds), rows


def default_partitions(counts: Indices) -> int:
    """Return the number of partitions to request for words of these frequencies; `arrange` may need to add some."""
    by_tokens = min(max(int(counts.sum()) // TOKENS, FEWEST_PARTITIONS), USUALLY_MOST_PARTITIONS)
    by_rows = -(-len(counts) // MOST_ROWS) + RARE_PARTITIONS
    return min(max(by_tokens, by_rows), len(counts), MAX_PARTITIONS)
