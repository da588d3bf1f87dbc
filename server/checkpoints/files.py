"""Write, find, read and prune checkpoints on disk, and assemble the final one into vectors.

A checkpoint has one part per shard, the artifact `RUN/checkpoints/LABEL.shard-K-of-S/` with `rows.npy`, facts and, in
minibatch training, `versions.npy`. What to save and when is decided in `cuts`.
"""

import contextlib
import fnmatch
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from glovewire.common import log
from glovewire.common.array_types import Array, Indices
from glovewire.common.errors import ArtifactError
from glovewire.common.model.options import TrainingOptions
from glovewire.common.model.row_layout import RowLayout
from glovewire.common.storage import artifacts
from glovewire.common.storage.dataset import Dataset
from glovewire.common.storage.run_folder import CHECKPOINTS, write_trained

from ..config import MAX_SHARDS
from .cuts import FINAL, Snapshot

logger = logging.getLogger(__name__)

KIND = "checkpoint"
SCHEMA = 2
ROWS = "rows.npy"
VERSIONS = "versions.npy"
"""How often each row was changed, if that is counted."""
_SHARD_COUNTS = frozenset(map(str, range(1, MAX_SHARDS + 1)))
CHUNK_ROWS = 4096
"""Rows of which the sum of word and context vectors, which takes memory, is computed at a time."""
BAD_FACTS = (KeyError, TypeError, ValueError)
"""Errors raised by reading facts that are missing or malformed."""
SHARED = ("dataset", "options", "shards")
"""Facts that are equal in all parts of a checkpoint; so are `tensors`, if there are any."""


def part_folder(run: Path, label: str, shard: int, shards: int) -> Path:
    """Return the folder of one shard's part of a checkpoint."""
    return run.joinpath(CHECKPOINTS, part_name(label, shard, shards))


def part_name(label: str, shard: int, shards: int) -> str:
    """Return the name of that folder."""
    return f"{label}.shard-{shard}-of-{shards}"


PART = re.compile(r"(?P<label>[a-z]+(-\d+)*)\.shard-(?P<shard>\d+)-of-(?P<shards>\d+)", re.ASCII)
"""What `part_name` returns."""


def write(run: Path, snapshot: Snapshot, pause: Callable[[], None] = artifacts.no_pause) -> Path:
    """Write a snapshot, whole or not at all, calling `pause` after each MiB; return its folder. Raises OutputError."""
    facts = dict(snapshot.facts)
    folder = part_folder(run, snapshot.label, int(facts["shard"]), int(facts["shards"]))
    with artifacts.writing_artifact(folder, KIND, SCHEMA, facts, replace=True, pause=pause) as scratch:
        artifacts.save_array(scratch / ROWS, snapshot.rows, pause)
        if snapshot.versions is not None:
            artifacts.save_array(scratch / VERSIONS, snapshot.versions, pause)
    return folder


# ---- finding and removing


def newest(run: Path) -> tuple[str, int]:
    """Return label and shards of the furthest checkpoint whose parts are all intact.

    Raises ArtifactError if there is none, or if one cannot be read, see `complete`.
    """
    for _, _, label, shards in sorted(complete(run), reverse=True):
        try:
            _facts(run, label, shards)
        except ArtifactError as error:
            _pass_over(label, error)
        else:
            return label, shards
    raise ArtifactError(f"{run} has no checkpoint to resume from")


def prune(run: Path, shard: int, shards: int, keep: int, begun: str = "") -> list[str]:
    """Remove this shard's parts of checkpoints older than the last `keep` complete ones (0: remove none).

    Automatic and requested ones are counted apart. A checkpoint is complete if every shard has its part; so the newest
    complete one is never removed. Final ones stay. So does `begun`, the label that the newest generation begins from,
    because a late shard still has to load it. Returns the labels removed.
    """
    removed: list[str] = []
    if not keep or len(_own_labels(run, shard, shards)) <= keep:
        return removed
    whole = {label: (round, updates) for round, updates, label, parts in complete(run) if parts == shards}
    found = _own_parts(run, shard, shards)
    for requested in (False, True):
        own = {label: facts for label, facts in found.items() if bool(facts.get("asked")) is requested}
        kept = sorted((whole[label], label) for label in own.keys() & whole.keys())[-keep:]
        if len(kept) < keep:
            continue
        oldest = reached(own[kept[0][1]])  # as this shard counts, which may be less than shard 0 does
        removed += [label for label, facts in own.items() if reached(facts) < oldest and label != begun]
    for label in removed:
        _remove(part_folder(run, label, shard, shards))
    return removed


def _own_parts(run: Path, shard: int, shards: int) -> dict[str, dict[str, Any]]:
    """Return, by label, the facts of this shard's parts of all checkpoints but final ones."""
    found = {}
    for label in _own_labels(run, shard, shards):
        folder = part_folder(run, label, shard, shards)
        try:
            facts = artifacts.Manifest.load(folder, KIND, SCHEMA, verify=False).facts
            reached(facts)
            if facts["label"] == label:
                found[label] = dict(facts)
        except (ArtifactError, OSError, *BAD_FACTS) as error:
            logger.warning(log.line("checkpoint_kept", folder=folder, why=error))
    return found


