"""The most frequent words of the whole corpus, from the counts of its segments.

Ties go to the word that came first in the corpus, as in `Counter.most_common`; the chosen words are then sorted by
code point. Every word of the corpus is counted, so nothing is approximate. Words are handled in groups by hash, as
many groups as the memory asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..tokens.encoder import Counts
from ..tokens.string_table import Ids, Longs, StringTable, hashes


@dataclass(frozen=True)
class Vocabulary:
    """Words sorted by code point; `counts` int64 (V,); `by_rank` int32 (V,): words from the most frequent down."""

    words: tuple[str, ...]
    counts: Longs
    by_rank: Ids

    def ranker(self) -> Ranker:
        """What finds the ranks of other numberings of words."""
        return Ranker([self.words[word].encode() for word in self.by_rank])


class Ranker:
    """Frequency ranks by word."""

    def __init__(self, words: list[bytes]) -> None:
        self._table = StringTable()
        self._table.intern_all(words)

    def ranks(self, segment: Counts, length: int) -> Ids:
        """For word numbers 1 to `length` of a segment, the frequency rank or -1; int32 (length,)."""
        out = np.full(length, -1, np.int32)
        out[segment.numbers - 1] = self._table.look_up(segment.data, segment.bounds[:-1], segment.bounds[1:])
        return out


def choose(segments: Sequence[Callable[[], Counts]], size: int, min_count: int, groups: int = 1) -> Vocabulary:
    """The `size` most frequent words that come at least `min_count` times; fewer if the corpus has fewer.

    Each of `segments` loads one segment's counts; with `groups` > 1 they are loaded that many times, and at any time
    about 1 / groups of the distinct words are held.
    """
    best = _Candidates.none()
    for group in range(groups):
        best = best.joined(_count_group(segments, group, groups).top(size, min_count)).top(size, min_count)
    order = sorted(range(len(best.words)), key=best.words.__getitem__)
    place = np.empty(len(order), np.int32)
    place[order] = np.arange(len(order), dtype=np.int32)
    return Vocabulary(tuple(best.words[n].decode() for n in order), best.counts[order], place)


@dataclass(frozen=True)
class _Candidates:
    words: list[bytes]
    counts: Longs
    first: Longs

    @staticmethod
    def none() -> _Candidates:
        return _Candidates([], np.zeros(0, np.int64), np.zeros(0, np.int64))

    def joined(self, other: _Candidates) -> _Candidates:
        return _Candidates(
            self.words + other.words,
            np.concatenate([self.counts, other.counts]),
            np.concatenate([self.first, other.first]),
        )

    def top(self, size: int, min_count: int) -> _Candidates:
        order = _most_frequent(self.counts, self.first, size, min_count)
        return _Candidates([self.words[n] for n in order], self.counts[order], self.first[order])


class _Group:
    def __init__(self) -> None:
        self.table = StringTable()
        self.counts = np.zeros(0, np.int64)
        self.first = np.zeros(0, np.int64)

    def add(self, segment: Counts, chosen: npt.NDArray[np.bool_]) -> None:
        ids = self.table.intern(segment.data, segment.bounds[:-1][chosen], segment.bounds[1:][chosen])
        more = self.table.count - len(self.counts)
        self.counts = np.concatenate([self.counts, np.zeros(more, np.int64)])
        self.first = np.concatenate([self.first, np.full(more, np.iinfo(np.int64).max)])
        self.counts[ids] += segment.counts[chosen]  # a word comes once in a segment
        self.first[ids] = np.minimum(self.first[ids], segment.first[chosen])

    def top(self, size: int, min_count: int) -> _Candidates:
        order = _most_frequent(self.counts, self.first, size, min_count)
        return _Candidates([self.table.string(n) for n in order], self.counts[order], self.first[order])


def _count_group(segments: Sequence[Callable[[], Counts]], group: int, groups: int) -> _Group:
    found = _Group()
    for load in segments:
        segment = load()
        chosen = np.ones(len(segment.counts), np.bool_)
        if groups > 1:
            chosen = hashes(segment.data, segment.bounds) % np.uint64(groups) == np.uint64(group)
        found.add(segment, chosen)
    return found


def _most_frequent(counts: Longs, first: Longs, size: int, min_count: int) -> Longs:
    enough = np.flatnonzero(counts >= min_count)
    if len(enough) > size:  # most words are rare: leave them out before sorting
        least = np.partition(counts[enough], len(enough) - size)[len(enough) - size]
        enough = enough[counts[enough] >= least]
    order = np.lexsort((first[enough], -counts[enough]))[:size]
    return enough[order]
