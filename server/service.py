"""One server shard from start to end: open the dataset, claim the run folder, serve, leave the vectors behind."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from common import run as runs
from common.allocation import keep_buffers
from common.artifacts import write_text_atomically
from common.dataset import Dataset
from common.errors import GlovewireError, OutputError, TrainingDiverged, UsageError
from common.rows import RowLayout
from common.settings import to_toml
from common.sharding import Sharding
from common.wire import MAX_FRAME_BYTES

from . import checkpoint, consistency, kernels, optimizers, start
from .config import Identity, ServerConfig
from .core import Core
from .daemon import Daemon
from .losses import Losses
from .progress import Progress
from .schedule import Schedule
from .table import Table

TABLE = "rows"
OTHER_SHARDS_S = 60.0
FAILED = "failed: "


def build(config: ServerConfig, dataset: Dataset, now: float) -> Core:
    """The core of a shard at the start of its training."""
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
    if config.resume:
        begin = start.resumed(config.out, options, dataset, first, last)
    else:
        begin = start.fresh(options, dataset, first, last, config.init)
    table = Table(TABLE, first, begin.rows, rows.parameters, optimizers.make(options))
    mode = consistency.make(options, np.clip(layout.bounds, first, last), begin.round)
    schedule = None
    if config.shard == 0 and options.schedule == "blocks":
        reached = max(begin.round, begin.entries // max(dataset.total_entries, 1) * layout.partitions)
        schedule = Schedule(layout.partitions, options.epochs, options.seed, reached)
    every = config.checkpoint_every * layout.partitions
    identity = Identity(
        config.run or secrets.token_hex(4), config.shard, config.shards, dataset.checksum, config.lease_s, every
    )
    losses = Losses(dataset.total_entries * options.epochs, options.epochs, now, entries=begin.entries)
    return Core(identity, options, table, mode, Progress(schedule, losses), now)


def claim(config: ServerConfig) -> None:
    """Make sure that RUN is ours to write: new, or begun by the other shards of the same training.

    Raises OutputError when it holds a finished run, another run, or this very shard already.
    """
    mark = config.out / runs.CHECKPOINTS / f".shard-{config.shard}-of-{config.shards}"
    if config.resume or config.again:
        mark.unlink(missing_ok=True)
    elif not config.join:
        _require_new(config)
    try:
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch(exist_ok=False)
    except FileExistsError as error:
        raise OutputError(f"run {config.out} has a shard {config.shard}/{config.shards} already") from error
    except OSError as error:
        raise OutputError(f"run {config.out} cannot be written: {error.strerror}") from error
    if config.shard == 0 and not (config.out / runs.CONFIG).exists():
        text = to_toml("server", config.options)
        write_text_atomically(config.out / runs.CONFIG, text)


def _require_new(config: ServerConfig) -> None:
    out = config.out
    if out.exists() and not out.is_dir():
        raise OutputError(f"run {out} is a file: name another place or remove it")
    if (out / runs.VECTORS).exists() or (config.shard == 0 and (out / runs.METRICS).exists()):
        raise OutputError(f"run {out} exists already: name another place or remove it")
    if out.exists() and not (out / runs.CHECKPOINTS).exists() and any(out.iterdir()):
        raise OutputError(f"run {out} exists and is not a run: name another place or remove it")


def serve(config: ServerConfig, ready: Callable[[Daemon], None]) -> dict[str, Any]:
    """Run a shard to its end; `ready` is called once it is bound. Returns facts of the training for `--json`."""
    keep_buffers()
    dataset = Dataset.open(config.dataset, verify=config.verify)
    kernels.warm()
    if config.options.schedule == "minibatch":
        optimizers.warm(config.options)
    now = time.monotonic()
    core = build(config, dataset, now)
    daemon = Daemon(core, config.out, config.bind, config.publish)
    try:
        claim(config)
        daemon.install_signals()
        ready(daemon)
        reason = daemon.serve()
        facts = summary(core, reason)
        try:
            leave(config, dataset, core, daemon, reason, facts)
        except GlovewireError as error:
            daemon.announce("failed", str(error))
            raise
        daemon.announce("finished", reason)
        return facts
    finally:
        daemon.close()


def leave(
    config: ServerConfig, dataset: Dataset, core: Core, daemon: Daemon, reason: str, facts: dict[str, Any]
) -> None:
    """Write the final checkpoint and, on shard 0, the vectors of all shards."""
    if reason.startswith(FAILED):
        raise TrainingDiverged(reason.removeprefix(FAILED))
    daemon.write_now(core.final())
    if config.shard == 0:
        await_shards(config.out, config.shards)
        checkpoint.assemble(config.out, dataset, config.options, config.shards, facts)


def await_shards(run: Path, shards: int) -> None:
    """Wait until every shard has left its final checkpoint in `run`; OutputError naming those that have not."""
    deadline = time.monotonic() + OTHER_SHARDS_S
    while missing := checkpoint.missing(run, "final", shards):
        if time.monotonic() > deadline:
            names = ", ".join(map(str, missing))
            raise OutputError(
                f"shards {names} left no final checkpoint in {run / runs.CHECKPOINTS} within {OTHER_SHARDS_S:.0f} s: "
                "were they told to finish, and do they share this folder?"
            )
        time.sleep(0.05)


def summary(core: Core, reason: str) -> dict[str, Any]:
    """What training brought, as plain values: the facts of the vectors and of `--json`."""
    losses = core.progress.losses
    loss, floor, norm = losses.epoch_means(losses.last_epoch())
    seconds = losses.seconds()
    return {
        "reason": reason,
        "seconds": seconds,
        "entries": losses.entries,
        "entries_per_second": losses.entries / seconds if seconds else 0.0,
        "loss": loss,
        "bias_only_loss": floor,
        "mean_vector_norm": norm,
        "epochs": losses.epoch,
        "servers": core.identity.shards,
        "bytes_sent": core.bytes_from_workers,
        "counters": dict(core.counters),
    }
