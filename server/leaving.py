"""End a generation of a run at one shard: write the final checkpoint, let the workers go, and write the results."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from glovewire.common import errors
from glovewire.common.endings import LASTING, Ending, RunEnd
from glovewire.common.model.tensor_layout import ROW, ModelSpec
from glovewire.common.runtime import descriptors
from glovewire.common.runtime.memory import trim
from glovewire.common.storage import artifacts
from glovewire.common.storage import run_folder as runs
from glovewire.common.storage.dataset import Dataset

from .checkpoints import files as checkpoint
from .checkpoints import generations
from .checkpoints.cuts import SUMMARY, Snapshot, final_label
from .checkpoints.generations import Generation
from .config import ServerConfig
from .core.core import Core
from .daemon import Daemon
from .peers import Peers

OTHER_SHARDS_S = 60.0
OTHERS_AFTER_SIGNAL_S = 1.5
TENSOR_FACTS = {
    "entries": "examples",
    "entries_per_second": "examples_per_second",
    "mean_vector_norm": "mean_gradient_norm",
}
"""Names of facts -> their names in the results of a run that trained tensors."""
WORD_FACTS = ("epochs", "bias_only_loss", "dataset", "dataset_checksum")
"""Facts left out of the results of a run that trained tensors."""


@dataclass(frozen=True)
class Leaving:
    """What a shard has left to do in `generation`, which ended as `end` says; `facts` are those of the training.

    `tell` tells the other shards of the end, if that has not been possible before.
    """

    config: ServerConfig
    dataset: Dataset | None
    core: Core
    daemon: Daemon
    peers: Peers
    generation: Generation
    end: RunEnd
    facts: dict[str, Any]
    tell: Callable[[], object]

    def leave(self) -> None:
        """Write the final checkpoint and, on shard 0, the vectors or tensors of all shards; raise if the run failed.

        Raises Superseded if the run continues in another generation.
        """
        config = self.config
        if self.end.ending is Ending.FAILED:
            raise errors.TrainingDiverged(self.end.text or "a worker reported that the training diverged")
        trim()
        try:
            self._write()
        except errors.OutputError as error:
            if config.shards > 1 or descriptors.is_shortage(error) or (last := self._rows_to_keep()) is None:
                raise
            results = partial(assemble, config, self.dataset, self.generation, self.facts, last)
            artifacts.attempt_all(partial(self.daemon.aside, results), partial(self.daemon.write_now, last))
        if config.shards == 1:  # not before: a full disk may take its checkpoint away, and it needs workers then
            self._let_workers_go()
        if config.shard == 0:
            checkpoint.remove_old_finals(config.out, final_label(self.generation.number))
        self.daemon.aside(partial(generations.leave, config, self.generation, self.end))

    def _write(self) -> None:
        """Write the final checkpoint and free the table; on shard 0, write the results from disk.

        Of several shards, let the workers go before that.
        """
        config, daemon = self.config, self.daemon
        if (last := self._final()) is not None:
            daemon.write_now(last)
        else:  # its tensors lack values: the others must not wait for its final checkpoint
            daemon.aside(partial(generations.announce_ending, config, self.generation, self.end, is_empty=True))
        del last
        self.core.free_table()
        if config.shards > 1:
            self._let_workers_go()
        if config.shard == 0:
            daemon.aside(partial(assemble, config, self.dataset, self.generation, self.facts))

    def _let_workers_go(self) -> None:
        """Let the workers go when it is certain that the run has ended: a restarted shard may need them before."""
        if self.config.shard == 0 or self.end.ending in LASTING:
            self.daemon.aside(self._await_end)
        self.daemon.farewell()

    def _rows_to_keep(self) -> Snapshot | None:
        """Return the rows of a single shard whose disk lacks room for both the final checkpoint and the results.

        A finished run needs its results, and its checkpoint is removed for them. That of a stopped one stays (None).
        """
        run, label = self.config.out, final_label(self.generation.number)
        if checkpoint.missing(run, label, self.config.shards):
            return self._final()
        return checkpoint.take_back(run, label) if self.end.ending is Ending.COMPLETE else None

    def _final(self) -> Snapshot | None:
        """Return the final checkpoint with the summary of the training; None if tensors lack values."""
        last = self.core.final()
        return None if last is None else replace(last, facts={**last.facts, SUMMARY: self.facts})

    def _await_end(self) -> None:
        """Wait until every shard has finished the generation and shard 0 has recorded the end of the run.

        After a signal shard 0 records nothing. Raises Superseded if another generation was begun, and OutputError after
        OTHER_SHARDS_S, which begin anew with each piece of a file that shards without a shared folder copy; after a
        signal to this shard, OTHERS_AFTER_SIGNAL_S from the start.
        """
        config, began = self.config, time.monotonic()
        while not generations.has_ended(config, self.generation):
            self.tell()
            missing = generations.unfinished(config, self.generation)
            if not missing and (self.end.ending not in LASTING or generations.is_stopped(config, self.generation)):
                return
            if not missing and config.shard == 0:
                generations.record_end(config, self.generation, self.end.ending)
                continue
            patience_s, since = OTHER_SHARDS_S, max(began, self.peers.copied_at)
            if self.daemon.signalled:
                patience_s, since = OTHERS_AFTER_SIGNAL_S, began
            if time.monotonic() > since + patience_s:
                names = ", ".join(map(str, missing))
                raise errors.OutputError(
                    f"shards {names} left no final checkpoint in {config.out / runs.CHECKPOINTS} within "
                    f"{patience_s:g} s: were they told to finish, and do they share this folder?"
                    if missing
                    else f"shard 0 did not record the end of the run within {patience_s:g} s: start both with --recover"
                )
            time.sleep(0.05)


# ---- results


def assemble(
    config: ServerConfig,
    dataset: Dataset | None,
    generation: Generation,
    facts: dict[str, Any],
    last: Snapshot | None = None,
) -> None:
    """Write the vectors, or tensors, from `last`, or else from the final checkpoints of all shards of a generation."""
    label = final_label(generation.number)
    if dataset is None:
        _assemble_tensors(config, facts, label, last)
    else:
        checkpoint.assemble(config.out, dataset, config.options, config.shards, facts, label, last)


def _assemble_tensors(config: ServerConfig, facts: dict[str, Any], label: str, last: Snapshot | None) -> None:
    """Write the run's tensors; NotReady if no worker has brought values for all of them."""
    run = config.out
    if last is not None:
        rows, found = last.rows, last.facts
    elif checkpoint.missing(run, label, config.shards):
        raise errors.NotReady(f"no worker has brought values for all tensors: {run} holds none")
    else:
        rows, found = checkpoint.read(run, label, config.shards)
    spec = spec_of(found, f"the final checkpoint of {run}")
    places = rows[:, :ROW]
    trained, fixed = (places[slice(*spec.part(kind))] for kind in (True, False))
    values = {**spec.unpack(np.ascontiguousarray(trained), trained=True), **spec.unpack(fixed.copy(), trained=False)}
    renamed = {TENSOR_FACTS.get(name, name): value for name, value in facts.items() if name not in WORD_FACTS}
    runs.write_tensors(run, values, {**renamed, "updates": found["updates"], "parameters": spec.parameters})


def spec_of(facts: dict[str, Any], whose: str) -> ModelSpec:
    """Return the tensors that the facts of a checkpoint name; ArtifactError if it has none."""
    if not facts.get("tensors"):
        raise errors.ArtifactError(f"{whose} has no tensors")
    return ModelSpec.from_json(str(facts["tensors"]).encode())
