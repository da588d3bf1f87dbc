"""Read the training data: a vocabulary and the co-occurrence matrix, its entries sorted by block.

Words are numbered alphabetically in `vocabulary.txt`. A permutation renumbers them as table rows, roughly by falling
frequency, and the rows are cut into partitions, contiguous ranges; a block is the submatrix with the rows of a
partition and the columns of the same or another one. An entry holds its position inside its block (two uint16) and its
weight (float32): 8 bytes. All processes on a machine map the same files, which `preprocess` writes.
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from ..array_types import Entries, Ids, Indices
from ..errors import ArtifactError, BadRequest
from .artifacts import MANIFEST, Manifest, damage_errors, load_array, read_piece

KIND = "dataset"
SCHEMA = 2
ENTRY = np.dtype([("i", "<u2"), ("j", "<u2"), ("x", "<f4")])
VOCABULARY, COUNTS, PERMUTATION = "vocabulary.txt", "counts.npy", "permutation.npy"
ENTRIES, TILES = "entries.npy", "tiles.npy"
CHECKSUMS = "blocks.npy"
"""SHA-256 of the entries of each block, uint8 (blocks, 32)."""
FILES = (VOCABULARY, COUNTS, PERMUTATION, ENTRIES, TILES, CHECKSUMS)
MAX_PARTITION_ROWS = 1 << 16
MAX_PARTITIONS = 1 << 12
FEW_PARTITIONS = 64
"""A larger number of partitions must not exceed the number of rows: no small file may describe millions of blocks."""
DIGEST_BYTES = 32
WIDE = 4
"""Ratio of a tile's columns to its rows."""


