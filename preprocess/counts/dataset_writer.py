"""The dataset's files from finished parts: the last step of preprocessing.

Parts are ranges of buckets in order, so their entries are only put end to end. Nothing is counted or sorted here.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from glovewire.common.errors import CorpusError
from glovewire.common.storage import artifacts
from glovewire.common.storage.dataset import (
    COUNTS,
    ENTRIES,
    ENTRY,
    KIND,
    PERMUTATION,
    SCHEMA,
    TILES,
    VOCABULARY,
    Layout,
)

from ..parallel.scratch import PART, Scratch
from ..tokens.string_table import Longs
from .cell_keys import Arrangement
from .spill import save


@dataclass(frozen=True)
class Words:
    """The vocabulary as it is written: sorted by code point, with counts, int64 (V,)."""

    words: tuple[str, ...]
    counts: Longs


def totals(folder: Scratch, layout: Layout, scale: int) -> dict[str, Any]:
    """Entries, sum and density of the full matrix, and the entries that are stored; CorpusError if there are none."""
    parts = [facts for _, facts in folder.kept(PART)]
    stored, diagonal, total, on_diagonal = (
        sum(part[name] for part in parts) for name in ("stored", "diagonal", "sum", "diagonal_sum")
    )
    if not stored:
        raise CorpusError("no two words of the vocabulary stand near each other: nothing to train on")
    entries = stored
    if layout.symmetric:
        entries, total = 2 * stored - diagonal, 2 * total - on_diagonal
    return {"entries": entries, "stored": stored, "sum": total / scale, "density": entries / layout.rows**2}


def write(
    out: Path, folder: Scratch, arrangement: Arrangement, vocabulary: Words, facts: dict[str, Any]
) -> Iterator[int]:
    """Write the dataset `out` from the parts in `folder`; bytes of entries as they are done."""
    names = [name for name, _ in folder.kept(PART)]
    with artifacts.writing_artifact(out, KIND, SCHEMA, facts) as scratch:
        words = "".join(f"{word}\n" for word in vocabulary.words)
        (scratch / VOCABULARY).write_text(words, encoding="utf-8", newline="\n")
        save(scratch / COUNTS, vocabulary.counts)
        save(scratch / PERMUTATION, arrangement.permutation)
        save(scratch / TILES, _tile_starts(folder, names, arrangement.layout))
        yield from _join(folder, names, scratch / ENTRIES, facts["stored"])


def _tile_starts(folder: Scratch, parts: list[str], layout: Layout) -> Longs:
    starts = np.zeros(int(layout.first_tile[-1]) + 1, np.int64)
    for name in parts:
        tiles = np.load(folder.folder / f"{name}.tiles.npy", allow_pickle=False)
        np.add.at(starts, tiles[:, 0] + 1, tiles[:, 1])
    return np.cumsum(starts)


def _join(folder: Scratch, parts: list[str], path: Path, stored: int) -> Iterator[int]:
    """Write the entries of all parts, in order, as one .npy file; the size of each as it is done."""
    header = {"descr": np.lib.format.dtype_to_descr(ENTRY), "fortran_order": False, "shape": (stored,)}
    with path.open("wb") as out:
        np.lib.format.write_array_header_1_0(out, header)
        for name in parts:
            source = folder.folder / f"{name}.entries"
            with source.open("rb") as stream:
                shutil.copyfileobj(stream, out, 1 << 20)
            yield source.stat().st_size