def _own_labels(run: Path, shard: int, shards: int) -> list[str]:
    """Return the labels of this shard's parts of all checkpoints but final ones."""
    names = _named(run, f"[!.]*.shard-{shard}-of-{shards}")
    return [label for label in map(_label, names) if not label.startswith(FINAL)]


def remove_old_finals(run: Path, label: str) -> None:
    """Remove the final checkpoints of earlier generations, once all parts of the last one, `label`, are on disk.

    The newest checkpoint that can be resumed from stays: `label` cannot be, if its parts were cut at different rounds.
    """
    names = [name for name in _named(run, f"{FINAL}*.shard-*") if _label(name) != label]
    if not names:
        return
    kept = ""
    with contextlib.suppress(ArtifactError):
        kept, _ = newest(run)
    for name in names:
        if _label(name) != kept:
            _remove(run / CHECKPOINTS / name)


def _remove(folder: Path) -> None:
    """Remove a part of a checkpoint; if the disk does not let it, the part stays and a warning is logged."""
    try:
        shutil.rmtree(folder)
    except OSError as error:
        logger.warning(log.line("checkpoint_kept", folder=folder, why=error))


def remove_leftovers(run: Path, shard: int, shards: int) -> None:
    """Remove what killed processes of this shard were writing (on shard 0 the results, too), see `artifacts.atomic`.

    A folder that was moved aside for a new one, which is missing, is put back. Files of processes that still run stay,
    except those with this process's own id: they are from a process of another container that had the same id.
    """
    paths = [run / CHECKPOINTS / name for name in _named(run, f".*.shard-{shard}-of-{shards}.*")]
    if not shard:
        paths += [run / name for name in fnmatch.filter(artifacts.names_in(run), f".*{artifacts.PARTIAL}")]
    for path in paths:
        name, pid, kind = path.name.rsplit(".", 2)
        if f".{kind}" not in (artifacts.PARTIAL, artifacts.REPLACED) or not pid.isdecimal() or _is_running(int(pid)):
            continue
        folder = path.with_name(name.removeprefix("."))
        try:
            if f".{kind}" == artifacts.REPLACED and not folder.exists():
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


def _named(run: Path, pattern: str) -> list[str]:
    """Return the names in a run's folder of checkpoints that match `pattern`, sorted; raises as `names_in` does."""
    return sorted(fnmatch.filter(artifacts.names_in(os.path.join(run, CHECKPOINTS)), pattern))


def _label(name: str) -> str:
    return name.partition(".shard-")[0]


def complete(run: Path) -> list[tuple[int, int, str, int]]:
    """Return (round, gradients, label, shards) of every checkpoint whose parts are all on disk and belong together.

    One that is damaged is passed over. Raises ArtifactError if one cannot be read: its disk fails, and it may be the
    newest.
    """
    found = []
    for name in _named(run, "[!.]*.shard-0-of-*"):
        label, _, shards = name.partition(".shard-0-of-")
        if shards in _SHARD_COUNTS:
            try:
                facts = [] if missing(run, label, int(shards)) else _facts(run, label, int(shards), verify=False)
                if facts and is_consistent(facts):
                    found.append((*reached(facts[0]), label, int(shards)))
            except ArtifactError as error:
                _pass_over(label, error)
            except BAD_FACTS as error:
                _pass_over(label, ArtifactError(f"lacks facts ({type(error).__name__}: {error})"))
    return found


def _pass_over(label: str, error: ArtifactError) -> None:
    """Log that a damaged checkpoint is passed over; raise ArtifactError if it may be whole, but cannot be read."""
    if artifacts.is_unreadable(error):
        raise ArtifactError(f"{error}; to resume from an earlier checkpoint, remove this one's folder") from error
    logger.warning(log.line("checkpoint_skipped", label=label, why=error))


