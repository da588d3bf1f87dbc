"""Write the dataset's files from finished parts: the last step of preprocessing.

A part holds the sorted entries of a range of buckets, so parts are only concatenated, never counted or sorted here.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from glovewire.common.errors import CorpusError
from glovewire.common.storage import artifacts, dataset

from ..parallel.scratch import PART, ScratchFolder
from .cell_keys import CellKeys
from .spill import save
from .vocabulary import Vocabulary


def matrix_totals(scratch: ScratchFolder, layout: dataset.Layout, scale: int) -> dict[str, Any]:
    """Return entries, sum and density of the full matrix, and the stored entries; CorpusError for an empty matrix."""
    parts = [facts for _, facts in scratch.committed(PART)]
    stored, diagonal, total, on_diagonal = (
        sum(part[name] for part in parts) for name in ("stored", "diagonal", "sum", "diagonal_sum")
    )
    if not stored:
        raise CorpusError("no two words of the vocabulary stand near each other: nothing to train on")
    entries = stored
    if layout.symmetric:
        entries, total = 2 * stored - diagonal, 2 * total - on_diagonal
    return {"entries": entries, "stored": stored, "sum": total / scale, "density": entries / layout.rows**2}


def write_dataset(
    out: Path,
    scratch: ScratchFolder,
    cell_keys: CellKeys,
    vocabulary: Vocabulary,
    facts: dict[str, Any],
    texts: dict[str, str],
) -> Iterator[int]:
    """Write the dataset `out` from the parts in `scratch`, and `texts` by file name; yield the bytes of each part."""
    parts = [name for name, _ in scratch.committed(PART)]
    with artifacts.writing_artifact(out, dataset.KIND, dataset.SCHEMA, facts) as folder:
        words = "".join(f"{word}\n" for word in vocabulary.words)
        for name, text in {dataset.VOCABULARY: words, **texts}.items():
            (folder / name).write_text(text, encoding="utf-8", newline="\n")
        save(folder / dataset.COUNTS, vocabulary.counts)
        save(folder / dataset.PERMUTATION, cell_keys.permutation)
        starts = np.zeros(int(cell_keys.layout.first_tile[-1]) + 1, np.int64)
        for name in parts:
            tiles = artifacts.load_array(scratch.folder / f"{name}.tiles.npy")
            np.add.at(starts, tiles[:, 0] + 1, tiles[:, 1])
        tiles = np.cumsum(starts)
        save(folder / dataset.TILES, tiles)
        yield from _join_entries(scratch, parts, folder / dataset.ENTRIES, facts["stored"])
        entries = artifacts.load_array(folder / dataset.ENTRIES, mapped=True)
        save(folder / dataset.CHECKSUMS, dataset.block_checksums(cell_keys.layout, tiles, entries))


def _join_entries(scratch: ScratchFolder, parts: list[str], path: Path, stored: int) -> Iterator[int]:
    """Write the entries of all parts, in order, as one .npy file; yield the size of each part in bytes."""
    header = {"descr": np.lib.format.dtype_to_descr(dataset.ENTRY), "fortran_order": False, "shape": (stored,)}
    with path.open("wb") as out:
        np.lib.format.write_array_header_1_0(out, header)
        for name in parts:
            source = scratch.folder / f"{name}.entries"
            with source.open("rb") as stream:
                shutil.copyfileobj(stream, out, 1 << 20)
            yield source.stat().st_size
