"""Checkpoints on disk: one artifact a shard and label, and the vectors that a complete set of them gives.

`RUN/checkpoints/LABEL.shard-K-of-S/` holds `rows.npy`, facts and, in minibatch training, `versions.npy`. Files only:
what to save and when is decided elsewhere.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from glovewire.common import log
from glovewire.common.errors import ArtifactError
from glovewire.common.model.options import TrainingOptions
from glovewire.common.model.postprocess import evened
from glovewire.common.model.row_layout import RowLayout
from glovewire.common.storage.artifacts import (
    PARTIAL,
    REPLACED,
    UNREADABLE,
    Manifest,
    load_array,
    no_pause,
    save_array,
    writing_artifact,
)
from glovewire.common.storage.dataset import Dataset
from glovewire.common.storage.run_folder import CHECKPOINTS, VECTORS, write_vectors

from .cuts import FINAL, Snapshot

logger = logging.getLogger(__name__)

KIND = "checkpoint"
SCHEMA = 1
ROWS = "rows.npy"
VERSIONS = "versions.npy"
"""How often each row was changed; only where that is counted."""
_NUMBERS = frozenset(map(str, range(1, 257)))
"""Of shards, as they stand in the name of a folder."""
CHUNK_ROWS = 4096
LACKING = (KeyError, TypeError, ValueError)
"""What comes of facts that are not those of a checkpoint."""
SHARED = ("dataset", "options", "shards")
"""Facts that every shard's part of a checkpoint has in common; `tensors`, too, where there are any."""


def place(run: Path, label: str, shard: int, shards: int) -> Path:
    """Where one shard's part of a checkpoint lies."""
    return run / CHECKPOINTS / f"{label}.shard-{shard}-of-{shards}"


def write(run: Path, snapshot: Snapshot, rest: Callable[[], None] = no_pause) -> Path:
    """Put a snapshot on disk, whole or not at all, with a `rest` after each mebibyte; OutputError when it refuses."""
    facts = dict(snapshot.facts)
    folder = place(run, snapshot.label, int(facts["shard"]), int(facts["shards"]))
    with writing_artifact(folder, KIND, SCHEMA, facts, replace=True, pause=rest) as scratch:
        save_array(scratch / ROWS, snapshot.rows, rest)
        if snapshot.versions is not None:
            save_array(scratch / VERSIONS, snapshot.versions, rest)
    return folder


def newest(run: Path) -> tuple[str, int]:
    """Label and number of shards of the checkpoint to resume from: the one whose every part is here and is furthest.

    Raises ArtifactError when there is none.
    """
    for _, _, label, shards in sorted(_complete(run), reverse=True):
        try:
            for shard in range(shards):
                Manifest.load(place(run, label, shard, shards), KIND, SCHEMA)
        except ArtifactError as error:
            logger.warning(log.line("checkpoint_skipped", label=label, why=error))
        else:
            return label, shards
    raise ArtifactError(f"{run} has no checkpoint to resume from")


def prune(run: Path, shard: int, shards: int, keep: int, begun: str = "") -> list[str]:
    """Remove this shard's part of automatic checkpoints that are older than the last `keep` (0: all) of every shard.

    What is not there on every shard does not count: the newest that all have is never removed. Those that somebody has
    asked for, and final ones, stay, and so does the one
    that the newest generation has `begun` from: a shard that comes late loads it.
    Returns the labels of those that are gone.
    """
    gone: list[str] = []
    complete = sorted(found[:2] for found in _complete(run) if found[3] == shards and not is_final(found[2]))
    if not keep or len(complete) < keep:
        return gone
    for folder in (run / CHECKPOINTS).glob(f"[!.]*.shard-{shard}-of-{shards}"):
        try:
            facts = Manifest.load(folder, KIND, SCHEMA, verify=False).facts
            old = _reached(facts) < complete[-keep]
            if old and not facts.get("asked") and not is_final(facts["label"]) and facts["label"] != begun:
                gone.append(str(facts["label"]))
                shutil.rmtree(folder)
        except (ArtifactError, OSError, KeyError, TypeError, ValueError) as error:
            logger.warning(log.line("checkpoint_kept", folder=folder, why=error))
    return gone


