"""Reduce buckets of records to sorted cells with their sums: the second half of counting.

If a bucket's range of keys is small, its records are added up in an array with one element per key; otherwise they are
sorted. Either way the memory depends on the range or on the number of the bucket's records, never on the corpus.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from glovewire.common.array_types import Array
from glovewire.common.runtime.compiled import compiled

from .cell_keys import Keys
from .cooccurrence import Buckets, Weighting
from .spill import Records, Spill, Sums

DENSE_BITS = 22
"""For ranges of up to this many bits, an array with one element per key costs less than sorting."""


class Reducer:
    """Adds up the buckets of a spill, one after another; small ranges share one dense array."""

    def __init__(self, spill: Spill, buckets: Buckets, weighting: Weighting) -> None:
        self._spill, self._buckets, self._units, self.scale = spill, buckets, weighting.units, weighting.scale
        dense = buckets.range_bits <= DENSE_BITS
        self._dense = np.zeros(1 << buckets.range_bits, np.uint64) if dense else None

    def reduce(self, first: int, last: int) -> tuple[Keys, Sums]:
        """Return the cells of buckets [first, last): keys in ascending order, and sums in units."""
        runs = list(self._spill.records(first, last))
        bits = self._buckets.range_bits
        cells = list(self._spill.cells(first << bits, last << bits))
        found = []
        for bucket in range(first, last):
            parts = [r[b[bucket - first] : b[bucket - first + 1]] for r, b in runs]
            base = bucket << bits
            inside = [_between(keys, sums, base, base + (1 << bits)) for keys, sums in cells]
            found.append(self._reduce_one(base, [p for p in parts if len(p)], [c for c in inside if len(c[0])]))
        keys, sums = ([part[n] for part in found] for n in (0, 1))
        return np.concatenate(keys), np.concatenate(sums)

    def _reduce_one(self, base: int, parts: list[Records], cells: list[tuple[Keys, Sums]]) -> tuple[Keys, Sums]:
        if not parts and not cells:
            return np.zeros(0, np.uint64), np.zeros(0, np.uint64)
        if any(sums.dtype != np.uint64 for _, sums in cells):
            return combined(cells)
        if self._dense is not None:
            return self._reduce_dense(self._dense, base, parts, cells)
        return self._reduce_sorted(base, parts, cells)

    def _reduce_dense(
        self, dense: Keys, base: int, parts: list[Records], cells: list[tuple[Keys, Sums]]
    ) -> tuple[Keys, Sums]:
        for part in parts:
            _add_records(part, self._units, dense)
        for keys, sums in cells:
            dense[(keys - np.uint64(base)).astype(np.int64)] += sums
        count = int(np.count_nonzero(dense))
        out = np.empty(count, np.uint64), np.empty(count, np.uint64)
        _collect(dense, np.uint64(base), *out)
        return out

    def _reduce_sorted(self, base: int, parts: list[Records], cells: list[tuple[Keys, Sums]]) -> tuple[Keys, Sums]:
        records = np.concatenate([np.zeros(0, np.uint64), *(part.astype(np.uint64) for part in parts)])
        records.sort()
        keys, units = np.empty(len(records), np.uint64), np.empty(len(records), np.uint64)
        count = _add_sorted(records, self._units, np.uint64(base), keys, units)
        if not cells:
            return keys[:count].copy(), units[:count].copy()
        return combined([(keys[:count], units[:count]), *cells])


def _between(keys: Keys, sums: Sums, low: int, high: int) -> tuple[Keys, Sums]:
    start, stop = np.searchsorted(keys, np.array([low, high], np.uint64))
    return keys[start:stop], sums[start:stop]


def combined(parts: Sequence[tuple[Array, Array]]) -> tuple[Array, Array]:
    """Return the distinct keys of parts (keys, values), ascending, and the sum of the values of each key."""
    keys, values = (np.concatenate(each) for each in zip(*parts, strict=True))
    order = np.argsort(keys, kind="stable")
    keys, values = keys[order], values[order]
    starts = np.flatnonzero(np.append(True, keys[1:] != keys[:-1])[: len(keys)])
    return keys[starts], np.add.reduceat(values, starts)


@compiled
def _add_records(records: npt.NDArray[Any], units: Keys, dense: Keys) -> None:
    for n in range(len(records)):
        record = np.int64(records[n])
        dense[record >> 4] += units[record & 15]


@compiled
def _collect(dense: Keys, base: np.uint64, keys: Keys, sums: Keys) -> None:
    """Write the keys and sums of the non-zero elements of `dense`, and reset these elements to zero."""
    count = 0
    for place in range(len(dense)):
        if dense[place] != 0:
            keys[count] = base | np.uint64(place)
            sums[count] = dense[place]
            dense[place] = 0
            count += 1


@compiled
def _add_sorted(records: Keys, units: Keys, base: np.uint64, keys: Keys, sums: Keys) -> int:
    """Write each distinct key of the sorted records with its sum in units; return the number of distinct keys."""
    count = 0
    four = np.uint64(4)
    for n in range(len(records)):
        key = base | (records[n] >> four)
        if count == 0 or keys[count - 1] != key:
            keys[count] = key
            sums[count] = 0
            count += 1
        sums[count - 1] += units[np.int64(records[n] & np.uint64(15))]
    return count
