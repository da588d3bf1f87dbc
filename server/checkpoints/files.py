"""Write, find, read and prune checkpoints on disk, and put the final one together as vectors.

A checkpoint has one part per shard, the artifact `RUN/checkpoints/LABEL.shard-K-of-S/` with `rows.npy`, facts and, in
minibatch training, `versions.npy`. What to save and when is decided in `cuts`.
"""

import contextlib
import logging
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from glovewire.common import log
from glovewire.common.array_types import Array, Indices
from glovewire.common.errors import ArtifactError
from glovewire.common.model.options import TrainingOptions
from glovewire.common.model.postprocess import flatten_spectrum
from glovewire.common.model.row_layout import RowLayout
from glovewire.common.storage.artifacts import (
    MANIFEST,
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
SCHEMA = 2
"""2: generations of a run were called lives before, and their files `.life-NUMBER`."""
ROWS = "rows.npy"
VERSIONS = "versions.npy"
"""How often each row was changed, if that is counted."""
_SHARD_COUNTS = frozenset(map(str, range(1, 257)))
CHUNK_ROWS = 4096
BAD_FACTS = (KeyError, TypeError, ValueError)
"""Errors raised by facts that are not those of a checkpoint."""
SHARED = ("dataset", "options", "shards")
"""Facts that all parts of a checkpoint have in common, and `tensors` if there are any."""


def part_folder(run: Path, label: str, shard: int, shards: int) -> Path:
    """Return the folder of one shard's part of a checkpoint."""
    return run / CHECKPOINTS / f"{label}.shard-{shard}-of-{shards}"


def write(run: Path, snapshot: Snapshot, pause: Callable[[], None] = no_pause) -> Path:
    """Write a snapshot, whole or not at all, calling `pause` after each mebibyte; OutputError if it is impossible."""
    facts = dict(snapshot.facts)
    folder = part_folder(run, snapshot.label, int(facts["shard"]), int(facts["shards"]))
    with writing_artifact(folder, KIND, SCHEMA, facts, replace=True, pause=pause) as scratch:
        save_array(scratch / ROWS, snapshot.rows, pause)
        if snapshot.versions is not None:
            save_array(scratch / VERSIONS, snapshot.versions, pause)
    return folder


# ---- which checkpoint to resume from, and which to remove


def newest(run: Path) -> tuple[str, int]:
    """Return label and shards of the checkpoint to resume from: the furthest of which every part is here and intact.

    Raises ArtifactError if there is none.
    """
    require_readable_version(run)
    for _, _, label, shards in sorted(_complete(run), reverse=True):
        try:
            for shard in range(shards):
                Manifest.load(part_folder(run, label, shard, shards), KIND, SCHEMA)
        except ArtifactError as error:
            logger.warning(log.line("checkpoint_skipped", label=label, why=error))
        else:
            return label, shards
    raise ArtifactError(f"{run} has no checkpoint to resume from")


def require_readable_version(run: Path) -> None:
    """Raise ArtifactError if an earlier version of the program, with another form of checkpoints, began the run."""
    if any((run / CHECKPOINTS).glob(".life-*")):
        init = f"; --init {run} begins with its vectors" if (run / MANIFEST).exists() else ""
        raise ArtifactError(
            f"{run} was begun by an earlier version of glovewire, whose checkpoints this one does not read: "
            f"resume it with that version, or train in another folder{init}"
        )


def prune(run: Path, shard: int, shards: int, keep: int, begun: str = "") -> list[str]:
    """Remove this shard's part of older automatic checkpoints than the last `keep` (0: all) of all shards.

    A checkpoint of which a shard lacks its part does not count: the newest complete one is never removed. Those that a
    client requested and final ones stay, and so does the one that the newest generation has `begun` from, because a
    late shard loads it. Returns the labels of those removed.
    """
    removed: list[str] = []
    complete = sorted(found[:2] for found in _complete(run) if found[3] == shards and not is_final(found[2]))
    if not keep or len(complete) < keep:
        return removed
    for folder in (run / CHECKPOINTS).glob(f"[!.]*.shard-{shard}-of-{shards}"):
        try:
            facts = Manifest.load(folder, KIND, SCHEMA, verify=False).facts
            old = _reached(facts) < complete[-keep]
            if old and not facts.get("asked") and not is_final(facts["label"]) and facts["label"] != begun:
                removed.append(str(facts["label"]))
                shutil.rmtree(folder)
        except (ArtifactError, OSError, *BAD_FACTS) as error:
            logger.warning(log.line("checkpoint_kept", folder=folder, why=error))
    return removed


def is_final(label: str) -> bool:
    """Return whether a generation of the run ended with the checkpoint of this label."""
    return label.startswith(FINAL)


def remove_old_finals(run: Path, label: str) -> None:
    """Remove the final checkpoints of earlier generations, once all parts of the last one, `label`, are here.

    The one to resume from stays: parts that were cut at different rounds cannot replace one whose parts were not.
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


def remove_leftovers(run: Path, shard: int, shards: int) -> None:
    """Remove what killed processes of this shard were writing (on shard 0 the vectors, too), see `artifacts.atomic`.

    A folder that was giving way to a new one is put back. Files of processes that still run stay, except those with
    our own process id, which was given to a process of another container.
    """
    vectors = [] if shard else run.glob(f".{VECTORS}.*")
    for path in (*(run / CHECKPOINTS).glob(f".*.shard-{shard}-of-{shards}.*"), *vectors):
        name, pid, kind = path.name.rsplit(".", 2)
        if f".{kind}" not in (PARTIAL, REPLACED) or not pid.isdecimal() or _is_running(int(pid)):
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


def _is_running(pid: int) -> bool:
    """Return whether another process than this one has the process id."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return pid != os.getpid()


def _label(folder: Path) -> str:
    return folder.name.partition(".shard-")[0]


def _complete(run: Path) -> list[tuple[int, int, str, int]]:
    """Return round, gradients, label and shards of every checkpoint whose parts are all here and belong together."""
    found = []
    for folder in (run / CHECKPOINTS).glob("[!.]*.shard-0-of-*"):
        label, _, shards = folder.name.partition(".shard-0-of-")
        if shards in _SHARD_COUNTS and not missing(run, label, int(shards)):
            try:
                facts = _facts(run, label, int(shards), verify=False)
                if _is_consistent(facts):
                    found.append((*_reached(facts[0]), label, int(shards)))
            except (ArtifactError, *BAD_FACTS) as error:
                why = error if isinstance(error, ArtifactError) else f"lacks facts ({type(error).__name__}: {error})"
                logger.warning(log.line("checkpoint_skipped", label=label, why=why))
    return found


def _is_consistent(facts: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether parts can be resumed from together: cut alike and, of a dense model, with the same known tensors.

    Shards that were killed one by one leave parts that cannot.
    """
    tensors = {each.get("tensors", "") for each in facts}
    return not _cut_apart(facts) and len(tensors) == 1 and None not in tensors


def _cut_apart(facts: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether parts were cut at different rounds in exclusive order, otherwise in different generations.

    Without that order shard 0 knows the round best, but different generations are different trainings.
    """
    if facts[0]["options"]["consistency"] != "exclusive":
        return len({each.get("generation") for each in facts}) > 1
    rounds = {int(each["round"]) for each in facts}
    return len(rounds) > 1 or min(rounds) < 0


def _reached(facts: Mapping[str, Any]) -> tuple[int, int]:
    """Return the round of a checkpoint (-1 of minibatches), and the gradients in it, of blocks the entries reported."""
    return int(facts["round"]), int(facts.get("gradients") or facts["entries"])


# ---- reading


def missing(run: Path, label: str, shards: int) -> list[int]:
    """Return the shards whose part of a checkpoint is not on disk (here)."""
    return [shard for shard in range(shards) if not part_folder(run, label, shard, shards).exists()]


def read_facts(run: Path, label: str, shards: int) -> list[dict[str, Any]]:
    """Return the facts of every part of a checkpoint, which may have been cut at different rounds.

    Raises ArtifactError unless all are here, intact and of one training.
    """
    facts = _facts(run, label, shards)
    for shard, part in enumerate(facts):
        if part.get("tensors") != facts[0].get("tensors") or any(
            key not in part or part[key] != facts[0][key] for key in SHARED
        ):
            folder = part_folder(run, label, shard, shards)
            raise ArtifactError(f"{folder} belongs to another training than shard 0's part")
    return facts


def _facts(run: Path, label: str, shards: int, *, verify: bool = True) -> list[dict[str, Any]]:
    folders = (part_folder(run, label, shard, shards) for shard in range(shards))
    return [dict(Manifest.load(folder, KIND, SCHEMA, verify=verify).facts) for folder in folders]


def read(run: Path, label: str, shards: int, *, one_round: bool = True) -> tuple[Array, dict[str, Any]]:
    """Return all rows of a checkpoint, in row order, and the facts of shard 0.

    Raises ArtifactError if a part is missing, altered, not of its shard, or of another training; with `one_round` also
    if it was cut at another round, in exclusive order, or in another generation of the run.
    """
    facts = read_facts(run, label, shards)
    parts: list[Array] = []
    for shard, found in enumerate(facts):
        folder = part_folder(run, label, shard, shards)
        rows = _load_rows(folder)
        parts.append(rows)
        try:
            apart = one_round and _cut_apart([facts[0], found])
        except BAD_FACTS as error:
            raise ArtifactError(f"{folder} lacks facts ({type(error).__name__}: {error})") from error
        if apart:
            raise ArtifactError(f"{folder} was cut at another round or in another generation than shard 0's part")
        first = sum(map(len, parts[:-1]))
        fits = rows.shape[1] == parts[0].shape[1] and found.get("shards") == shards and found.get("shard") == shard
        if not fits or found.get("rows") != [first, first + len(rows)]:
            raise ArtifactError(f"{folder} does not hold the rows of shard {shard} of {shards}")
    return parts[0] if shards == 1 else np.concatenate(parts), facts[0]


def read_versions(run: Path, label: str, shards: int) -> Indices | None:
    """Return the versions of all rows of a checkpoint that `read` has passed, in row order; None if not counted."""
    files = [part_folder(run, label, shard, shards) / VERSIONS for shard in range(shards)]
    if not all(file.exists() for file in files):
        return None
    try:
        return np.concatenate([load_array(file) for file in files]).astype(np.int64, copy=False)
    except UNREADABLE as error:
        raise ArtifactError(f"{files[0]} cannot be read ({type(error).__name__}: {error})") from error


def _load_rows(folder: Path) -> Array:
    try:
        rows = load_array(folder / ROWS)
    except UNREADABLE as error:
        raise ArtifactError(f"{folder / ROWS} cannot be read ({type(error).__name__}: {error})") from error
    if rows.dtype not in (np.float32, np.float64) or rows.ndim != 2:
        raise ArtifactError(f"{folder / ROWS} is not an array of rows")
    return rows


# ---- the end of a run


def assemble(
    run: Path, dataset: Dataset, options: TrainingOptions, shards: int, facts: dict[str, Any], label: str = FINAL
) -> None:
    """Write the run's vectors, in vocabulary order, from the final checkpoint of all shards.

    Shards that were stopped at once, by signals, end some rounds apart; their vectors are still good.
    """
    rows, _ = read(run, label, shards, one_round=False)
    layout = RowLayout.of(options)
    vectors = np.empty((len(rows), layout.dim), np.float32)
    for first in range(0, len(rows), CHUNK_ROWS):  # in chunks: the sum of word and context vectors takes memory, too
        part = slice(first, first + CHUNK_ROWS)
        vectors[dataset.permutation[part]] = layout.vectors(rows[part])
    del rows
    write_vectors(run, dataset.words, flatten_spectrum(vectors, options.spectrum), facts, dataset.counts)
