"""Choose the most frequent words of the whole corpus from the word counts of its segments.

Ties go to the word that occurs first in the corpus, as in `Counter.most_common`; the chosen words are then sorted by
code point. Every word of the corpus is counted, so nothing is approximate. Words are divided by hash into groups, which
are counted one after another, so that one group fits in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from glovewire.common.array_types import Ids, Indices

from ..tokens.encoder import WordCounts
from ..tokens.string_table import StringTable, packed

_LEFT_OUT = 10


@dataclass(frozen=True)
class Vocabulary:
    """Words sorted by code point; `counts` int64 (V,); `by_rank[r]`: index of the word of rank r, int32 (V,).

    `left_out` holds the most frequent words outside the vocabulary and their counts.
    """

    words: tuple[str, ...]
    counts: Indices
    by_rank: Ids
    left_out: Mapping[str, int] = field(default_factory=dict)

    @staticmethod
    def of_ranked(words: Sequence[str], counts: Indices) -> Vocabulary:
        """Return the vocabulary of `words`, given in descending order of frequency, with their `counts`."""
        order = sorted(range(len(words)), key=words.__getitem__)
        return Vocabulary(tuple(words[n] for n in order), counts[order], np.argsort(order).astype(np.int32))

    def ranking(self) -> StringTable:
        """Return a table that numbers the words by rank."""
        table = StringTable()
        table.intern(*packed([self.words[word].encode() for word in self.by_rank]))
        return table


def choose_vocabulary(
    segments: Sequence[Callable[[], WordCounts]], size: int, min_count: int, groups: int = 1
) -> Vocabulary:
    """Return the most frequent words, at most `size`, of those that occur at least `min_count` times.

    Each of `segments` loads one segment's counts, and is called `groups` times; about 1 / groups of the distinct words
    are held at a time.
    """
    words: list[bytes] = []
    counts = first = np.zeros(0, np.int64)
    for group in range(groups):
        table, group_counts, group_first = _count_group(segments, group, groups)
        top = _most_frequent(group_counts, group_first, size, min_count)
        words += [table.string(n) for n in top]
        counts, first = np.concatenate([counts, group_counts[top]]), np.concatenate([first, group_first[top]])
        top = _most_frequent(counts, first, size, min_count)
        words, counts, first = [words[n] for n in top], counts[top], first[top]
    kept = min(size, int(np.count_nonzero(counts >= min_count)))
    ranked = [word.decode() for word in words]
    left_out = dict(zip(ranked[kept:], counts[kept:].tolist(), strict=True))
    return replace(Vocabulary.of_ranked(ranked[:kept], counts[:kept]), left_out=left_out)


def _count_group(
    segments: Sequence[Callable[[], WordCounts]], group: int, groups: int
) -> tuple[StringTable, Indices, Indices]:
    """Return a table of one group's words, with their counts and first places in the whole corpus."""
    table = StringTable()
    counts = first = np.zeros(0, np.int64)
    for load in segments:
        segment = load()
        chosen, ids = table.intern_group(segment.data, segment.bounds[:-1], segment.bounds[1:], group, groups)
        new = (0, table.count - len(counts))
        counts = np.pad(counts, new)
        first = np.pad(first, new, constant_values=np.iinfo(np.int64).max)
        counts[ids] += segment.counts[chosen]  # a segment lists each word once
        first[ids] = np.minimum(first[ids], segment.first[chosen])
    return table, counts, first


def _most_frequent(counts: Indices, first: Indices, size: int, min_count: int) -> Indices:
    """Return the words of the vocabulary, then the most frequent other words, in descending order of frequency."""
    size = min(size, int(np.count_nonzero(counts >= min_count))) + _LEFT_OUT
    enough = np.arange(len(counts))
    if len(enough) > size:  # most words are rare: drop them before sorting
        least = np.partition(counts[enough], len(enough) - size)[len(enough) - size]
        enough = enough[counts[enough] >= least]
    order = np.lexsort((first[enough], -counts[enough]))[:size]
    return enough[order]
