"""What the rows of a shard are when it starts: drawn from the seed, taken from other vectors, or from a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from glovewire.common.array_types import Indices, Rows
from glovewire.common.errors import ArtifactError, UsageError
from glovewire.common.model.options import TrainingOptions
from glovewire.common.model.rounds import epoch_rounds
from glovewire.common.model.row_layout import RowLayout
from glovewire.common.storage.dataset import Dataset
from glovewire.common.storage.run_folder import CONFIG, Vectors, load_vectors

from ..consistency.interface import BEGINNING, Reached
from . import files as checkpoint


@dataclass(frozen=True)
class Start:
    """Rows [first, ...) of the table, how far they are, and the entries trained to get there.

    `versions` counts the changes of each row, where it is known.
    """

    rows: Rows
    reached: Reached = BEGINNING
    entries: int = 0
    versions: Indices | None = None


def fresh(options: TrainingOptions, dataset: Dataset, first: int, last: int, init: Path | None) -> Start:
    """Initial rows; words that the run `init` knows begin with its vectors."""
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
    return Start(rows)


def vectors_of(init: Path, options: TrainingOptions) -> Vectors:
    """The vectors that words begin with; ArtifactError when there are none, UsageError when they do not fit."""
    known = load_vectors(init)
    if known.dim != options.dim:
        raise UsageError(f"{init} has vectors of {known.dim} dimensions, not {options.dim}")
    return known


def saved_options(run: Path, objective: str | None = None) -> TrainingOptions:
    """The training options of the checkpoint that a resumed run goes on from.

    Raises UsageError when it has another objective than the one asked for: its rows mean something else; and when
    another version of the program, with other options, wrote it.
    """
    label, shards = checkpoint.newest(run)
    _, facts = checkpoint.read(run, label, shards)
    try:
        options = TrainingOptions.from_message(facts["options"])
    except UsageError as error:
        raise UsageError(f"{run} cannot go on from {label}: {error}") from error
    if objective not in (None, options.objective):
        raise UsageError(f"{run} was begun with the objective {options.objective} and cannot go on with {objective}")
    return options


def resumed(
    run: Path, label: str, shards: int, options: TrainingOptions, dataset: Dataset, first: int, last: int
) -> Start:
    """Rows [first, last) of a checkpoint in `run`, however many shards made it; ArtifactError when it does not fit."""
    rows, facts = checkpoint.read(run, label, shards)
    versions = checkpoint.read_versions(run, label, shards)
    if versions is not None and versions.shape != (len(rows),):
        raise ArtifactError(f"the checkpoint {label} of {run} counts the changes of other rows")
    if facts["options"] != options.as_message():
        raise ArtifactError(f"the checkpoint {label} of {run} was trained with other options: see {run / CONFIG}")
    if facts["dataset"] != dataset.checksum:
        raise ArtifactError(f"the checkpoint {label} of {run} was trained on another dataset")
    if len(rows) != dataset.layout.rows:
        raise ArtifactError(f"the checkpoint {label} of {run} has {len(rows)} rows instead of {dataset.layout.rows}")
    mine = np.ascontiguousarray(rows[first:last])
    width, most, round = RowLayout.of(options).width, options.epochs * dataset.layout.partitions, int(facts["round"])
    blocks = options.schedule == "blocks"
    strange = not 0 <= round <= most if blocks else round != -1
    if mine.dtype != np.float32 or rows.shape[1] != width or not np.isfinite(mine).all() or strange:
        raise ArtifactError(f"the checkpoint {label} of {run} holds rows or a round that training cannot have reached")
    if blocks:
        return Start(mine, Reached(round), entries_before(dataset, options, round))
    counted = None if versions is None else versions[first:last].copy()
    reached = Reached(0, int(facts.get("updates", 0)), int(facts.get("gradients", 0)))
    # Reports come later than the gradients that they are of.
    return Start(mine, reached, max(int(facts["entries"]), reached.gradients * options.batch_size), counted)


def entries_before(dataset: Dataset, options: TrainingOptions, round: int) -> int:
    """Entries of the full matrix that the rounds before a global round cover."""
    epoch, rest = divmod(round, dataset.layout.partitions)
    pairs = epoch_rounds(dataset.layout.partitions, options.seed, epoch)[:rest]
    symmetric = dataset.layout.symmetric
    both = [(a, b) for some in pairs for a, b in some] + [
        (b, a) for some in pairs for a, b in some if a != b and not symmetric
    ]
    return epoch * dataset.total_entries + sum(dataset.full_entries(a, b) for a, b in both)
