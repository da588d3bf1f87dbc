"""Checkpoints on disk: one artifact a shard and label, and the vectors that a complete set of them gives.

`RUN/checkpoints/LABEL.shard-K-of-S/` holds `rows.npy` and facts. Files only:
what to save and when is decided elsewhere.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from common.arrays import UNREADABLE, load_array
from common.artifacts import Manifest, writing
from common.dataset import Dataset
from common.errors import ArtifactError
from common.options import TrainingOptions
from common.rows import RowLayout
from common.run import CHECKPOINTS, write_vectors

from .cuts import Snapshot

KIND = "checkpoint"
SCHEMA = 1
ROWS = "rows.npy"
SHARED = ("dataset", "options", "round", "shards")
"""Facts that every shard's part of a checkpoint has in common; `tensors`, too, where there are any."""


def place(run: Path, label: str, shard: int, shards: int) -> Path:
    """Where one shard's part of a checkpoint lies."""
    return run / CHECKPOINTS / f"{label}.shard-{shard}-of-{shards}"


def write(run: Path, snapshot: Snapshot) -> Path:
    """Put a snapshot on disk, whole or not at all; OutputError when the disk refuses."""
    facts = dict(snapshot.facts)
    folder = place(run, snapshot.label, int(facts["shard"]), int(facts["shards"]))
    with writing(folder, KIND, SCHEMA, facts, replace=True) as scratch:
        np.save(scratch / ROWS, snapshot.rows, allow_pickle=False)
    return folder


def newest(run: Path) -> tuple[str, int]:
    """Label and number of shards of the checkpoint to resume from: the one whose every part is here and is furthest.

    Raises ArtifactError when there is none.
    """
    best: tuple[int, int, str, int] | None = None
    for folder in (run / CHECKPOINTS).glob("*.shard-0-of-*"):
        label, _, tail = folder.name.partition(".shard-0-of-")
        if label.strip(".") and not label.startswith(".") and tail.isdigit() and not missing(run, label, int(tail)):
            facts = Manifest.load(folder, KIND, SCHEMA).facts
            if _resumable(run, label, int(tail)):
                rank = (int(facts["round"]), int(facts["entries"]), label, int(tail))
                best = rank if best is None else max(best, rank)
    if best is None:
        raise ArtifactError(f"{run} has no checkpoint to resume from")
    return best[2], best[3]


def _resumable(run: Path, label: str, shards: int) -> bool:
    """Whether every part was cut at one round, where rounds matter; shards that were killed one by one leave none."""
    facts = [Manifest.load(place(run, label, shard, shards), KIND, SCHEMA).facts for shard in range(shards)]
    rounds = {int(each["round"]) for each in facts}
    return facts[0]["options"]["consistency"] != "exclusive" or (len(rounds) == 1 and min(rounds) >= 0)


def missing(run: Path, label: str, shards: int) -> list[int]:
    """Shards whose part of a checkpoint is not on disk (here)."""
    return [shard for shard in range(shards) if not place(run, label, shard, shards).exists()]


def read(run: Path, label: str, shards: int, *, one_round: bool = True) -> tuple[npt.NDArray[Any], dict[str, Any]]:
    """All rows of a checkpoint, in row order, and the facts of shard 0.

    Raises ArtifactError when a part is missing, altered, not a part of that shard, or of another training; or, with
    `one_round`, was cut at another round.
    """
    parts: list[npt.NDArray[Any]] = []
    facts: list[dict[str, Any]] = []
    for shard in range(shards):
        folder = place(run, label, shard, shards)
        found = dict(Manifest.load(folder, KIND, SCHEMA).facts)
        rows = _load_rows(folder)
        facts.append(found)
        parts.append(rows)
        same = SHARED if one_round else [key for key in SHARED if key != "round"]
        strange = found.get("tensors") != facts[0].get("tensors")
        if strange or any(key not in found or found[key] != facts[0][key] for key in same):
            raise ArtifactError(f"{folder} belongs to another training than shard 0's part")
        first = sum(map(len, parts[:-1]))
        fits = rows.shape[1] == parts[0].shape[1] and found["shards"] == shards and found.get("shard") == shard
        if not fits or found.get("rows") != [first, first + len(rows)]:
            raise ArtifactError(f"{folder} does not hold the rows of shard {shard} of {shards}")
    return np.concatenate(parts), facts[0]


def _load_rows(folder: Path) -> npt.NDArray[Any]:
    try:
        rows = load_array(folder / ROWS)
    except UNREADABLE as error:
        raise ArtifactError(f"{folder / ROWS} cannot be read ({type(error).__name__}: {error})") from error
    if rows.dtype not in (np.float32, np.float64) or rows.ndim != 2:
        raise ArtifactError(f"{folder / ROWS} is not an array of rows")
    return rows


def assemble(run: Path, dataset: Dataset, options: TrainingOptions, shards: int, facts: dict[str, Any]) -> None:
    """Write the run's vectors, in vocabulary order, from the final checkpoint of all shards.

    Shards that are stopped at once, by signals, end some rounds apart: good vectors still.
    """
    rows, _ = read(run, "final", shards, one_round=False)
    by_row = RowLayout.of(options).vectors(rows)
    vectors = np.empty_like(by_row)
    vectors[dataset.permutation] = by_row
    write_vectors(run, dataset.words, vectors, facts)