@dataclass(frozen=True)
class Layout:
    """How a matrix is cut into partitions, blocks and tiles.

    `bounds` are the first row of each partition and, last, the number of rows. A block is a pair (a, b) of partitions.
    A symmetric matrix keeps one triangle: only blocks with a >= b, and in block (a, a) only entries with i >= j.
    Otherwise every ordered pair is a block. Blocks are stored in lexicographic order. A block is cut into stripes of
    WIDE * `tile` columns, a stripe into tiles of `tile` rows; entries are sorted by tile, inside a tile by (i, j). So
    the table rows of a stripe's columns, the more frequent words, stay in the CPU cache; those of its rows pass by.
    """

    bounds: tuple[int, ...]
    tile: int
    symmetric: bool

    @property
    def rows(self) -> int:
        """Return the number of rows of the matrix."""
        return self.bounds[-1]

    @property
    def partitions(self) -> int:
        """Return the number of partitions."""
        return len(self.bounds) - 1

    @property
    def columns(self) -> int:
        """Return the number of columns in a tile."""
        return WIDE * self.tile

    @cached_property
    def blocks(self) -> tuple[tuple[int, int], ...]:
        """Return every block (a, b), in the order in which they are stored."""
        every = range(self.partitions)
        return tuple((a, b) for a in every for b in every if a >= b or not self.symmetric)

    @cached_property
    def block_index(self) -> dict[tuple[int, int], int]:
        """Return the position of each block in `blocks`."""
        return {pair: index for index, pair in enumerate(self.blocks)}

    @cached_property
    def first_tile(self) -> Indices:
        """Return the number of the first tile of each block and, last, of all tiles; shape (blocks + 1,)."""
        counts = [self.stripes(b) * self.tile_rows(a) for a, b in self.blocks]
        return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)

    def size(self, partition: int) -> int:
        """Return the number of rows in a partition."""
        return self.bounds[partition + 1] - self.bounds[partition]

    def span(self, partition: int) -> tuple[int, int]:
        """Return the first row of a partition and the row after its last."""
        return self.bounds[partition], self.bounds[partition + 1]

    def stripes(self, partition: int) -> int:
        """Return the number of stripes in a block whose columns are those of `partition`."""
        return -(-self.size(partition) // self.columns)

    def tile_rows(self, partition: int) -> int:
        """Return the number of tiles per stripe in a block whose rows are those of `partition`."""
        return -(-self.size(partition) // self.tile)

    def between(self, partition: int, other: int) -> list[tuple[int, int]]:
        """Return the stored blocks between two partitions."""
        pair = partition, other
        return [pair] if self.symmetric or other == partition else [pair, pair[::-1]]

    def strip(self, partition: int) -> list[tuple[int, int]]:
        """Return the stored blocks between a partition and those before it, and the one inside it."""
        return [pair for other in range(partition + 1) for pair in self.between(partition, other)]


@dataclass(frozen=True, repr=False)
class Dataset:
    """An opened dataset. `entries` is memory-mapped and read-only; all other fields are in memory.

    A dataset that is downloaded block by block has no `entries`; `loaded` has those of the blocks in use.
    """

    path: Path
    manifest: Manifest
    layout: Layout
    words: tuple[str, ...]
    counts: Indices
    permutation: Ids
    entries: Entries
    tiles: Indices
    checksums: npt.NDArray[np.uint8]
    loaded: dict[tuple[int, int], Entries] | None = None

    @classmethod
    def open(cls, path: Path, *, verify: bool = True, in_blocks: bool = False) -> Self:
        """Open the dataset in folder `path`; with `verify`, compare checksums and check every entry first.

        With `in_blocks`, the folder lacks the entries, and a block can be used once it is in `loaded`.
        Raises ArtifactError if a file is missing, truncated, altered or does not fit the others, or if the dataset has
        another schema.
        """
        manifest = Manifest.load(path, KIND, SCHEMA, verify=verify, without=[ENTRIES] if in_blocks else ())
        if missing := [name for name in FILES if name not in manifest.files]:
            raise ArtifactError(f"{path} is a dataset without {', '.join(missing)}: make it again")
        with damage_errors(f"{path} is not a readable dataset", KeyError):
            facts = manifest.facts
            bounds = tuple(int(bound) for bound in facts["bounds"])
            layout = Layout(bounds, int(facts["tile"]), bool(facts["symmetric"]))
            words = tuple((path / VOCABULARY).read_text(encoding="utf-8").split("\n")[:-1])
            counts, permutation = load_array(path / COUNTS), load_array(path / PERMUTATION)
            tiles, checksums = load_array(path / TILES), load_array(path / CHECKSUMS)
            entries = np.empty(0, ENTRY) if in_blocks else load_array(path / ENTRIES, mapped=True)
            total, vocabulary = int(facts["entries"]), int(facts["vocabulary"])
        _check_layout(path, layout, vocabulary)
        loaded: dict[tuple[int, int], Entries] | None = {} if in_blocks else None
        dataset = cls(path, manifest, layout, words, counts, permutation, entries, tiles, checksums, loaded)
        dataset.check_shapes()
        if verify and not in_blocks:
            dataset.check_entries(total)
        return dataset

    def __repr__(self) -> str:
        return f"Dataset({str(self.path)!r}: {len(self.words):,} words, {self.total_entries:,} entries)"

    @cached_property
    def checksum(self) -> str:
        """Return the SHA-256 (hex) of the manifest, which a worker and its server compare."""
        return self.manifest.checksum

    @property
    def total_entries(self) -> int:
        """Return the number of entries of the full matrix: of both triangles even if only one is stored."""
        return int(self.manifest.facts["entries"])

    @cached_property
    def frequencies(self) -> npt.NDArray[np.float64]:
        """Return the frequency of each table row's word, as a fraction of the text; shape (rows,)."""
        return self.counts[self.permutation] / max(int(self.counts.sum()), 1)

    def block_range(self, a: int, b: int) -> tuple[int, int]:
        """Return the index of the first stored entry of block (a, b) and the index after its last."""
        block = self.layout.block_index[a, b]
        first, last = self.layout.first_tile[block], self.layout.first_tile[block + 1]
        return int(self.tiles[first]), int(self.tiles[last])

    def block(self, a: int, b: int) -> tuple[Entries, Indices]:
        """Return the entries of block (a, b), dtype ENTRY, and `starts`, shape (tiles + 1,).

        Tile t of the block is entries[starts[t] : starts[t + 1]].
        """
        block = self.layout.block_index[a, b]
        starts = self.tiles[self.layout.first_tile[block] : self.layout.first_tile[block + 1] + 1]
        entries = self.entries[starts[0] : starts[-1]] if self.loaded is None else self.loaded[a, b]
        return entries, starts - starts[0]

    def full_entries(self, a: int, b: int) -> int:
        """Return how many entries of the full matrix block (a, b) stands for; mirrored ones count twice."""
        first, last = self.block_range(a, b)
        if not self.layout.symmetric:
            return last - first
        if a != b:
            return 2 * (last - first)
        stored, _ = self.block(a, b)
        return 2 * (last - first) - int(np.count_nonzero(stored["i"] == stored["j"]))

    def distinct(self, partition: int, other: int) -> Indices:
        """Return the rows of `other` that occur in the blocks between two partitions, ascending."""
        found = np.zeros(self.layout.size(other), np.bool_)
        for a, b in self.layout.between(partition, other):
            entries, _ = self.block(a, b)
            found[entries["i" if a == other else "j"]] = True
        return np.flatnonzero(found) + self.layout.bounds[other]

    def read(self, file: str, offset: int, most: int) -> tuple[bytes, int]:
        """Return at most `most` bytes of a file of this dataset, starting at `offset`, and the file's size.

        Raises BadRequest for a name that the manifest lacks, ArtifactError if the file is gone.
        """
        if file != MANIFEST and file not in self.manifest.files:
            raise BadRequest(f"the dataset has no file {file[:80]!r}")
        return read_piece(self.path / file, offset, most)

    def check_shapes(self) -> None:
        """Raise ArtifactError unless the arrays have the shapes and types that the manifest implies."""
        layout, words = self.layout, len(self.words)
        fits = {
            VOCABULARY: words == layout.rows,
            COUNTS: self.counts.dtype == np.int64 and self.counts.shape == (words,),
            PERMUTATION: self.permutation.dtype == np.int32
            and self.permutation.shape == (words,)
            and np.array_equal(np.sort(self.permutation), np.arange(words)),
            TILES: self.tiles.dtype == np.int64
            and self.tiles.shape == (layout.first_tile[-1] + 1,)
            and bool((np.diff(self.tiles) >= 0).all()),
            ENTRIES: self.entries.dtype == ENTRY and self.entries.ndim == 1,
            CHECKSUMS: self.checksums.dtype == np.uint8 and self.checksums.shape == (len(layout.blocks), DIGEST_BYTES),
        }
        if fits[TILES]:
            total = self.entries.size if self.loaded is None else self.tiles[-1]
            fits[ENTRIES] = fits[ENTRIES] and total == self.tiles[-1] and self.tiles[0] == 0
        for name, good in fits.items():
            if not good:
                raise ArtifactError(f"{self.path / name} does not fit the dataset's manifest: altered or truncated")

    def check_entries(self, total: int) -> None:
        """Raise ArtifactError unless there are `total` entries, all valid: kernels check no positions."""
        good, full = True, 0
        for a, b in self.layout.blocks:
            entries, _ = self.block(a, b)
            good = good and self._are_possible(a, b, entries)
            full += self.full_entries(a, b)
        if not good or full != total:
            raise ArtifactError(f"{self.path / ENTRIES} holds impossible entries, or the wrong number of them")

    def fits(self, a: int, b: int, entries: Entries) -> bool:
        """Return whether `entries` are those of block (a, b): valid, and with its checksum."""
        first, last = self.block_range(a, b)
        digest = hashlib.sha256(entries.view(np.uint8).data).digest()
        same = digest == self.checksums[self.layout.block_index[a, b]].tobytes()
        return len(entries) == last - first and same and self._are_possible(a, b, entries)

    def _are_possible(self, a: int, b: int, entries: Entries) -> bool:
        if not len(entries):
            return True
        inside = entries["i"].max() < self.layout.size(a) and entries["j"].max() < self.layout.size(b)
        return bool(inside and np.isfinite(entries["x"]).all() and entries["x"].min() > 0)


def block_checksums(layout: Layout, tiles: Indices, entries: Entries) -> npt.NDArray[np.uint8]:
    """Return the content of the file CHECKSUMS: the SHA-256 of the `entries` of each block."""
    spans = pairwise(tiles[layout.first_tile].tolist())
    digests = (hashlib.sha256(entries[first:last].view(np.uint8).data).digest() for first, last in spans)
    return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, DIGEST_BYTES)


def _check_layout(path: Path, layout: Layout, vocabulary: int) -> None:
    """Raise ArtifactError for an impossible layout, before anything is computed from it."""
    sizes = np.diff(layout.bounds)
    possible = (
        1 <= len(sizes) <= min(MAX_PARTITIONS, max(layout.rows, FEW_PARTITIONS))
        and layout.bounds[0] == 0
        and layout.rows == vocabulary
        and bool(((sizes >= 0) & (sizes <= MAX_PARTITION_ROWS)).all())
        and 1 <= layout.tile <= MAX_PARTITION_ROWS
    )
    if not possible:
        raise ArtifactError(f"{path} describes an impossible matrix: altered, or made by another program")
