"""Store segments, the parts of the tokenised corpus on disk, and rewrite their streams word by word.

A segment numbers its own words. Its files are `NAME.stream` (int32, see Encoder.encode), one array for each field of
WordCounts, and the arrays that later steps add.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

import numpy as np

from glovewire.common.array_types import Array, Bytes, Ids, Indices
from glovewire.common.runtime.compiled import compiled
from glovewire.common.storage.artifacts import load_array

from .counts.spill import save
from .parallel.pool import Job
from .parallel.scratch import ScratchFolder
from .tokens.encoder import WordCounts
from .tokens.string_table import take

# A word's place in the corpus: the index in the split's stream in this many low bits, the split's ordinal above them.
PLACE_BITS = 36
_NOWHERE = np.iinfo(np.int64).max


class StreamSlice(NamedTuple):
    """Words [start, stop) of the stream of `segment`: the words of the split whose ordinal is `split`."""

    segment: str
    split: int
    start: int
    stop: int


@dataclass(frozen=True)
class Segment:
    """A committed segment; `facts` as `commit` wrote them."""

    scratch: ScratchFolder
    name: str
    facts: dict[str, Any]

    @classmethod
    def all(cls, scratch: ScratchFolder, kind: str) -> list[Self]:
        """Return the committed segments of a kind."""
        return [cls(scratch, name, facts) for name, facts in scratch.committed(kind)]

    @property
    def size(self) -> int:
        """Return the length of an array with an element for each word number, 0 included."""
        return int(self.facts["last_number"]) + 1

    @property
    def slices(self) -> list[StreamSlice]:
        """Return the slices of the stream, one for each split."""
        return [StreamSlice(self.name, *piece) for piece in self.facts["slices"]]

    def words(self) -> WordCounts:
        """Read the word counts."""
        return WordCounts(*(self.load(field.name) for field in fields(WordCounts)))

    def streams(self) -> Iterator[tuple[int, Ids]]:
        """Yield the ordinal of each split, and its slice of the stream."""
        return ((piece.split, read_slice(self.scratch, piece)) for piece in self.slices)

    def save(self, field: str, array: Array) -> None:
        """Store an array with the segment, under the name `field`."""
        save(array_path(self.scratch, self.name, field), array)

    def load(self, field: str) -> Array:
        """Read the array that was stored under the name `field`."""
        return load_array(array_path(self.scratch, self.name, field))


def stream_path(scratch: ScratchFolder, name: str) -> Path:
    """Return the path of a segment's stream."""
    return scratch.folder / f"{name}.stream"


def read_slice(scratch: ScratchFolder, piece: StreamSlice) -> Ids:
    """Read a slice of a stream."""
    return np.fromfile(stream_path(scratch, piece.segment), np.int32, piece.stop - piece.start, offset=4 * piece.start)


def array_path(scratch: ScratchFolder, name: str, field: str) -> Path:
    """Return the path of the array `field` of a piece."""
    return scratch.folder / f"{name}.{field}.npy"


def commit(
    scratch: ScratchFolder, name: str, words: WordCounts, slices: list[tuple[int, int, int]], lines: int
) -> None:
    """Write the word counts of a segment whose stream is complete, and commit it."""
    arrays: dict[str, Array] = vars(words)
    for field, array in arrays.items():
        save(array_path(scratch, name, field), array)
    facts = {
        "slices": slices,
        "lines": lines,
        "tokens": int(words.counts.sum()),
        "last_number": int(words.numbers.max(initial=0)),
        "counts_bytes": sum(array.nbytes for array in arrays.values()),
    }
    scratch.commit(name, facts)


class Rewriter(Protocol):
    """Rewrites the streams of one segment; `data` and `bounds` hold new words, numbered after the segment's own."""

    data: Bytes
    bounds: Indices

    def __call__(self, stream: Ids) -> Ids:
        """Return the new stream."""


class RewriteJob(Job):
    """Rewrites segments, and counts their words anew; the results are segments of kind `kind`."""

    def __init__(self, scratch: ScratchFolder, kind: str, rewriter: Callable[[Segment], Rewriter]) -> None:
        self._scratch, self._kind, self._rewriter = scratch, kind, rewriter

    def do(self, source: Segment) -> int:
        """Rewrite a segment and return 1."""
        rewrite, words = self._rewriter(source), source.words()
        name = f"{self._kind}-{suffix(source.name)}"
        counts = np.zeros(source.size + len(rewrite.bounds) - 1, np.int64)
        first = np.full(len(counts), _NOWHERE)
        slices, written = [], 0
        with stream_path(self._scratch, name).open("wb") as out:
            for split, old in source.streams():
                stream = rewrite(old)
                _count(stream, split << PLACE_BITS, counts, first)
                out.write(stream.data)
                slices.append((split, written, written + len(stream)))
                written += len(stream)
        added = np.arange(source.size, len(counts))
        numbers = np.concatenate([words.numbers, added])
        data = np.concatenate([words.data, rewrite.data])
        bounds = np.concatenate([words.bounds, words.bounds[-1] + rewrite.bounds[1:]])
        used = np.flatnonzero(counts[numbers])
        numbers = numbers[used]
        new = WordCounts(numbers, counts[numbers], first[numbers], np.zeros_like(numbers), *take(data, bounds, used))
        commit(self._scratch, name, new, slices, source.facts["lines"])
        return 1


def suffix(name: str) -> str:
    """Return the part of a segment's name that its rewritten forms share."""
    return name.partition("-")[2]


@compiled
def _count(stream: Ids, place: int, counts: Indices, first: Indices) -> None:
    for n in range(len(stream)):
        word = stream[n]
        if word != 0:
            counts[word] += 1
            first[word] = min(first[word], place + n)
