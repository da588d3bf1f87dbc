"""Make the rows that a shard starts with: drawn from the seed, taken from other vectors, or from a checkpoint."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from glovewire.common.array_types import Indices, Rows
from glovewire.common.errors import ArtifactError, UsageError
from glovewire.common.model.options import TrainingOptions
from glovewire.common.model.rounds import Rounds
from glovewire.common.model.row_layout import RowLayout
from glovewire.common.storage import stores
from glovewire.common.storage.dataset import Dataset
from glovewire.common.storage.run_folder import CONFIG, Vectors, load_vectors

from ..consistency.interface import BEGINNING, Reached
from . import files


@dataclass(frozen=True)
class InitialState:
    """Rows that a shard starts with, the progress and entries already trained, and each row's version, if counted."""

    rows: Rows
    reached: Reached = BEGINNING
    entries: int = 0
    versions: Indices | None = None


def draw_state(options: TrainingOptions, dataset: Dataset, first: int, last: int, init: Path | None) -> InitialState:
    """Return rows [first, last) drawn from the seed; words that the run `init` knows start with its vectors."""
    layout = RowLayout.of(options)
    rows = layout.initial(first, last, options)
    if init is not None:
        known = vectors_of(init, options)
        words = [dataset.words[word] for word in dataset.permutation[first:last]]
        found = [row for row, word in enumerate(words) if word in known.index]
        if found:
            vectors = known.vectors[[known.index[words[row]] for row in found]]
            for role in range(layout.roles):
                at = layout.columns[role, 0]
                rows[found, at : at + options.dim] = vectors / layout.roles
    return InitialState(rows)


def vectors_of(init: Path, options: TrainingOptions) -> Vectors:
    """Return the vectors of the run `init`; ArtifactError if it has none, UsageError if their dimension is another."""
    with stores.local(init) as folder:
        known = load_vectors(folder)
    if known.dim != options.dim:
        raise UsageError(f"{init} has vectors of {known.dim} dimensions, not {options.dim}")
    return known


def saved_options(run: Path, objective: str | None = None, epochs: int | None = None) -> TrainingOptions:
    """Return the training options of the checkpoint to resume `run` from; with `epochs`, extended to that many.

    Raises UsageError if the checkpoint has another objective than `objective`, so that its rows mean something else, or
    was written by another version of the program, with other options.
    """
    label, shards = files.newest(run)
    _, facts = files.read(run, label, shards)
    try:
        options = TrainingOptions.from_message(facts["options"])
    except UsageError as error:
        raise UsageError(f"{run} cannot be resumed from {label}: {error}") from error
    if objective not in (None, options.objective):
        raise UsageError(f"{run} was begun with the objective {options.objective} and cannot continue with {objective}")
    return replace(options, epochs=epochs) if epochs is not None and epochs > options.epochs else options


def require_same_dataset(run: Path, dataset: Path) -> None:
    """Raise UsageError unless the newest checkpoint of `run` was trained on `dataset`."""
    label, shards = files.newest(run)
    facts = files.read_facts(run, label, shards)[0]
    with stores.local(dataset, verify=False) as folder:
        checksum = Dataset.open(folder, verify=False).checksum
    if facts["dataset"] != checksum:
        raise UsageError(f"{run} was trained on another dataset than {dataset}: resume it with its own, or begin anew")


def restore_state(
    run: Path, label: str, shards: int, options: TrainingOptions, dataset: Dataset, first: int, last: int
) -> InitialState:
    """Return rows [first, last) of a checkpoint of any number of shards; ArtifactError if it does not fit."""
    rows, facts = files.read(run, label, shards)
    versions = files.read_versions(run, label, shards)
    checkpoint = f"the checkpoint {label} of {run}"
    if versions is not None and versions.shape != (len(rows),):
        raise ArtifactError(f"{checkpoint} counts the changes of other rows")
    if not _are_extended(facts["options"], options):
        raise ArtifactError(f"{checkpoint} was trained with other options: see {run / CONFIG}")
    if facts["dataset"] != dataset.checksum:
        raise ArtifactError(f"{checkpoint} was trained on another dataset")
    if len(rows) != dataset.layout.rows:
        raise ArtifactError(f"{checkpoint} has {len(rows)} rows instead of {dataset.layout.rows}")
    ours, round = np.ascontiguousarray(rows[first:last]), int(facts["round"])
    blocks = options.schedule == "blocks"
    possible = 0 <= round <= options.sweeps * dataset.layout.partitions if blocks else round == -1
    fits = ours.dtype == np.float32 and rows.shape[1] == RowLayout.of(options).width
    if not (possible and fits and np.isfinite(ours).all()):
        raise ArtifactError(f"{checkpoint} holds rows or a round that training cannot have reached")
    if blocks:
        return InitialState(ours, Reached(round), entries_before(dataset, options, round))
    reached = Reached(0, int(facts.get("updates", 0)), int(facts.get("gradients", 0)))
    entries = reached.gradients * options.batch_size  # reports may be false, and name gradients that were dropped
    return InitialState(ours, reached, entries, None if versions is None else versions[first:last].copy())


def _are_extended(saved: dict[str, Any], options: TrainingOptions) -> bool:
    """Return whether `options` are those of a checkpoint, perhaps with more epochs."""
    epochs = saved.get("epochs")
    more = type(epochs) is int and epochs <= options.epochs
    return {**saved, "epochs": options.epochs if more else epochs} == options.as_message()


def entries_before(dataset: Dataset, options: TrainingOptions, round: int) -> int:
    """Return how many entries of the full matrix are trained in the rounds before the global round `round`."""
    layout = dataset.layout
    rounds = Rounds.of(options, layout.partitions)
    sweep = rounds.sweep(round)
    strips = [rounds.strip(earlier) for earlier in range(sweep * layout.partitions, round)]
    done = [pair for strip in strips for pair in layout.strip(strip)]
    entries = sweep * dataset.total_entries + sum(dataset.full_entries(a, b) for a, b in done)
    return entries * options.local_epochs
