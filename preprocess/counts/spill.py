"""Spill counts to disk: runs of records, grouped by bucket, and lists of cells, sorted by key.

A run is one file of records and one of bucket bounds; a list of cells is one file of keys and one of sums. All are
plain .npy files, read in slices with one file open at a time; a file with its final name is complete.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from glovewire.common.array_types import Array, Indices
from glovewire.common.storage.artifacts import atomic, load_array, save_array

from .cell_keys import Keys
from .cooccurrence import Buckets

Records = npt.NDArray[np.uint32] | npt.NDArray[np.uint64]
Sums = Array
"""Sums of weights: uint64 in units, or float64 for counts made by Stanford's GloVe."""


def save(path: Path, array: Array) -> None:
    """Write an array to `path` atomically."""
    with atomic(path, flush=False) as scratch:
        save_array(scratch, array)


def load_part(path: Path, start: int, stop: int) -> Array:
    """Read elements [start, stop) of a one-dimensional array."""
    with path.open("rb") as stream:
        np.lib.format.read_magic(stream)
        _, _, dtype = np.lib.format.read_array_header_1_0(stream)
        stream.seek(start * dtype.itemsize, 1)
        return np.fromfile(stream, dtype, stop - start)


@dataclass(frozen=True)
class Spill:
    """Folder of runs (`NAME.records.npy`, `NAME.buckets.npy`) and cells (`NAME.keys.npy`, `NAME.sums.npy`)."""

    folder: Path

    def add_run(self, name: str, records: Records, bounds: Indices) -> None:
        """Write a run of records grouped by bucket; `bounds` int64 (buckets + 1,)."""
        save(self.folder / f"{name}.records.npy", records)
        save(self.folder / f"{name}.buckets.npy", bounds)

    def add_cells(self, name: str, keys: Keys, sums: Sums) -> None:
        """Write cells sorted by key."""
        save(self.folder / f"{name}.keys.npy", keys)
        save(self.folder / f"{name}.sums.npy", sums)

    def runs(self) -> Iterator[tuple[Path, Indices]]:
        """Yield for every run the path of its records, and its bucket bounds."""
        for path in sorted(self.folder.glob("*.buckets.npy")):
            yield path.with_name(path.name.replace(".buckets.", ".records.")), load_array(path)

    def records(self, first: int, last: int) -> Iterator[tuple[Records, Indices]]:
        """Yield from every run the records of buckets [first, last), and the buckets' bounds among these records."""
        for path, bounds in self.runs():
            start, stop = int(bounds[first]), int(bounds[last])
            if start < stop:
                yield load_part(path, start, stop), bounds[first : last + 1] - start

    def cells(self, low: int, high: int) -> Iterator[tuple[Keys, Sums]]:
        """Yield from every list the cells with low <= key < high."""
        for path in sorted(self.folder.glob("*.keys.npy")):
            keys = np.load(path, mmap_mode="r", allow_pickle=False)
            start, stop = (int(n) for n in np.searchsorted(keys, np.array([low, high], np.uint64)))
            if start < stop:
                sums = path.with_name(path.name.replace(".keys.", ".sums."))
                yield np.array(keys[start:stop]), load_part(sums, start, stop)

    def bucket_sizes(self, buckets: Buckets) -> Indices:
        """Return the number of records and cells in each bucket, over all runs and lists; int64 (buckets,)."""
        sizes = np.zeros(buckets.count, np.int64)
        for _, bounds in self.runs():
            sizes += np.diff(bounds)
        edges = np.arange(1, buckets.count, dtype=np.uint64) << np.uint64(buckets.range_bits)
        for path in self.folder.glob("*.keys.npy"):
            keys = np.load(path, mmap_mode="r", allow_pickle=False)
            sizes += np.diff(np.searchsorted(keys, edges), prepend=0, append=len(keys))
        return sizes
