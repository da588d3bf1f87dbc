"""Compute a sort key for every cell of the matrix: an integer whose order is the order of entries on disk.

A key holds, from its highest bits: partition of the row, partition of the column, row of tiles, column of tiles, row
in the tile, column in the tile. The fields of the row depend on one word and those of the column on the other, so a key
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
    def _bits(self) -> tuple[int, int, int]:
        largest = int(np.diff(self.layout.bounds).max())
        tiles = -(-largest // self.layout.tile)
        return _width(self.layout.partitions), _width(tiles), _width(min(self.layout.tile, largest))

    @property
    def bits(self) -> int:
        """Return the number of bits in a key."""
        return 2 * sum(self._bits)

    @cached_property
    def word_keys(self) -> Keys:
        """Return per word: its row, bits of a key as the row's word, and as the column's word; uint64 (words, 3)."""
        partition_bits, tile_bits, local_bits = self._bits
        row = np.empty(self.layout.rows, np.int64)
        row[self.permutation] = np.arange(self.layout.rows)
        partition = np.searchsorted(self.layout.bounds, row, side="right") - 1
        position = row - self.layout.bounds[partition]
        tile, local = position // self.layout.tile, position % self.layout.tile
        column = (partition << (2 * (tile_bits + local_bits))) | (tile << (2 * local_bits)) | local
        above = (
            (partition << (partition_bits + 2 * (tile_bits + local_bits)))
            | (tile << (tile_bits + 2 * local_bits))
            | (local << local_bits)
        )
        return np.stack([row, above, column], axis=1).astype(np.uint64)

    @cached_property
    def tile_numbers(self) -> Indices:
        """Return the tile's number for each value of a key's bits above the place in the tile; -1 if none exists."""
        partition_bits, tile_bits, _ = self._bits
        numbers = np.full(1 << (2 * (partition_bits + tile_bits)), -1, np.int64)
        side = -(-np.diff(self.layout.bounds) // self.layout.tile)
        for block, (a, b) in enumerate(self.layout.blocks):
            i, j = np.meshgrid(np.arange(side[a]), np.arange(side[b]), indexing="ij")
            prefix = ((((a << partition_bits) | b) << tile_bits | i) << tile_bits) | j
            numbers[prefix] = self.layout.first_tile[block] + i * side[b] + j
        return numbers

    def entries(self, keys: Keys, weights: npt.NDArray[np.float32]) -> Entries:
        """Convert cells, as sorted keys with their weights, to entries of the dataset, dtype ENTRY."""
        _, tile_bits, local_bits = self._bits
        out = np.empty(len(keys), ENTRY)
        _unpack(keys, tile_bits, local_bits, self.layout.tile, out["i"], out["j"])
        out["x"] = weights
        return out

    def tiles_of(self, keys: Keys) -> Indices:
        """Return the number of each cell's tile in the layout; int64 (cells,)."""
        return self.tile_numbers[(keys >> np.uint64(2 * self._bits[2])).astype(np.int64)]

    def on_diagonal(self, keys: Keys) -> npt.NDArray[np.bool_]:
        """Return which cells are on the diagonal of the matrix; bool (cells,)."""
        out = np.empty(len(keys), np.bool_)
        _on_diagonal(keys, *self._bits, out)
        return out


def _width(values: int) -> int:
    """Return the number of bits that numbers below `values` need."""
    return int(values - 1).bit_length()


@compiled
def _on_diagonal(keys: Keys, partition_bits: int, tile_bits: int, local_bits: int, out: npt.NDArray[np.bool_]) -> None:
    for n in range(len(keys)):
        rest = np.int64(keys[n])
        same = True
        for bits in (local_bits, tile_bits, partition_bits):
            mask = (1 << bits) - 1
            same = same and (rest & mask) == ((rest >> bits) & mask)
            rest >>= 2 * bits
        out[n] = same


@compiled
def _unpack(keys: Keys, tile_bits: int, local_bits: int, tile: int, i: Pairs, j: Pairs) -> None:
    local, tiles = (1 << local_bits) - 1, (1 << tile_bits) - 1
    for n in range(len(keys)):
        key = np.int64(keys[n])
        above = key >> (2 * local_bits)
        i[n] = ((above >> tile_bits) & tiles) * tile + ((key >> local_bits) & local)
        j[n] = (above & tiles) * tile + (key & local)
