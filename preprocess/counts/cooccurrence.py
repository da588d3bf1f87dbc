"""Count co-occurrences: streams of words in, records of (cell, distance) out.

A pair at distance d weighs lcm(1..window) / d units (uniform: one unit), so sums are integers and do not depend on the
order of addition. Pairs of two frequent words are added up in a small dense matrix, the square. Any other pair becomes
a record: the cell's key and the distance. A full buffer of records is written grouped by bucket; a bucket is a range of
keys. `reduce` later adds up each bucket in memory: every record is written once and read once, whatever the size of the
corpus, so there are no levels of merging.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from glovewire.common.array_types import Ids, Indices
from glovewire.common.runtime.compiled import compiled

from .cell_keys import CellKeys, Keys

_DISTANCE_BITS = 4
_MAX_WINDOW = (1 << _DISTANCE_BITS) - 1
_RING = _MAX_WINDOW + 1
_MAX_BUCKET_BITS = 12
_DENSE_RANGE_BITS = 20
NARROW_RANGE_BITS = 32 - _DISTANCE_BITS


@dataclass(frozen=True)
class Weighting:
    """Weights of pairs: `units[d]` units at distance d, uint64 of shape (16,); `scale` units weigh 1."""

    units: npt.NDArray[np.uint64]
    scale: int

    @staticmethod
    def of(kind: str, window: int) -> Weighting:
        """Return the weights of kind `distance` (1 / distance) or `uniform` up to `window`."""
        distances = range(1, window + 1)
        scale = math.lcm(*distances) if kind == "distance" else 1
        units = [0, *(scale // d if kind == "distance" else 1 for d in distances)]
        return Weighting(np.array(units + [0] * (_RING - len(units)), np.uint64), scale)


@dataclass(frozen=True)
class Buckets:
    """Equal ranges that divide all keys of `bits` bits; a record holds only the lowest `range_bits` of its key."""

    bits: int

    @property
    def range_bits(self) -> int:
        """Return the number of bits of a key inside its bucket."""
        return max(self.bits - _MAX_BUCKET_BITS, min(self.bits, _DENSE_RANGE_BITS))

    @property
    def count(self) -> int:
        """Return the number of buckets."""
        return 1 << (self.bits - self.range_bits)

    @property
    def dtype(self) -> np.dtype[np.uint32] | np.dtype[np.uint64]:
        """Return the type of a record: the key inside the bucket, shifted left by four, and the distance."""
        return np.dtype(np.uint32) if self.range_bits <= NARROW_RANGE_BITS else np.dtype(np.uint64)


class PairCounter:
    """Counts the pairs of streams, with a dense square for the most frequent words and a buffer of records."""

    def __init__(
        self,
        cell_keys: CellKeys,
        by_rank: Ids,
        window: int,
        weighting: Weighting,
        *,
        square_side: int,
        max_records: int,
    ) -> None:
        self._symmetric = cell_keys.layout.symmetric
        self._ranked = cell_keys.word_keys[by_rank]
        self._window, self._weighting = window, weighting
        self._buckets = Buckets(cell_keys.bits)
        side = min(square_side, len(by_rank))
        self._square = np.zeros((side, side), np.uint64)
        self._records = np.empty(max(max_records, 4 * _MAX_WINDOW), np.uint64)
        self._state = np.zeros(2 + _RING, np.int64)

    def add(self, stream: Ids, ranks: Ids) -> int:
        """Count the pairs of `stream` (words from 1, a 0 after each line); return the number of elements counted.

        `ranks[w - 1]` is the frequency rank of word w, or -1 if it is not in the vocabulary. If fewer elements than the
        whole stream were counted, the buffer is full: call `take_records`, then add the rest.
        """
        return _count_pairs(
            stream,
            ranks,
            self._ranked,
            self._window,
            self._weighting.units,
            self._square,
            self._records,
            self._state,
            self._symmetric,
        )

    def take_records(self) -> tuple[npt.NDArray[np.uint32] | npt.NDArray[np.uint64], Indices]:
        """Empty the buffer; return its records grouped by bucket, and the buckets' bounds, int64 (buckets + 1,)."""
        records = self._records[: self._state[0]]
        bounds = np.zeros(self._buckets.count + 1, np.int64)
        out = np.empty(len(records), self._buckets.dtype)
        _group(records, np.uint64(self._buckets.range_bits + _DISTANCE_BITS), bounds, out)
        self._state[0] = 0
        return out, bounds

    def take_square(self) -> tuple[Keys, Keys]:
        """Empty the dense square; return the sorted keys of its non-zero cells, and their sums in units."""
        square = self._square
        if self._symmetric:  # both directions count towards one cell, below or on the diagonal of the matrix
            rows = self._ranked[: len(square), 0]
            square = (square + square.T) * (rows[:, np.newaxis] >= rows)
        here, there = np.nonzero(square)
        keys, units = self._ranked[here, 1] | self._ranked[there, 2], square[here, there]
        self._square[:] = 0
        order = np.argsort(keys)
        return keys[order], units[order]


@compiled
def _count_pairs(
    stream: Ids,
    ranks: Ids,
    ranked: Keys,
    window: int,
    units: Keys,
    square: Keys,
    records: Keys,
    state: Indices,
    symmetric: bool,
) -> int:
    """Implement PairCounter.add; `state`: records buffered, known words in this line, ring of their last ranks."""
    side = len(square)
    ring = state[2:]
    count, kept = state[0], state[1]
    taken = len(stream)
    for at in range(len(stream)):
        word = stream[at]
        if word == 0:
            kept = 0
            continue
        here = np.int64(ranks[word - 1])
        if here < 0:
            continue
        if count + 2 * window > len(records):
            taken = at
            break
        for d in range(1, min(window, kept) + 1):
            there = ring[(kept - d) & (_RING - 1)]
            if here < side and there < side:
                square[here, there] += units[d]
                continue
            key = ranked[here, 1] | ranked[there, 2]
            if symmetric and ranked[here, 0] < ranked[there, 0]:
                key = ranked[there, 1] | ranked[here, 2]
            record = (key << np.uint64(_DISTANCE_BITS)) | np.uint64(d)
            records[count] = record
            count += 1
            if symmetric and here == there:  # both directions count towards the same cell, on the diagonal
                records[count] = record
                count += 1
        ring[kept & (_RING - 1)] = here
        kept += 1
    state[0], state[1] = count, kept
    return taken


@compiled
def _group(records: Keys, shift: np.uint64, bounds: Indices, out: npt.NDArray[Any]) -> None:
    """Write the bits of `records` below `shift` to `out`, grouped by bucket; fill `bounds`, which must be zeros."""
    for n in range(len(records)):
        bounds[np.int64(records[n] >> shift) + 1] += 1
    for bucket in range(len(bounds) - 1):
        bounds[bucket + 1] += bounds[bucket]
    fill = bounds[:-1].copy()
    mask = (np.uint64(1) << shift) - np.uint64(1)
    for n in range(len(records)):
        into = np.int64(records[n] >> shift)
        out[fill[into]] = records[n] & mask
        fill[into] += 1