def clear_away(run: Path, shard: int, shards: int) -> None:
    """Remove what processes of this shard that were killed were writing; what was giving way to it is put back.

    Checkpoints, that is, and on shard 0 the vectors.
    What a process that generations has begun stays, but for our own number: that was a process of another container.
    """
    vectors = [] if shard else run.glob(f".{VECTORS}.*")
    for path in (*(run / CHECKPOINTS).glob(f".*.shard-{shard}-of-{shards}.*"), *vectors):
        name, pid, kind = path.name.rsplit(".", 2)
        if f".{kind}" not in (PARTIAL, REPLACED) or not pid.isdecimal() or _lives(int(pid)):
            continue
        folder = path.with_name(name.removeprefix("."))
        try:
            if f".{kind}" == REPLACED and not folder.exists():
                path.rename(folder)
            elif path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        except OSError as error:
            logger.warning(log.line("leftover_kept", path=path, why=error))


def _lives(pid: int) -> bool:
    """Whether a process of this number lives, other than this one."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return pid != os.getpid()


def is_final(label: str) -> bool:
    """Whether a generation of the run ended with the checkpoint of this label."""
    return label.startswith(FINAL)


def drop_old_finals(run: Path, label: str) -> None:
    """Remove the final checkpoints of earlier generations now that of the last one, `label`, every part is here.

    The one to resume from stays: parts that were cut apart cannot take the place of one that was not.
    """
    folders = [folder for folder in (run / CHECKPOINTS).glob(f"{FINAL}*.shard-*") if _label(folder) != label]
    if not folders:
        return
    kept = ""
    with contextlib.suppress(ArtifactError):
        kept, _ = newest(run)
    for folder in folders:
        if _label(folder) != kept:
            try:
                shutil.rmtree(folder)
            except OSError as error:
                logger.warning(log.line("checkpoint_kept", folder=folder, why=error))


def _label(folder: Path) -> str:
    return folder.name.partition(".shard-")[0]


def _complete(run: Path) -> list[tuple[int, int, str, int]]:
    """Round, gradients, label and shards of every checkpoint whose parts are all here and belong together."""
    found = []
    for folder in (run / CHECKPOINTS).glob("[!.]*.shard-0-of-*"):
        label, _, tail = folder.name.partition(".shard-0-of-")
        if tail in _NUMBERS and not missing(run, label, int(tail)):
            try:
                if rank := _rank(run, label, int(tail)):
                    found.append((*rank, label, int(tail)))
            except ArtifactError as error:
                logger.warning(log.line("checkpoint_skipped", label=label, why=error))
    return found


def _rank(run: Path, label: str, shards: int) -> tuple[int, int] | None:
    """How far a checkpoint is; None when its parts do not fit together.

    Shards that were killed one by one leave such parts.
    """
    places = (place(run, label, shard, shards) for shard in range(shards))
    facts = [Manifest.load(folder, KIND, SCHEMA, verify=False).facts for folder in places]
    try:
        return None if _apart(facts) or _of_no_model(facts) else _reached(facts[0])
    except LACKING as error:
        raise ArtifactError(f"checkpoint {label} of {run} lacks facts ({type(error).__name__}: {error})") from error


def _apart(facts: Sequence[Mapping[str, Any]]) -> bool:
    """Whether parts do not go together: in exclusive order, when they were cut at different rounds.

    Otherwise shard 0 knows best which round it was, but parts of different
    generations belong to different trainings.
    """
    if facts[0]["options"]["consistency"] != "exclusive":
        return len({each.get("generation") for each in facts}) > 1
    rounds = {int(each["round"]) for each in facts}
    return len(rounds) > 1 or min(rounds) < 0


def _of_no_model(facts: Sequence[Mapping[str, Any]]) -> bool:
    """Whether parts of a dense model lack tensors, or have those of different models."""
    return len({each.get("tensors", "") for each in facts}) > 1 or facts[0].get("tensors", "") is None


def _reached(facts: Mapping[str, Any]) -> tuple[int, int]:
    """Round of a checkpoint, -1 of minibatches, and the gradients in it; of blocks, the entries reported."""
    return int(facts["round"]), int(facts.get("gradients") or facts["entries"])


def missing(run: Path, label: str, shards: int) -> list[int]:
    """Shards whose part of a checkpoint is not on disk (here)."""
    return [shard for shard in range(shards) if not place(run, label, shard, shards).exists()]


def whole(run: Path, label: str, shards: int) -> list[Mapping[str, Any]]:
    """The facts of every shard's part of a checkpoint, which may have been cut at different rounds.

    Raises ArtifactError unless all are here, undamaged and of one training.
    """
    facts = [Manifest.load(place(run, label, shard, shards), KIND, SCHEMA).facts for shard in range(shards)]
    for shard, found in enumerate(facts):
        if _strange(found, facts[0]):
            raise ArtifactError(f"{place(run, label, shard, shards)} belongs to another training than shard 0's part")
    return facts


def _strange(found: Mapping[str, Any], first: Mapping[str, Any]) -> bool:
    """Whether a part is of another training than the first one."""
    other = found.get("tensors") != first.get("tensors")
    return other or any(key not in found or found[key] != first[key] for key in SHARED)


def read(run: Path, label: str, shards: int, *, one_round: bool = True) -> tuple[npt.NDArray[Any], dict[str, Any]]:
    """All rows of a checkpoint, in row order, and the facts of shard 0.

    Raises ArtifactError when a part is missing, altered, not a part of that shard, or of another training; or, with
    `one_round`, was cut at another round, in exclusive order, or in another generation of the run.
    """
    parts: list[npt.NDArray[Any]] = []
    facts: list[dict[str, Any]] = []
    for shard in range(shards):
        folder = place(run, label, shard, shards)
        found = dict(Manifest.load(folder, KIND, SCHEMA).facts)
        rows = _load_rows(folder)
        facts.append(found)
        parts.append(rows)
        if _strange(found, facts[0]):
            raise ArtifactError(f"{folder} belongs to another training than shard 0's part")
        try:
            apart = one_round and _apart([facts[0], found])
        except LACKING as error:
            raise ArtifactError(f"{folder} lacks facts ({type(error).__name__}: {error})") from error
        if apart:
            raise ArtifactError(f"{folder} was cut at another round or in another generation than shard 0's part")
        first = sum(map(len, parts[:-1]))
        fits = rows.shape[1] == parts[0].shape[1] and found.get("shards") == shards and found.get("shard") == shard
        if not fits or found.get("rows") != [first, first + len(rows)]:
            raise ArtifactError(f"{folder} does not hold the rows of shard {shard} of {shards}")
    return parts[0] if shards == 1 else np.concatenate(parts), facts[0]


def read_versions(run: Path, label: str, shards: int) -> npt.NDArray[np.int64] | None:
    """How often each row of a checkpoint that `read` has passed was changed, in row order; None if nobody counted."""
    folders = [place(run, label, shard, shards) for shard in range(shards)]
    if not all((folder / VERSIONS).exists() for folder in folders):
        return None
    try:
        return np.concatenate([load_array(folder / VERSIONS) for folder in folders]).astype(np.int64, copy=False)
    except UNREADABLE as error:
        raise ArtifactError(f"the versions of {folders[0]} cannot be read ({error})") from error


def _load_rows(folder: Path) -> npt.NDArray[Any]:
    try:
        rows = load_array(folder / ROWS)
    except UNREADABLE as error:
        raise ArtifactError(f"{folder / ROWS} cannot be read ({type(error).__name__}: {error})") from error
    if rows.dtype not in (np.float32, np.float64) or rows.ndim != 2:
        raise ArtifactError(f"{folder / ROWS} is not an array of rows")
    return rows


def assemble(
    run: Path, dataset: Dataset, options: TrainingOptions, shards: int, facts: dict[str, Any], label: str = FINAL
) -> None:
    """Write the run's vectors, in vocabulary order, from the final checkpoint of all shards.

    Shards that are stopped at once, by signals, end some rounds apart: good vectors still.
    """
    rows, _ = read(run, label, shards, one_round=False)
    layout = RowLayout.of(options)
    vectors = np.empty((len(rows), layout.dim), np.float32)
    for first in range(0, len(rows), CHUNK_ROWS):  # where word and context are summed, the sum needs memory, too
        part = slice(first, first + CHUNK_ROWS)
        vectors[dataset.permutation[part]] = layout.vectors(rows[part])
    del rows
    write_vectors(run, dataset.words, evened(vectors, options.spectrum), facts, dataset.counts)
