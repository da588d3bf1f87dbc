"""A shard that serves the tensors of a dense model: how it begins, and what all shards together leave behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from glovewire.common.errors import ArtifactError, NotReady
from glovewire.common.model.sharding import Sharding
from glovewire.common.model.tensor_layout import ROW, ModelSpec
from glovewire.common.storage import run_folder as tensor_files
from glovewire.common.storage.run_folder import CONFIG

from .checkpoints import files as checkpoint
from .checkpoints.cuts import FINAL
from .checkpoints.generations import Generation
from .config import Identity, ServerConfig
from .consistency.interface import BEGINNING, Reached, make_consistency
from .core.core import Core
from .core.tensors import TensorProgress, Tensors
from .leases.losses import Losses

NAMES = {"entries": "examples", "entries_per_second": "examples_per_second", "mean_vector_norm": "mean_gradient_norm"}
OF_WORDS = ("epochs", "bias_only_loss")
"""Figures that are something else in a training of tensors, and those that are nothing there."""


def build(config: ServerConfig, generation: Generation, now: float) -> Core:
    """The core of a shard at the start of a generation of the run; without a checkpoint its tensors are unknown."""
    options = config.options
    tensors = Tensors(options, config.shard, config.shards)
    reached, examples = _restored(tensors, config, generation) if generation.label else (BEGINNING, 0)
    mode = make_consistency(options, np.zeros(2, np.int64), reached, config.workers)
    every = config.checkpoint_every
    identity = Identity(
        generation.run, config.shard, config.shards, "", config.lease_s, every, generation.number, config.workers
    )
    progress = TensorProgress(Losses(0, 0, now, entries=examples), lambda: mode.version(0), options.steps)
    return Core(identity, options, tensors.table, mode, progress, now, tensors=tensors)


def _restored(tensors: Tensors, config: ServerConfig, generation: Generation) -> tuple[Reached, int]:
    """Take up the checkpoint that a generation begins with; the updates and examples that it has seen."""
    rows, facts = checkpoint.read(config.out, generation.label, generation.parts)
    which = f"the checkpoint {generation.label} of {config.out}"
    if facts["options"] != config.options.as_message():
        raise ArtifactError(f"{which} was trained with other options: see {config.out / CONFIG}")
    spec = _spec(facts, which)
    if len(rows) != spec.rows or rows.dtype != spec.dtype:
        raise ArtifactError(f"{which} does not hold the tensors that it names")
    sharding = Sharding(spec.rows, config.shards)
    first, last = sharding.bound(config.shard), sharding.bound(config.shard + 1)
    tensors.restore(spec, np.ascontiguousarray(rows[first:last]))
    return Reached(0, int(facts["updates"]), int(facts["gradients"])), int(facts["entries"])


def assemble(run: Path, shards: int, facts: dict[str, Any], label: str = FINAL) -> None:
    """Write the run's tensors from the final checkpoint of all shards. NotReady when nobody has brought them all."""
    if checkpoint.missing(run, label, shards):
        raise NotReady(f"no worker has brought values for all tensors: {run} holds none")
    rows, found = checkpoint.read(run, label, shards)
    spec = _spec(found, f"the final checkpoint of {run}")
    places = rows[:, :ROW]
    trained, fixed = (places[slice(*spec.part(kind))] for kind in (True, False))
    values = {**spec.unpack(np.ascontiguousarray(trained), trained=True), **spec.unpack(fixed.copy(), trained=False)}
    said = {NAMES.get(name, name): value for name, value in facts.items() if name not in OF_WORDS}
    tensor_files.write_tensors(run, values, {**said, "updates": found["updates"], "parameters": spec.parameters})


def _spec(facts: dict[str, Any], whose: str) -> ModelSpec:
    if not facts.get("tensors"):
        raise ArtifactError(f"{whose} has no tensors")
    return ModelSpec.from_json(str(facts["tensors"]).encode())
