"""Counts on their way to the dataset: runs of records, grouped by bucket, and lists of cells, sorted by key.

A run is one file of records and one of bucket bounds; a list of cells is one file of keys and one of sums. All are
plain .npy files, read in slices, one file open at a time. A file is whole once it bears its name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from glovewire.common.storage.artifacts import atomic, save_array

from ..tokens.string_table import Longs
from .cell_keys import Keys
from .cooccurrence import Buckets

Records = npt.NDArray[np.uint32] | npt.NDArray[np.uint64]


def save(path: Path, array: npt.NDArray[Any]) -> None:
    """Write an array to `path`, whole or not at all."""
    with atomic(path, flush=False) as scratch:
        save_array(scratch, array)


def write_raw(stream: IO[bytes], array: npt.NDArray[Any]) -> None:
    """Write an array's bytes; unlike numpy's own writing, a full disk is an OSError that says so."""
    stream.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def load(path: Path) -> npt.NDArray[Any]:
    """A whole array; never unpickles."""
    array: npt.NDArray[Any] = np.load(path, allow_pickle=False)
    return array


def load_part(path: Path, start: int, stop: int) -> npt.NDArray[Any]:
    """Elements [start, stop) of a one-dimensional array."""
    with path.open("rb") as stream:
        np.lib.format.read_magic(stream)
        _, _, dtype = np.lib.format.read_array_header_1_0(stream)
        stream.seek(start * dtype.itemsize, 1)
        return np.fromfile(stream, dtype, stop - start)


@dataclass(frozen=True)
class Spill:
    """The folder of runs (`NAME.records.npy`, `NAME.buckets.npy`) and cells (`NAME.keys.npy`, `NAME.sums.npy`)."""

    folder: Path

    def add_run(self, name: str, records: Records, bounds: Longs) -> None:
        """Write a run of records grouped by bucket; `bounds` int64 (buckets + 1,)."""
        save(self.folder / f"{name}.records.npy", records)
        save(self.folder / f"{name}.buckets.npy", bounds)

    def add_cells(self, name: str, keys: Keys, sums: npt.NDArray[Any]) -> None:
        """Write cells sorted by key."""
        save(self.folder / f"{name}.keys.npy", keys)
        save(self.folder / f"{name}.sums.npy", sums)

    def runs(self) -> Iterator[tuple[Path, Longs]]:
        """Every run's file of records and its bounds."""
        for path in sorted(self.folder.glob("*.buckets.npy")):
            yield path.with_name(path.name.replace(".buckets.", ".records.")), load(path)

    def records(self, first: int, last: int) -> Iterator[tuple[Records, Longs]]:
        """Of every run, the records of buckets [first, last) and where each bucket begins in them."""
        for path, bounds in self.runs():
            start, stop = int(bounds[first]), int(bounds[last])
            if start < stop:
                yield load_part(path, start, stop), bounds[first : last + 1] - start

    def cells(self, low: int, high: int) -> Iterator[tuple[Keys, npt.NDArray[Any]]]:
        """Of every list, the cells with low <= key < high."""
        for path in sorted(self.folder.glob("*.keys.npy")):
            keys = np.load(path, mmap_mode="r", allow_pickle=False)
            start, stop = (int(n) for n in np.searchsorted(keys, np.array([low, high], np.uint64)))
            if start < stop:
                sums = path.with_name(path.name.replace(".keys.", ".sums."))
                yield np.array(keys[start:stop]), load_part(sums, start, stop)

    def bucket_sizes(self, buckets: Buckets) -> Longs:
        """Records and cells in each bucket, over all runs and lists; int64 (buckets,)."""
        sizes = np.zeros(buckets.count, np.int64)
        for _, bounds in self.runs():
            sizes += np.diff(bounds)
        edges = np.arange(1, buckets.count, dtype=np.uint64) << np.uint64(buckets.range_bits)
        for path in self.folder.glob("*.keys.npy"):
            keys = np.load(path, mmap_mode="r", allow_pickle=False)
            sizes += np.diff(np.searchsorted(keys, edges), prepend=0, append=len(keys))
        return sizes
