"""One server shard from start to end: open the dataset, claim the run folder, serve, leave the vectors behind."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from glovewire.common import log
from glovewire.common.errors import GlovewireError, Interrupted, OutputError, TrainingDiverged, UsageError
from glovewire.common.model.row_layout import RowLayout
from glovewire.common.model.sharding import Sharding
from glovewire.common.protocol.wire import MAX_FRAME_BYTES
from glovewire.common.runtime.compiled import without_blas
from glovewire.common.runtime.memory import freeze_loaded_objects, keep_freed_memory, trim
from glovewire.common.runtime.signals import signals_raise
from glovewire.common.storage import run_folder as runs
from glovewire.common.storage.dataset import Dataset
from glovewire.common.transport import curve_keys as keys

from . import dense
from .checkpoints import files as checkpoint
from .checkpoints import generations
from .checkpoints import initial_state as start
from .checkpoints.cuts import SUMMARY, final_label
from .checkpoints.generations import Generation
from .config import STOPPED, Identity, ServerConfig
from .consistency import blocks as consistency
from .core.core import Core
from .daemon import Daemon, Look
from .leases.losses import Losses
from .leases.progress import Progress
from .leases.schedule import Schedule
from .table import kernels, optimizers
from .table.table import Table

TABLE = "rows"
OTHER_SHARDS_S = 60.0
OTHERS_AFTER_SIGNAL_S = 1.5
FAILED = "failed: "
NOTHING_LEFT = "nothing left to do"

logger = logging.getLogger(__name__)


def build(config: ServerConfig, dataset: Dataset | None, generation: Generation, now: float) -> Core:
    """Build the core of a shard for a generation of the run; without a dataset it serves tensors."""
    if dataset is None:
        return dense.build(config, generation, now)
    options, layout = config.options, dataset.layout
    rows = RowLayout.of(options)
    if config.shards > layout.rows:
        raise UsageError(f"{layout.rows} rows cannot be spread over {config.shards} shards")
    if options.schedule == "blocks" and max(np.diff(layout.bounds)) * rows.width * 4 > MAX_FRAME_BYTES:
        raise UsageError(
            f"a partition of {max(np.diff(layout.bounds))} rows does not fit in one message of "
            f"{MAX_FRAME_BYTES >> 20} MiB: preprocess with more --partitions"
        )
    sharding = Sharding(layout.rows, config.shards)
    first, last = sharding.bound(config.shard), sharding.bound(config.shard + 1)
    if generation.label:
        begin = start.resumed(config.out, generation.label, generation.parts, options, dataset, first, last)
    else:
        begin = start.fresh(options, dataset, first, last, config.init)
    versions = begin.versions
    if versions is None and options.schedule == "minibatch":
        versions = np.zeros(last - first, np.int64)
    mode = consistency.make(options, np.clip(layout.bounds, first, last), begin.reached, config.workers)
    bounds = mode.bounds.tolist() if isinstance(mode, consistency.ExclusiveBlocks) else ()
    table = Table(TABLE, first, begin.rows, rows.parameters, optimizers.make(options), versions, bounds=bounds)
    schedule = None
    if config.shard == 0 and options.schedule == "blocks":
        schedule = Schedule(layout.partitions, options.epochs, options.seed, begin.reached.round)
    batches = -(-dataset.total_entries // options.batch_size)
    every = config.checkpoint_every * (layout.partitions if options.schedule == "blocks" else batches)
    identity = Identity(
        generation.run,
        config.shard,
        config.shards,
        dataset.checksum,
        config.lease_s,
        every,
        generation.number,
        config.workers,
    )
    losses = Losses(dataset.total_entries * options.epochs, options.epochs, now, entries=begin.entries)
    words = [dataset.words[word] for word in dataset.permutation[first:last].tolist()]
    progress = Progress(schedule, losses, lambda: mode.gradients, options.batch_size)
    core = Core(identity, options, table, mode, progress, now, words)
    if core.progress.complete:  # nobody need come: it only has to be kept
        core.finish("complete", at_once=True)
    return core


def serve(config: ServerConfig, ready: Callable[[Daemon], None]) -> dict[str, Any]:
    """Run a shard to its end; `ready` is called once it is bound. Returns facts of the training for `--json`."""
    keep_freed_memory()
    mine = None if config.keys is None else keys.load_server_keys(config.keys)
    try:
        with signals_raise(), without_blas():
            dataset = None if config.dataset is None else Dataset.open(config.dataset, verify=config.verify)
            kernels.warm()
            if config.options.schedule == "minibatch":
                optimizers.warm(config.options)
            freeze_loaded_objects()
    except Interrupted:
        return {"reason": STOPPED}
    if (config.recover or (config.resume and not config.join)) and generations.over(config):
        logger.info(log.line("over", run=config.out))
        return {"reason": NOTHING_LEFT}
    if (config.recover or config.resume) and not config.join:
        found = generations.unassembled(config, "" if dataset is None else dataset.checksum)
        if found is not None:
            return _catch_up(config, dataset, *found)
    generation = generations.due(config)
    core = build(config, dataset, generation, time.monotonic())
    daemon = Daemon(core, config.out, config.bind, config.publish, config.keep_checkpoints, mine)
    try:
        if config.prometheus is not None:
            daemon.expose(config.prometheus)
        daemon.install_signals()
        generations.claim(config)
        if addresses := config.open_to_all:
            logger.warning(log.line("insecure", open_to_everybody=" ".join(addresses)))
        while True:
            if generations.enter(config, generation):
                ready(daemon)
                try:
                    return _live(config, dataset, core, daemon, generation)
                except generations.Superseded as news:
                    logger.warning(log.line("overtaken", why=news))
            daemon.leave_off()  # what is still written decides which checkpoints are here
            generation = generations.due(config)
            core = build(config, dataset, generation, time.monotonic())
            daemon.renew(core)
    finally:
        daemon.close()


def _catch_up(
    config: ServerConfig, dataset: Dataset | None, generation: Generation, ended: dict[str, Any]
) -> dict[str, Any]:
    """Leave a generation that is over but for what this shard was killed before: the vectors, if it is shard 0."""
    generations.claim(config)
    logger.info(log.line("catches_up", run=config.out, generation=generation.number))
    if config.shard == 0:
        assemble(config, dataset, generation, ended)
    generations.leave(config, generation, str(ended["reason"]))
    return {"reason": NOTHING_LEFT} if config.shard else ended


def _live(
    config: ServerConfig, dataset: Dataset | None, core: Core, daemon: Daemon, generation: Generation
) -> dict[str, Any]:
    """Serve until the run is over; Superseded when it goes on in another generation."""
    reason = daemon.serve(_look(config, generation))
    facts = {**summary(core, reason), "bytes_received": daemon.bytes_out}
    try:
        leave(config, dataset, core, daemon, generation, facts)
    except GlovewireError as error:
        daemon.announce("failed", str(error))
        raise
    daemon.announce("finished", reason)
    return facts


def _look(config: ServerConfig, generation: Generation) -> Look:
    """How a shard learns from the others, and they from it, that the run ends, or goes on in another generation."""
    said = False

    def look(ending: str) -> str:
        nonlocal said
        generations.stay(config, generation)
        if ending and not said:
            said = True
            try:
                generations.tell(config, generation, ending)
            except OutputError as error:  # the disk is full: workers tell the others, too
                logger.warning(log.line("untold", why=error))
        return generations.told(config, generation)

    return look


def leave(
    config: ServerConfig,
    dataset: Dataset | None,
    core: Core,
    daemon: Daemon,
    generation: Generation,
    facts: dict[str, Any],
) -> None:
    """Write the final checkpoint and, on shard 0, the vectors or tensors of all shards."""
    reason = str(facts["reason"])
    if reason.startswith(FAILED):
        raise TrainingDiverged(reason.removeprefix(FAILED))
    trim()
    if core.tensors is None or core.tensors.complete:  # what lacks values is nothing to go on from
        last = core.final()
        daemon.write_now(replace(last, facts={**last.facts, SUMMARY: facts}))
    core.table.give_up()
    if config.shard == 0:
        await_shards(config, generation, daemon)
        assemble(config, dataset, generation, facts)
    generations.leave(config, generation, reason)


def assemble(config: ServerConfig, dataset: Dataset | None, generation: Generation, facts: dict[str, Any]) -> None:
    """Write the vectors, or tensors, that all shards have left at the end of a generation."""
    label = final_label(generation.number)
    if dataset is None:
        dense.assemble(config.out, config.shards, facts, label)
    else:
        checkpoint.assemble(config.out, dataset, config.options, config.shards, facts, label)
    checkpoint.drop_old_finals(config.out, label)


def await_shards(config: ServerConfig, generation: Generation, daemon: Daemon) -> None:
    """Wait until every other shard has left its final checkpoint; OutputError naming those that have not.

    After a signal it does not wait for long.
    """
    began = time.monotonic()
    while missing := generations.absent(config, generation):
        generations.stay(config, generation)
        patience_s = OTHERS_AFTER_SIGNAL_S if daemon.signalled else OTHER_SHARDS_S
        if time.monotonic() > began + patience_s:
            names = ", ".join(map(str, missing))
            raise OutputError(
                f"shards {names} left no final checkpoint in {config.out / runs.CHECKPOINTS} within "
                f"{patience_s:g} s: were they told to finish, and do they share this folder?"
            )
        time.sleep(0.05)


def summary(core: Core, reason: str) -> dict[str, Any]:
    """What training brought, as plain values: the facts of the vectors and of `--json`."""
    losses = core.progress.losses
    loss, floor, norm = losses.epoch_means(losses.last_epoch())
    return {
        "reason": reason,
        "seconds": losses.seconds(),
        "entries": losses.entries,
        "entries_per_second": losses.pace(),
        "loss": loss,
        "bias_only_loss": floor,
        "mean_vector_norm": norm,
        "epochs": losses.epoch,
        "servers": core.identity.shards,
        "bytes_sent": core.bytes_from_workers,
        "counters": dict(core.counters),
        "pushes": core.tally.summary(),
        "staleness": core.exchange.staleness.as_fields(),
        "row_ages": core.exchange.ages.as_fields(),
    }
