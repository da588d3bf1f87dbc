"""Run one server shard from start to end: open the dataset, claim the run folder, serve, and leave (`leaving`)."""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from glovewire.common import errors, log
from glovewire.common.endings import Ending, RunEnd
from glovewire.common.model.rounds import Rounds
from glovewire.common.model.row_layout import RowLayout
from glovewire.common.model.sharding import Sharding
from glovewire.common.protocol.schema import MAX_NAME
from glovewire.common.protocol.wire import MAX_FRAME_BYTES
from glovewire.common.runtime import descriptors
from glovewire.common.runtime.compiled import without_blas
from glovewire.common.runtime.memory import FROM_THE_HEAP_BYTES, freeze_loaded_objects, keep_freed_memory, release_code
from glovewire.common.runtime.signals import signals_raise
from glovewire.common.storage import run_folder as runs
from glovewire.common.storage import stores
from glovewire.common.storage.cache import shown_name
from glovewire.common.storage.dataset import Dataset
from glovewire.common.text import printable
from glovewire.common.transport import curve_keys as keys

from .checkpoints import files as checkpoint
from .checkpoints import generations
from .checkpoints import initial_state as start
from .checkpoints.cuts import SUMMARY, final_label
from .checkpoints.generations import Generation
from .config import Identity, ServerConfig
from .consistency.blocks import ExclusiveBlocks
from .consistency.interface import BEGINNING, Reached, make_consistency
from .core.core import Core
from .core.state import ShardState
from .core.tensors import Tensors
from .daemon import CheckShards, Daemon
from .leases.losses import Losses
from .leases.progress import Progress
from .leases.schedule import Schedule
from .leaving import Leaving, assemble, spec_of
from .peers import FIRST_LOOK_S, Peers
from .stored_checkpoints import StoredCheckpoints
from .table import kernels, optimizers
from .table.table import Table
from .telemetry.status import MEANS
from .tokens import Tokens

TABLE = "rows"
LEAST_KEPT_BYTES, MOST_KEPT_TWICE_BYTES = 8 << 20, 256 << 20
"""A server keeps freed memory of twice its table, at least the first and at most the second, or half its table."""
SMALL_FRAME_BYTES = 1 << 20
"""A frame of this size is allowed however few rows a shard has."""

logger = logging.getLogger(__name__)


# ---- initial state


