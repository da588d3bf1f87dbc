"""`glovewire train`: a whole training on this machine in one command."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from glovewire.common.cli.command import Command, keys_option
from glovewire.common.cli.training_options import tell_overruled, training_flags
from glovewire.common.errors import UsageError, require


@click.command(cls=Command)
@click.argument("dataset", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Run folder; must not exist yet.")
@click.option("--workers", default=None, type=int, show_default="one per processor core", help="Worker processes.")
@click.option("--servers", default=1, help="Server shards.")
@click.option(
    "--store",
    type=click.Choice(["server", "shared", "local"]),
    default="server",
    help="Where parameters live: server shards, memory that processes share (Hogwild), or one process's own.",
)
@click.option(
    "--launcher", type=click.Choice(["local", "ray"]), default="local", help="Who starts the processes, and where."
)
@click.option("--address", metavar="ADDRESS", help="Of a Ray cluster, such as auto; without it Ray runs here alone.")
@click.option("--checkpoint-every", default=0, metavar="EPOCHS", help="Checkpoint after so many epochs; 0 is never.")
@click.option("--keep-checkpoints", default=3, metavar="N", help="Keep the last N automatic checkpoints; 0 keeps all.")
@click.option("--resume", is_flag=True, help="Go on from the newest checkpoint in the run folder, with its options.")
@click.option("--init", type=click.Path(path_type=Path), help="Run folder whose vectors words begin with.")
@click.option(
    "--watch",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Similarity set to score the vectors on after each epoch; repeat for more.",
)
@keys_option
@click.option(
    "--latency",
    multiple=True,
    metavar="TIME",
    help="Simulated time that pushes are on their way: 20ms, 20ms..80ms, exp:50ms or pareto:20ms; the first is that of "
    "the first worker, and so on, the last one of all others.",
)
@click.option("--progress/--quiet", default=True, help="Show progress on stderr.")
@training_flags
def train(
    dataset: Path,
    out: Path,
    workers: int | None,
    servers: int,
    store: str,
    launcher: str,
    address: str | None,
    checkpoint_every: int,
    keep_checkpoints: int,
    resume: bool,
    init: Path | None,
    watch: tuple[Path, ...],
    latency: tuple[str, ...],
    keys: Path | None,
    progress: bool,
    **training: Any,
) -> dict[str, Any]:
    """Train the word vectors of DATASET with server shards, workers and a monitor on this machine."""
    from glovewire.common.model.options import TrainingOptions
    from glovewire.common.storage import run_folder as run

    from ..launch import local

    options = TrainingOptions.of_vectors(**training)
    if resume:
        from glovewire.server.checkpoints.initial_state import saved_options

        _refuse_init()
        options = saved_options(out, training["objective"])
        tell_overruled(options)
        init = None
        if (done := run.completed_facts(out)) is not None:
            click.echo(f"{out} is complete: nothing is left to train")
            return {**done, "workers": 0, "run": str(out)}
    if workers is None:
        workers = 1 if store == "local" else len(os.sched_getaffinity(0))
    config = local.LocalConfig(
        dataset,
        out,
        options,
        workers,
        servers,
        store,
        checkpoint_every,
        keep_checkpoints,
        progress,
        resume,
        init,
        watch,
        keys,
        latency,
    )
    require(_misfits(launcher, address, store, watch))
    if launcher == "ray":
        from ..launch import ray

        facts = ray.train(config, address)
    else:
        facts = local.train(config)
    epochs = "1 epoch" if facts["epochs"] == 1 else f"{facts['epochs']} epochs"
    if resume and not facts["seconds"]:  # all of it was in the checkpoint
        click.echo(f"nothing was left to train; vectors, metrics and loss.png of {epochs} are in {out}")
        return facts
    trained = f"went on to the end of {epochs}" if resume else f"trained {epochs}"
    click.echo(
        f"{trained} in {facts['seconds']:.1f} s: {facts['entries_per_second'] / 1e6:.2f} M "
        f"entries/s\nloss {facts['loss']:.5f}; with the vectors at zero {facts['bias_only_loss']:.5f}; "
        f"mean vector norm {facts['mean_vector_norm']:.3f}\nvectors, metrics and loss.png are in {out}"
    )
    return facts


def _refuse_init() -> None:
    """A resumed run has begun already; a RUN/config.toml that tells of its beginning may be given, though."""
    if click.get_current_context().get_parameter_source("init") is ParameterSource.COMMANDLINE:
        raise UsageError("--resume goes on from a checkpoint: it cannot be given with --init")


def _misfits(launcher: str, address: str | None, store: str, watch: tuple[Path, ...]) -> list[str]:
    """What cannot be had together."""
    if launcher == "local":
        return ["--address is for --launcher ray"] if address else []
    problems = [f"--launcher ray starts servers: it goes with --store server, not {store}"] if store != "server" else []
    return problems + (["--watch needs --launcher local"] if watch else [])
