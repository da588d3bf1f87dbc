"""Implement `glovewire train`: a whole training on this machine in one command."""

import os
from typing import Any

import click
from click.core import ParameterSource

from glovewire.common.cli.command import Command
from glovewire.common.cli.options import Given, note_ignored, takes
from glovewire.common.errors import UsageError

from ..launch.config import LocalConfig


@click.command(cls=Command)
@takes(LocalConfig)
def train(given: Given[LocalConfig]) -> dict[str, Any]:
    """Train the word vectors of DATASET with server shards, workers and a monitor on this machine."""
    from glovewire.common.storage import run_folder

    from ..launch import local

    workers = given["workers"]
    if workers is None:
        workers = 1 if given["store"] == "local" else len(os.sched_getaffinity(0))
    if not given["resume"]:
        config = given.config(workers=workers)
    else:
        from glovewire.server.checkpoints.initial_state import saved_options

        _refuse_init()
        given.training()  # refuses flags that are wrong, though the run keeps its own options
        config = given.config(workers=workers, init=None, options=saved_options(given["out"], given["objective"]))
        note_ignored(config.options)
        if (done := run_folder.completed_facts(config.out)) is not None:
            click.echo(f"{config.out} is complete: nothing is left to train")
            return {**done, "workers": 0, "run": str(config.out)}
    if config.launcher == "ray":
        from ..launch import ray

        facts = ray.train(config)
    else:
        facts = local.train(config)
    epochs = "1 epoch" if facts["epochs"] == 1 else f"{facts['epochs']} epochs"
    if config.resume and not facts["seconds"]:  # all of it was in the checkpoint
        click.echo(f"nothing was left to train; vectors, metrics and loss.png of {epochs} are in {config.out}")
        return facts
    trained = f"continued to the end of {epochs}" if config.resume else f"trained {epochs}"
    click.echo(
        f"{trained} in {facts['seconds']:.1f} s: {facts['entries_per_second'] / 1e6:.2f} M "
        f"entries/s\nloss {facts['loss']:.5f}; bias-only loss {facts['bias_only_loss']:.5f}; "
        f"mean vector norm {facts['mean_vector_norm']:.3f}\nvectors, metrics and loss.png are in {config.out}"
    )
    return facts


def _refuse_init() -> None:
    """Raise UsageError for --init on the command line of a resumed run; RUN/config.toml may contain it."""
    if click.get_current_context().get_parameter_source("init") is ParameterSource.COMMANDLINE:
        raise UsageError("--resume continues from a checkpoint: it cannot be given with --init")
