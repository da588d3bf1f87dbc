"""Read the vectors of a checkpoint. It holds table rows but no words; the words come from the training dataset."""

import os
from pathlib import Path

import numpy as np

from glovewire.common.addresses import url_of
from glovewire.common.cli.config_file import saved_value
from glovewire.common.errors import ArtifactError, UsageError
from glovewire.common.model.options import TrainingOptions
from glovewire.common.model.postprocess import flatten_spectrum
from glovewire.common.model.row_layout import RowLayout
from glovewire.common.storage import run_folder as runs
from glovewire.common.storage import stores
from glovewire.common.storage.dataset import Dataset
from glovewire.common.storage.run_folder import Vectors
from glovewire.server.checkpoints import files


def is_checkpoint(path: Path) -> bool:
    """Return whether `path` is a checkpoint's folder, of any shard, in a run, or a link to one."""
    path = Path(os.path.realpath(path))
    return path.parent.name == runs.CHECKPOINTS and files.PART.fullmatch(path.name) is not None and os.path.isdir(path)


def newest_checkpoint(run: Path) -> Path:
    """Return the folder of shard 0 of the newest checkpoint of an unfinished run; ArtifactError if there is none."""
    try:
        label, shards = files.newest(run)
    except ArtifactError as error:
        raise ArtifactError(f"training has not finished: {run} has no vectors yet, and no whole checkpoint") from error
    return files.part_folder(run, label, 0, shards)


def read_checkpoint(path: Path, dataset: Path | None = None) -> Vectors:
    """Return the vectors of a checkpoint, after the run's post-processing; `path` is the part of any one shard.

    Character n-grams are fitted only at the end of a run, so a checkpoint has none. `dataset` defaults to that of the
    run's `config.toml`. Raises ArtifactError for a damaged checkpoint or another dataset.
    """
    path = Path(os.path.realpath(path))
    part, run = files.PART.fullmatch(path.name), path.parent.parent
    if part is None:
        raise ArtifactError(f"{path} is not a part of a checkpoint: name one in the folder of checkpoints of a run")
    rows, facts = files.read(run, part["label"], int(part["shards"]), one_round=False)
    dataset = dataset or dataset_of(run)
    if dataset is None:
        raise ArtifactError(f"{path} holds rows without words: name the dataset that it was trained on with --dataset")
    with stores.local(dataset, verify=False) as folder:
        opened = Dataset.open(folder, verify=False)
    if facts["dataset"] != opened.checksum:
        raise ArtifactError(f"{path} was not trained on {opened.path}: name the dataset that it was trained on")
    try:
        options = TrainingOptions.from_message(facts["options"])
    except UsageError as error:
        raise ArtifactError(f"{path} cannot be read: {error}") from error
    layout = RowLayout.of(options)
    if options.objective == "tensors" or rows.shape != (opened.layout.rows, layout.width):
        raise ArtifactError(f"{path} does not hold the rows of {opened.layout.rows} words")
    vectors = np.empty((len(rows), layout.dim), np.float32)
    vectors[opened.permutation] = layout.vectors(rows)
    flatten_spectrum(vectors, options.spectrum)
    if not np.isfinite(vectors).all():
        raise ArtifactError(f"{path} holds NaN or infinity")
    return Vectors(opened.words, vectors, {"checkpoint": part["label"]}, opened.counts)


def dataset_of(run: Path) -> Path | None:
    """Return the dataset that the configuration of a run names; None if it names none."""
    named = saved_value(run / runs.CONFIG, "dataset", str)
    return None if named is None else Path(named) if url_of(named) else run / named