def is_consistent(facts: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether parts can be resumed from together: of one cut and, for dense models, with the same tensors.

    Shards that were killed one after the other can leave parts for which this is false.
    """
    tensors = {each.get("tensors", "") for each in facts}
    return not _cut_apart(facts) and len(tensors) == 1 and None not in tensors


def _cut_apart(facts: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether parts are of different cuts: of different rounds in exclusive order, of generations otherwise.

    In other modes the parts' rounds may differ, and shard 0's is used; other generations are different trainings.
    """
    if facts[0]["options"]["consistency"] != "exclusive":
        return len({each.get("generation") for each in facts}) > 1
    round = int(facts[0]["round"])
    return not all(0 <= int(each["round"]) <= round <= int(each.get("last_round", each["round"])) for each in facts)


def reached(facts: Mapping[str, Any]) -> tuple[int, int]:
    """Return the round of a checkpoint (minibatches: -1) and its gradients (blocks: the entries reported)."""
    counted = "gradients" if facts["options"]["schedule"] == "minibatch" else "entries"
    return int(facts["round"]), int(facts[counted])


# ---- reading


def missing(run: Path, label: str, shards: int) -> list[int]:
    """Return the shards whose part of a checkpoint is not in this folder; ArtifactError if the disk does not tell."""
    folder = os.path.join(run, CHECKPOINTS)
    return [shard for shard in range(shards) if not artifacts.is_there(f"{folder}/{part_name(label, shard, shards)}")]


def is_intact(run: Path, label: str, shards: int, *, verify: bool = True) -> bool:
    """Return whether all parts of a checkpoint are in this run folder, belong together, and are as they were written.

    Without `verify` only their sizes are compared.
    """
    try:
        return is_consistent(_facts(run, label, shards, verify=verify))
    except (ArtifactError, *BAD_FACTS):
        return False


def read_facts(run: Path, label: str, shards: int) -> list[dict[str, Any]]:
    """Return the facts of every part of a checkpoint; the parts may have been cut at different rounds.

    Raises ArtifactError unless all parts are on disk, intact and of one training.
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
    return [dict(artifacts.Manifest.load(folder, KIND, SCHEMA, verify=verify).facts) for folder in folders]


def read(run: Path, label: str, shards: int, *, one_round: bool = True) -> tuple[Array, dict[str, Any]]:
    """Return all rows of a checkpoint, in row order, and the facts of shard 0.

    Raises ArtifactError if a part is missing, altered, of another shard, or of another training; with `one_round` also
    if it was cut at another round (exclusive order) or in another generation of the run (other modes) than shard 0's.
    """
    shape, dtype, facts = _check_parts(run, label, shards, one_round=one_round)
    rows = np.empty(shape, dtype)
    at = 0
    for piece in _pieces(run, label, shards):
        rows[at : at + len(piece)] = piece
        at += len(piece)
    return rows, facts


def _check_parts(
    run: Path, label: str, shards: int, *, one_round: bool
) -> tuple[tuple[int, int], np.dtype[Any], dict[str, Any]]:
    """Return the shape and type of all rows of a checkpoint and the facts of shard 0; raises as `read` does."""
    facts = read_facts(run, label, shards)
    parts: list[Array] = []
    for shard, found in enumerate(facts):
        folder = part_folder(run, label, shard, shards)
        rows = _load(folder / ROWS, mapped=True)
        if rows.dtype not in (np.float32, np.float64) or rows.ndim != 2:
            raise ArtifactError(f"{folder / ROWS} is not an array of rows")
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
    return (sum(map(len, parts)), parts[0].shape[1]), np.result_type(*parts), facts[0]


def _pieces(run: Path, label: str, shards: int) -> Iterator[Array]:
    """Yield the rows of a checkpoint in row order, some at a time."""
    for shard in range(shards):
        path = part_folder(run, label, shard, shards) / ROWS
        with artifacts.damage_errors(f"{path} cannot be read"):
            yield from artifacts.array_pieces(path)


def take_back(run: Path, label: str) -> Snapshot:
    """Return the checkpoint of a single shard and remove it from the disk, whose room is needed."""
    rows, facts = read(run, label, 1)
    last = Snapshot(label, rows, facts, read_versions(run, label, 1))
    folder = part_folder(run, label, 0, 1)
    with artifacts.output_errors(folder, KIND):
        shutil.rmtree(folder)
    return last


def read_versions(run: Path, label: str, shards: int) -> Indices | None:
    """Return the versions of all rows of a checkpoint that `read` accepts, in row order; None if not counted."""
    files = [part_folder(run, label, shard, shards) / VERSIONS for shard in range(shards)]
    if not all(map(artifacts.is_there, files)):
        return None
    try:
        return np.concatenate([_load(file) for file in files]).astype(np.int64, copy=False)
    except ValueError as error:
        raise ArtifactError(f"{files[0]} does not fit the other parts ({error})") from error


def _load(path: Path, *, mapped: bool = False) -> Array:
    with artifacts.damage_errors(f"{path} cannot be read"):
        return artifacts.load_array(path, mapped=mapped)


# ---- results


def assemble(
    run: Path,
    dataset: Dataset,
    options: TrainingOptions,
    shards: int,
    facts: dict[str, Any],
    label: str = FINAL,
    last: Snapshot | None = None,
) -> None:
    """Write the run's vectors, in vocabulary order, from `last`, or else from the final checkpoint of all shards.

    The parts may be some rounds apart, because signals stop every shard at once; the vectors are still usable. Takes
    memory for the vectors, not for the rows. Raises as `read` and `write_vectors` do.
    """
    if last is not None:
        pieces: Iterator[Array] = (
            last.rows[first : first + CHUNK_ROWS] for first in range(0, len(last.rows), CHUNK_ROWS)
        )
    else:
        (rows, _), _, _ = _check_parts(run, label, shards, one_round=False)
        if rows != dataset.layout.rows:
            raise ArtifactError(f"the checkpoint {label} of {run} has {rows} rows instead of {dataset.layout.rows}")
        pieces = _pieces(run, label, shards)
    layout = RowLayout.of(options)
    vectors = np.empty((dataset.layout.rows, layout.dim), np.float32)
    at = 0
    for piece in pieces:
        vectors[dataset.permutation[at : at + len(piece)]] = layout.vectors(piece)
        at += len(piece)
    write_trained(run, dataset, options, vectors, facts)
