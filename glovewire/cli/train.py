"""Implement `glovewire train`: a whole training on this machine in one command."""

import os
from dataclasses import replace
from typing import Any

import click
from click.core import ParameterSource

from glovewire.common.addresses import url_of
from glovewire.common.cli.command import Command
from glovewire.common.cli.options import Given, note_ignored, takes
from glovewire.common.errors import UsageError
from glovewire.common.text import amount, printable, shown_loss

from ..launch.config import LocalConfig


@click.command(cls=Command)
@takes(LocalConfig)
def train(given: Given[LocalConfig]) -> dict[str, Any]:
    """Train the word vectors of DATASET with server shards, workers and a monitor on this machine.

    DATASET and RUN may be URLs, such as s3://bucket/run (docs/stores.md). With --resume and more --epochs
    than before, a finished run is trained further.
    """
    from glovewire.common.storage import stores

    workers = given["workers"]
    if workers is None:
        workers = 1 if given["store"] == "local" else len(os.sched_getaffinity(0))
    config = _resumed(given, workers) if given["resume"] else given.config(workers=workers)
    url = url_of(config.out)
    with stores.uploaded(config.out, "run", resume=config.resume, keep=True) as out:
        facts = _trained(replace(config, out=out))
    if url:
        click.echo(f"the run is uploaded to {url}")
    return {**facts, "url": url} if url else facts


def _trained(config: LocalConfig) -> dict[str, Any]:
    """Train, print a summary, and return the facts of the run."""
    from glovewire.common.storage import run_folder

    from ..launch import local

    if config.resume:
        done = run_folder.completed_facts(config.out)
        if done is not None and config.options.epochs <= done["epochs"]:
            click.echo(f"{config.out} is complete: nothing is left to train (--epochs trains it further)")
            return {**done, "workers": 0, "run": str(config.out)}
    if config.launcher == "ray":
        from ..launch import ray

        facts = ray.train(config)
    else:
        facts = local.train(config)
    for line in _summary(config, facts):
        click.echo(printable(line))
    return facts


def _resumed(given: Given[LocalConfig], workers: int) -> LocalConfig:
    """Return the options of a resumed run: those that it was started with, possibly with more epochs."""
    from glovewire.common.storage import stores
    from glovewire.server.checkpoints.initial_state import require_same_dataset, saved_options

    run, source = stores.staged(given["out"]), click.get_current_context().get_parameter_source
    if source("init") is ParameterSource.COMMANDLINE:  # RUN/config.toml may contain it
        raise UsageError("--resume continues from a checkpoint: it cannot be given with --init")
    given.training()  # rejects invalid flags, although the run keeps its own options
    epochs = given["epochs"] if source("epochs") is ParameterSource.COMMANDLINE else None
    options = saved_options(run, given["objective"], epochs)
    require_same_dataset(run, given["dataset"])
    note_ignored(options)
    return given.config(workers=workers, init=None, options=options)


def _summary(config: LocalConfig, facts: dict[str, Any]) -> list[str]:
    """Return the lines that summarise the result of a training."""
    epochs = "1 epoch" if facts["epochs"] == 1 else f"{facts['epochs']} epochs"
    if config.resume and not facts["seconds"]:  # the checkpoint was already complete
        return [f"nothing was left to train; vectors, metrics and loss.png of {epochs} are in {config.out}"]
    trained = f"continued to the end of {epochs}" if config.resume else f"trained {epochs}"
    stopped = facts["epochs"] < config.options.epochs and config.patience
    early = f" (stopped early: no better score in {config.patience} epochs)" if stopped else ""
    return [
        f"{trained} in {facts['seconds']:.1f} s{early}: {amount(facts['entries_per_second'])} entries/s",
        f"loss {shown_loss(facts['loss'])}; bias-only loss {shown_loss(facts['bias_only_loss'])}; "
        f"mean vector norm {facts['mean_vector_norm']:.3f}",
        *_scores(facts),
        f"vectors, metrics and loss.png are in {config.out}",
    ]


def _scores(facts: dict[str, Any]) -> list[str]:
    """Return a line with the scores of the vectors written, and the best epoch."""
    found = {name: percent for name, percent in facts.get("quality", {}).items() if percent is not None}
    if not found:
        return []
    scores = ", ".join(f"{name} {percent:.1f}" for name, percent in found.items())
    best = facts.get("best_epoch")
    kept = ", which is kept" if facts.get("best_epoch_is_kept") else ""
    return [f"scores: {scores}" + (f"; the best epoch was {best}{kept}" if best is not None else "")]
