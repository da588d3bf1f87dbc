"""Compute a sort key for every cell of the matrix: an integer whose order is the order of entries on disk.

A key holds, from its highest bits: partition of the row, partition of the column, stripe, tile in the stripe, row in
the tile, column in the tile. The fields of the row depend on one word and those of the column on the other, so a key
is the OR of two table look-ups. No I/O.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from glovewire.common.array_types import Entries, Ids, Indices, Pairs
from glovewire.common.runtime.compiled import compiled
from glovewire.common.storage.dataset import ENTRY, Layout

Keys = npt.NDArray[np.uint64]
MAX_KEY_BITS = 58
"""Maximum width of a key: a 64-bit record holds a key and four bits of distance."""


@dataclass(frozen=True)
class CellKeys:
    """Computes the keys of the cells of a matrix in `layout`; `permutation` is the word of each row, int32 (rows,)."""

    layout: Layout
    permutation: Ids

    @cached_property
    def _bits(self) -> tuple[int, int, int, int, int]:
        """Return the bits of a partition, a stripe, a tile in it, a row and a column in the tile."""
        layout, every = self.layout, range(self.layout.partitions)
        largest = max(layout.size(partition) for partition in every)
        return (
            _width(layout.partitions),
            _width(max(layout.stripes(partition) for partition in every)),
            _width(max(layout.tile_rows(partition) for partition in every)),
            _width(min(layout.tile, largest)),
            _width(min(layout.columns, largest)),
        )

    @property
    def bits(self) -> int:
        """Return the number of bits in a key."""
        return sum(self._bits) + self._bits[0]

    @cached_property
    def word_keys(self) -> Keys:
        """Return per word its row, its key bits as the row's word, and those as the column's; uint64 (words, 3)."""
        partition_bits, _, tile_bits, row_bits, column_bits = self._bits
        layout, bounds = self.layout, np.array(self.layout.bounds)
        row = np.argsort(self.permutation)
        partition = np.searchsorted(bounds, row, side="right") - 1
        position = row - bounds[partition]
        below_partitions = self.bits - 2 * partition_bits
        above = (
            (partition << (below_partitions + partition_bits))
            | (position // layout.tile << (row_bits + column_bits))
            | (position % layout.tile << column_bits)
        )
        column = (
            (partition << below_partitions)
            | (position // layout.columns << (tile_bits + row_bits + column_bits))
            | (position % layout.columns)
        )
        return np.stack([row, above, column], axis=1).astype(np.uint64)

    def entries(self, keys: Keys, weights: npt.NDArray[np.float32]) -> Entries:
        """Convert cells, as sorted keys with their weights, to entries of the dataset, dtype ENTRY."""
        out = np.empty(len(keys), ENTRY)
        _unpack(keys, *self._bits[1:], self.layout.tile, self.layout.columns, out["i"], out["j"])
        out["x"] = weights
        return out

    def tiles_of(self, keys: Keys) -> tuple[Indices, Indices]:
        """Return the numbers of the tiles that sorted cells are in, and the number of cells in each; int64 (tiles,)."""
        partition_bits, stripe_bits, tile_bits, row_bits, column_bits = self._bits
        layout = self.layout
        prefixes = keys >> np.uint64(row_bits + column_bits)
        starts = np.flatnonzero(np.concatenate([prefixes[:1] == prefixes[:1], prefixes[1:] != prefixes[:-1]]))
        above = prefixes[starts].astype(np.int64)
        stripe, tile = above >> tile_bits & (1 << stripe_bits) - 1, above & (1 << tile_bits) - 1
        block = above >> (stripe_bits + tile_bits)
        a, b = block >> partition_bits, block & (1 << partition_bits) - 1
        tile_rows = np.array([layout.tile_rows(partition) for partition in range(layout.partitions)])
        first = np.zeros((layout.partitions, layout.partitions), np.int64)
        first[tuple(np.transpose(layout.blocks))] = layout.first_tile[:-1]
        return first[a, b] + stripe * tile_rows[a] + tile, np.diff(starts, append=len(keys))

    def on_diagonal(self, keys: Keys, entries: Entries) -> npt.NDArray[np.bool_]:
        """Return which of the cells with these keys and entries are on the diagonal of the matrix; bool (cells,)."""
        block = (keys >> np.uint64(self.bits - 2 * self._bits[0])).astype(np.int64)
        same = block >> self._bits[0] == block & (1 << self._bits[0]) - 1
        return np.asarray(same & (entries["i"] == entries["j"]))


def _width(values: int) -> int:
    """Return the number of bits needed for numbers below `values`."""
    return int(values - 1).bit_length()


@compiled
def _unpack(
    keys: Keys,
    stripe_bits: int,
    tile_bits: int,
    row_bits: int,
    column_bits: int,
    tile: int,
    columns: int,
    i: Pairs,
    j: Pairs,
) -> None:
    for n in range(len(keys)):
        key = np.int64(keys[n])
        row, column = (key >> column_bits) & ((1 << row_bits) - 1), key & ((1 << column_bits) - 1)
        above = key >> (row_bits + column_bits)
        i[n] = (above & ((1 << tile_bits) - 1)) * tile + row
        j[n] = ((above >> tile_bits) & ((1 << stripe_bits) - 1)) * columns + column