def prepare(config: ServerConfig, dataset: Dataset | None, generation: Generation, now: float) -> ShardState:
    """Build the state of a shard at the start of a generation of the run; without a dataset, one for tensors."""
    if dataset is None:
        return _prepare_tensors(config, generation, now)
    options, layout = config.options, dataset.layout
    rows = RowLayout.of(options)
    if config.shards > layout.rows:
        raise errors.UsageError(f"{layout.rows} rows cannot be spread over {config.shards} shards")
    sharding = Sharding(layout.rows, config.shards)
    first, last = sharding.range(config.shard)
    if generation.label:
        begin = start.restore_state(config.out, generation.label, generation.parts, options, dataset, first, last)
    else:
        begin = start.draw_state(options, dataset, first, last, config.init)
    versions = begin.versions
    if versions is None and options.schedule == "minibatch":
        versions = np.zeros(last - first, np.int64)
    mode = make_consistency(options, np.clip(layout.bounds, first, last), begin.reached, config.workers)
    table = Table(TABLE, first, begin.rows, rows.parameters, optimizers.make(options), versions)
    schedule = None
    if config.shard == 0 and options.schedule == "blocks":
        schedule = Schedule(Rounds.of(options, layout.partitions), begin.reached.round)
    batches = -(-dataset.total_entries // options.batch_size)
    sweeps = -(-config.checkpoint_every // options.local_epochs)
    every = sweeps * (layout.partitions if options.schedule == "blocks" else batches)
    losses = Losses.of(options, dataset.total_entries, now, begin.entries)
    words = [dataset.words[word] for word in dataset.permutation[first:last].tolist()]
    owners = [[part.shard for part in sharding.split(*span)] for span in pairwise(layout.bounds)]
    identity = _identity(config, generation, dataset.checksum, every)
    batch, tokens = options.batch_size, identity.tokens
    progress = Progress(schedule, losses, lambda: mode.gradients, batch, tokens, owners, config.block_s)
    if config.hold and not progress.complete:
        progress.allow(losses.epoch + 1)
    return ShardState(identity, options, table, mode, progress, now, words, read_data=dataset.read)


def _prepare_tensors(config: ServerConfig, generation: Generation, now: float) -> ShardState:
    """Build the state of a shard of a dense model; without a checkpoint it has no tensors yet."""
    options = config.options
    tensors = Tensors(options, config.shard, config.shards)
    reached, examples = _restore(tensors, config, generation) if generation.label else (BEGINNING, 0)
    mode = make_consistency(options, np.zeros(2, np.int64), reached, config.workers)
    losses = Losses(0, 0, now, entries=examples, updates=lambda: (mode.version(0), options.steps))
    progress = Progress(None, losses, lambda: mode.gradients, 1, patience_s=config.block_s)
    identity = _identity(config, generation, "", config.checkpoint_every)
    return ShardState(identity, options, tensors.table, mode, progress, now, tensors=tensors)


def _restore(tensors: Tensors, config: ServerConfig, generation: Generation) -> tuple[Reached, int]:
    """Load the checkpoint that a generation begins from into `tensors`; return its progress and its examples."""
    rows, facts = checkpoint.read(config.out, generation.label, generation.parts)
    which = _require_options(config, facts, generation.label)
    spec = spec_of(facts, which)
    if len(rows) != spec.rows or rows.dtype != spec.dtype:
        raise errors.ArtifactError(f"{which} does not hold the tensors that it names")
    first, last = Sharding(spec.rows, config.shards).range(config.shard)
    tensors.restore(spec, np.ascontiguousarray(rows[first:last]))
    return Reached(0, int(facts["updates"]), int(facts["gradients"])), int(facts["entries"])


def _require_options(config: ServerConfig, facts: dict[str, Any], label: str) -> str:
    """Raise ArtifactError if a checkpoint was trained with other options; return its name for error messages."""
    which = f"the checkpoint {label} of {config.out}"
    if facts["options"] != config.options.as_message():
        raise errors.ArtifactError(f"{which} was trained with other options: see {config.out / runs.CONFIG}")
    return which


def _identity(config: ServerConfig, generation: Generation, dataset: str, checkpoint_rounds: int) -> Identity:
    return Identity(
        run=generation.run,
        shard=config.shard,
        shards=config.shards,
        dataset=dataset,
        lease_s=config.lease_s,
        tokens=Tokens(bytes.fromhex(generation.secret)),
        checkpoint_rounds=checkpoint_rounds,
        generation=generation.number,
        asked=generation.asked,
        workers=config.workers,
        name=printable(config.out.resolve().name, MAX_NAME),
        dataset_name="" if config.dataset is None else printable(shown_name(config.dataset), MAX_NAME),
    )


def largest_frame(state: ShardState) -> int:
    """Return the bytes of the largest frame that a request to this shard may have: its largest push."""
    table, order = state.table, state.consistency
    if state.tensors is not None:
        return MAX_FRAME_BYTES
    rows = int(np.diff(order.bounds).max()) if isinstance(order, ExclusiveBlocks) else table.rows
    row_bytes: int = table.values.shape[1] * table.values.itemsize
    numbers = table.rows * np.dtype(np.int64).itemsize
    return min(MAX_FRAME_BYTES, max(SMALL_FRAME_BYTES, rows * row_bytes, numbers))


# ---- serving


def _keep_freed_memory(nbytes: int, schedule: str) -> None:
    """Keep as much as before-images and messages take beside a table of `nbytes`; of blocks, not copies of all rows."""
    keep = max(LEAST_KEPT_BYTES, min(2 * nbytes, MOST_KEPT_TWICE_BYTES), nbytes // 2)
    keep_freed_memory(keep, heap_bytes=min(keep, FROM_THE_HEAP_BYTES) if schedule == "blocks" else FROM_THE_HEAP_BYTES)


def serve(config: ServerConfig, ready: Callable[[Daemon], None]) -> dict[str, Any]:
    """Run a shard to its end; `ready` is called once it is bound. Returns facts of the training for `--json`."""
    keep_freed_memory()
    descriptors.raise_limit()
    mine = None if config.keys is None else keys.load_server_keys(config.keys)
    with contextlib.ExitStack() as held:
        try:
            with signals_raise(), without_blas():
                peers = held.enter_context(contextlib.closing(Peers(config, mine)))
                stored = held.enter_context(contextlib.closing(StoredCheckpoints(config)))
                if config.downloads and (ended := _ended(config, None, peers)) is not None:
                    peers.look()  # shard 0, which has the dataset, may have ended, too
                    peers.tell_whole()
                    peers.follow()
                    stored.follow()
                    return _catch_up(config, None, peers, ended)
                dataset = held.enter_context(_dataset(config, peers))
                peers.offer(dataset)
                kernels.warm()
                if config.options.schedule == "minibatch":
                    optimizers.warm(config.options)
                freeze_loaded_objects()
                release_code("libllvmlite")
                peers.look(FIRST_LOOK_S)
                stored.bring()
                peers.tell_whole()
        except errors.Interrupted:
            return RunEnd(Ending.STOPPED).as_fields()
        peers.follow()
        stored.follow()
        return _serve(config, dataset, mine, peers, ready)


@contextlib.contextmanager
def _dataset(config: ServerConfig, peers: Peers) -> Iterator[Dataset | None]:
    """Yield the dataset that was given or that shard 0 has; None for tensors."""
    if config.downloads:
        with peers.dataset() as dataset:
            yield dataset
    elif config.dataset is None:
        yield None
    else:
        with stores.local(config.dataset, config.cache, config.cache_bytes, verify=config.verify) as folder:
            yield Dataset.open(folder, verify=config.verify)


def _serve(
    config: ServerConfig,
    dataset: Dataset | None,
    mine: keys.ServerKeys | None,
    peers: Peers,
    ready: Callable[[Daemon], None],
) -> dict[str, Any]:
    """Take part in every generation of the run until it is over, and return facts of the training."""
    if (ended := _ended(config, dataset, peers)) is not None:
        return _catch_up(config, dataset, peers, ended)
    generation = generations.next_generation(config)
    state = prepare(config, dataset, generation, time.monotonic())
    _keep_freed_memory(state.table.values.nbytes, config.options.schedule)
    core, largest = Core(state), largest_frame(state)
    daemon = Daemon(core, config.out, config.bind, config.publish, config.keep_checkpoints, mine, largest)
    try:
        if config.prometheus is not None:
            daemon.expose(config.prometheus)
        daemon.install_signals()
        generations.claim(config)
        if addresses := config.open_to_all:
            logger.warning(log.line("insecure", open_to_all=" ".join(addresses)))
        while True:
            if generations.enter(config, generation, peers.begin):
                try:
                    peers.confirm(generation, lambda: daemon.signalled)
                    ready(daemon)
                    return _serve_generation(config, dataset, core, daemon, peers, generation)
                except generations.Superseded as error:
                    logger.warning(log.line("superseded", why=error))
            daemon.finish_writing()  # the next generation begins from the newest checkpoint on disk
            peers.look()
            if (ended := _ended(config, dataset, peers)) is not None:
                return _catch_up(config, dataset, peers, ended)
            generation = generations.next_generation(config)
            core = Core(prepare(config, dataset, generation, time.monotonic()))
            daemon.replace_core(core)
    finally:
        daemon.close()


def _ended(config: ServerConfig, dataset: Dataset | None, peers: Peers) -> Generation | None:
    """Return the end of the run if it has ended and this shard was started to continue it."""
    if not config.recover and (config.join or not config.resume):
        return None
    return generations.end_of_run(config, peers.begin, None if dataset is None else dataset.checksum)


def _catch_up(config: ServerConfig, dataset: Dataset | None, peers: Peers, ended: Generation) -> dict[str, Any]:
    """Leave a run that ended while this shard was down; on shard 0, assemble the results and return them.

    Old final checkpoints are removed: this shard may just have brought them back from a store.
    """
    generations.claim(config)
    generation = replace(ended, number=ended.number - 1)
    label = final_label(generation.number)
    logger.info(log.line("catches_up", run=config.out, generation=generation.number))
    facts: dict[str, Any] = RunEnd(Ending.OVER).as_fields()
    lacks_values = config.dataset is None and checkpoint.missing(config.out, label, config.shards)
    if not lacks_values:
        if config.shard == 0 and not generations.has_results(config, ended):
            last = checkpoint.read_facts(config.out, label, config.shards)[0]
            _require_options(config, last, label)
            facts = last[SUMMARY]
            assemble(config, dataset, generation, facts)
        checkpoint.remove_old_finals(config.out, label)
    generations.leave(config, generation, RunEnd(Ending(ended.ended)))
    peers.part()
    return facts


def _summary(config: ServerConfig, core: Core, generation: Generation, end: RunEnd) -> dict[str, Any]:
    """Return the results; if nothing was left to train, with the losses of the generation's first checkpoint."""
    facts = core.summary(end)
    if generation.label and not facts["seconds"]:
        with contextlib.suppress(errors.ArtifactError):
            before = checkpoint.read_facts(config.out, generation.label, generation.parts)[0].get(SUMMARY, {})
            facts |= {name: before[name] for name in MEANS if name in before}
    return facts


def _serve_generation(
    config: ServerConfig, dataset: Dataset | None, core: Core, daemon: Daemon, peers: Peers, generation: Generation
) -> dict[str, Any]:
    """Serve until the run is over and write the results; Superseded if the run continues in another generation."""
    check = _check_shards(config, generation)
    end = daemon.serve(check)
    facts = _summary(config, core, generation, end)
    try:
        try:
            Leaving(config, dataset, core, daemon, peers, generation, end, facts, partial(check, end)).leave()
        finally:
            daemon.aside(partial(peers.part, lambda: daemon.signalled))
    except generations.Superseded:
        raise
    except errors.GlovewireError as error:
        daemon.announce("failed", str(error))
        raise
    daemon.announce("finished", str(end))
    return facts


def _check_shards(config: ServerConfig, generation: Generation) -> CheckShards:
    """Return the function that exchanges endings with other shards; it raises Superseded for a newer generation.

    A shard that is ending does not need the endings of the others. It tries again to tell them while the disk is full:
    workers tell them, too, but not those that wait to be let go.
    """
    announced, problem = False, ""

    def check(end: RunEnd | None) -> RunEnd | None:
        nonlocal announced, problem
        generations.has_ended(config, generation)
        if end is None:
            return generations.announced_ending(config, generation)
        if not announced:
            try:
                generations.announce_ending(config, generation, end)
                announced = True
            except errors.OutputError as error:
                if descriptors.is_shortage(error):
                    raise
                if problem != str(error):
                    problem = str(error)
                    logger.warning(log.line("untold", why=error))
        return None

    return check
