"""Artifacts written by hand, so that the packages that read them are tested without those that make them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import scipy.sparse

from glovewire.common.storage import dataset as datasets
from glovewire.common.storage.artifacts import writing_artifact

HARD_TO_DRAW = "d\udcff $x^$ y"
"""Name of a folder that is not UTF-8, and that matplotlib would take for a formula."""


def write_dataset(
    path: Path,
    matrix: scipy.sparse.coo_matrix,
    counts: np.ndarray,
    words: list[str],
    *,
    partitions: int = 3,
    tile: int = 4,
    symmetric: bool = True,
    seed: int = 7,
) -> datasets.Dataset:
    """A dataset with the counts of `matrix` (both triangles, vocabulary order) and the facts that readers need."""
    size = len(words)
    layout = datasets.Layout(even(size, partitions), tile, symmetric)
    permutation = np.random.default_rng(seed).permutation(size).astype(np.int32)
    row_of = np.argsort(permutation)
    i, j = row_of[matrix.row], row_of[matrix.col]
    kept = i >= j if symmetric else np.ones(len(i), bool)
    i, j, x = i[kept], j[kept], matrix.data[kept]
    a, b = (np.searchsorted(layout.bounds, side, side="right") - 1 for side in (i, j))
    bounds = np.array(layout.bounds)
    entries = np.empty(len(i), datasets.ENTRY)
    entries["i"], entries["j"], entries["x"] = i - bounds[a], j - bounds[b], x
    block = np.array([layout.block_index[pair] for pair in zip(a.tolist(), b.tolist(), strict=True)], np.int64)
    in_stripe = np.array([layout.tile_rows(partition) for partition in range(partitions)], np.int64)
    number = layout.first_tile[block] + entries["j"] // layout.columns * in_stripe[a] + entries["i"] // tile
    order = np.lexsort((entries["j"], entries["i"], number))
    starts = np.searchsorted(number[order], np.arange(layout.first_tile[-1] + 1))
    facts = {
        "vocabulary": size,
        "bounds": layout.bounds,
        "tile": tile,
        "symmetric": symmetric,
        "entries": len(matrix.data),
        "window": 5,
    }
    with writing_artifact(path, datasets.KIND, datasets.SCHEMA, facts) as scratch:
        (scratch / datasets.VOCABULARY).write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
        np.save(scratch / datasets.COUNTS, counts.astype(np.int64))
        np.save(scratch / datasets.PERMUTATION, permutation)
        np.save(scratch / datasets.ENTRIES, entries[order])
        np.save(scratch / datasets.TILES, starts.astype(np.int64))
        np.save(scratch / datasets.CHECKSUMS, datasets.block_checksums(layout, starts, entries[order]))
    return datasets.Dataset.open(path)


def even(rows: int, partitions: int) -> tuple[int, ...]:
    """Bounds of partitions of nearly equal size."""
    return tuple(rows * number // partitions for number in range(partitions + 1))


def random_dataset(
    path: Path, *, size: int = 25, symmetric: bool = True, share: float = 0.4
) -> tuple[datasets.Dataset, np.ndarray]:
    """A small random dataset and its matrix, dense, in vocabulary order; `share` of it, or twice that, is not zero."""
    random = np.random.default_rng(3)
    dense = random.integers(1, 900, (size, size)) * (random.random((size, size)) < share) / 60
    if symmetric:
        dense = dense + dense.T
    dense = dense.astype(np.float32)
    words = sorted({"naïve", "łódź", *(f"w{n:02}" for n in range(size - 2))})
    counts = random.integers(1, 6, size)
    opened = write_dataset(path, scipy.sparse.coo_matrix(dense), counts, words, symmetric=symmetric)
    return opened, dense


def full_matrix(dataset: datasets.Dataset) -> scipy.sparse.coo_matrix:
    """The whole matrix in vocabulary order, float32, both triangles."""
    rows, columns, values = [], [], []
    for a, b in dataset.layout.blocks:
        entries, _ = dataset.block(a, b)
        rows.append(dataset.permutation[dataset.layout.bounds[a] + entries["i"]])
        columns.append(dataset.permutation[dataset.layout.bounds[b] + entries["j"]])
        values.append(entries["x"])
    i, j, x = np.concatenate(rows), np.concatenate(columns), np.concatenate(values)
    if dataset.layout.symmetric:
        off = i != j
        i, j, x = np.concatenate([i, j[off]]), np.concatenate([j, i[off]]), np.concatenate([x, x[off]])
    return scipy.sparse.coo_matrix((x, (i, j)), shape=(len(dataset.words), len(dataset.words)))
