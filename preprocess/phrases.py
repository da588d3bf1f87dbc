"""Find pairs of words that form phrases, such as `new_york`, and join them in the segments.

The score is that of Mikolov et al. (2013, Distributed Representations of Words and Phrases), as gensim's Phrases
computes it: (count of the pair - MIN_COUNT) / count of the first word / count of the second * number of distinct words
and pairs. Pairs are divided into groups, and each group is counted exactly in one pass over all streams.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from glovewire.common.array_types import Ids, Indices
from glovewire.common.runtime.compiled import compiled
from glovewire.common.storage.artifacts import load_array

from .counts.spill import save
from .parallel.pool import Job
from .parallel.scratch import ScratchFolder
from .segments import Segment, array_path
from .tokens.string_table import StringTable, packed

MIN_COUNT, THRESHOLD = 5, 10.0
PAIR_BYTES = 32
"""Approximate memory for each occurrence of a pair of a group, while the pairs are sorted."""
_IDS, _PAIRS = "ids", "pairs"
_SPREAD = 31  # any odd number: it spreads the pairs of a frequent word over all groups


def learn(segments: Sequence[Segment], groups: int, kind: str, count: Callable[[], object]) -> Indices:
    """Return the phrases of a corpus as sorted keys: (id of the first word << 32) | id of the second.

    Ids number the distinct words of the whole corpus, in `groups` groups, and are stored with each segment. `count`
    must run the PairJobs of kind `kind`.
    """
    counts = _number_words(segments, groups)
    count()
    scratch = segments[0].scratch
    pieces = list(scratch.committed(kind))
    keys, times = np.concatenate([load_array(array_path(scratch, name, _PAIRS)) for name, _ in pieces], axis=1)
    vocabulary = len(counts) + sum(int(facts["distinct"]) for _, facts in pieces)
    score = (times - MIN_COUNT) / counts[keys >> 32] / counts[keys & 0xFFFFFFFF] * vocabulary
    return np.sort(keys[score > THRESHOLD])


def _number_words(segments: Sequence[Segment], groups: int) -> Indices:
    """Number the distinct words of the corpus, store their ids with each segment, and return their counts."""
    counts: list[Indices] = []
    base = 0
    for segment in segments:
        segment.save(_IDS, np.full(segment.size, -1, np.int32))
    for group in range(groups):
        table, sums = StringTable(), np.zeros(0, np.int64)
        for segment in segments:
            words = segment.words()
            chosen, ids = table.intern_group(words.data, words.bounds[:-1], words.bounds[1:], group, groups)
            sums = np.pad(sums, (0, table.count - len(sums)))
            sums[ids] += words.counts[chosen]
            kept = segment.load(_IDS)
            kept[words.numbers[chosen]] = base + ids
            segment.save(_IDS, kept)
        counts.append(sums)
        base += table.count
    return np.concatenate(counts)


class PairJob(Job):
    """Counts the pairs of neighbouring words of one group; keeps those that occur more than MIN_COUNT times."""

    def __init__(self, scratch: ScratchFolder, kind: str, segments: Sequence[Segment], groups: int) -> None:
        self._scratch, self._kind, self._segments, self._groups = scratch, kind, segments, groups

    def do(self, group: int) -> int:
        """Count the pairs of a group, and return 1."""
        found = []
        for segment in self._segments:
            ids = segment.load(_IDS)
            found += [_pairs(stream, ids, group, self._groups) for _, stream in segment.streams()]
        keys, times = np.unique(np.concatenate(found), return_counts=True)
        name = f"{self._kind}-{group:06d}"
        save(array_path(self._scratch, name, _PAIRS), np.stack([keys, times])[:, times > MIN_COUNT])
        self._scratch.commit(name, {"distinct": len(keys)})
        return 1


class Joiner:
    """Rewrites a segment's streams: two words that form a phrase, from left to right, become one."""

    def __init__(self, segment: Segment, phrases: Path) -> None:
        words, ids = segment.words(), segment.load(_IDS)[segment.words().numbers]
        order = np.argsort(ids)
        keys = load_array(phrases)
        first, second = (_found(ids[order], half) for half in (keys >> 32, keys & 0xFFFFFFFF))
        here = (first >= 0) & (second >= 0)
        pairs = np.stack([order[first[here]], order[second[here]]])
        local = words.numbers[pairs]
        own = local[0] << 32 | local[1]
        order = np.argsort(own)
        self._keys, self._size = own[order], segment.size
        self._begins = np.zeros(segment.size, np.bool_)
        self._begins[local[0]] = True
        text, bounds = words.data.tobytes(), words.bounds.tolist()
        names = [[text[bounds[n] : bounds[n + 1]] for n in half] for half in pairs[:, order].tolist()]
        self.data, _, stops = packed([b"_".join(pair) for pair in zip(*names, strict=True)])
        self.bounds = np.append(0, stops)

    def __call__(self, stream: Ids) -> Ids:
        """Return the stream with phrases joined."""
        out = np.empty_like(stream)
        return out[: _join(stream, self._begins, self._keys, self._size, out)]


def _found(ids: Ids, wanted: Indices) -> Indices:
    """Return the place of each wanted id in the sorted `ids`, or -1."""
    at = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
    return np.where(ids[at] == wanted, at, -1)


@compiled
def _pairs(stream: Ids, ids: Ids, group: int, groups: int) -> Indices:
    """Return the keys, (id << 32) | id, of one group's pairs of neighbouring words."""
    out, count = np.empty(len(stream), np.int64), 0
    for n in range(len(stream) - 1):
        if stream[n] != 0 and stream[n + 1] != 0:
            first, second = np.int64(ids[stream[n]]), np.int64(ids[stream[n + 1]])
            if (first * _SPREAD + second) % groups == group:
                out[count] = first << 32 | second
                count += 1
    return out[:count].copy()


@compiled
def _join(stream: Ids, begins: npt.NDArray[np.bool_], keys: Indices, size: int, out: Ids) -> int:
    """Write the stream with the n-th of the pairs `keys` (number << 32 | number) replaced by `size` + n."""
    written, n = 0, 0
    while n < len(stream):
        word = stream[n]
        out[written] = word
        n += 1
        if begins[word] and n < len(stream) and stream[n] != 0:
            key = np.int64(word) << 32 | np.int64(stream[n])
            at = np.searchsorted(keys, key)
            if at < len(keys) and keys[at] == key:
                out[written] = size + at
                n += 1
        written += 1
    return written
