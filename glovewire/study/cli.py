"""`glovewire study`: experiments that compare ways to train, each one command that leaves a table and plots."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from glovewire.common.cli.command import Command
from glovewire.common.cli.training_options import training_flags

from ..exits import Interruptible

STALENESS: dict[str, dict[str, Any]] = {
    "glove": {
        "schedule": "minibatch",
        "consistency": "async",
        "optimizer": "sgd",
        "mean_gradient": True,
        "learning_rate": 200.0,
        "final_rate": 1.0,
        "dim": 32,
        "tied": True,
        "epochs": 3,
        "x_max": 10.0,
        "alpha": 0.75,
        "batch_size": 2048,
    },
    "tensors": {"consistency": "async", "optimizer": "sgd", "learning_rate": 1.0, "epochs": 60, "batch_size": 32},
}
"""Defaults of `study staleness`."""
COMPARED = ("batch_size", "consistency", "staleness")
"""Training options that `study staleness` sets itself, from --batch, --mode and --policy."""


@click.group(cls=Interruptible, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
def study() -> None:
    """Compare ways to train: full trainings, one table, plots."""


@click.command("study-speedup", cls=Command)
@click.argument("dataset", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder to make; one run folder a variant.")
@click.option("--workers", default=2, help="The server is tried with 1 to so many workers, shared memory with all.")
@click.option("--servers", default=1, help="Server shards.")
@click.option(
    "--seconds-limit",
    default=120.0,
    metavar="SECONDS",
    help="Stop the seeds' baseline after so long; at its pace an epoch takes minutes.",
)
@training_flags
def speedup(
    dataset: Path, out: Path, workers: int, servers: int, seconds_limit: float, **training: Any
) -> dict[str, Any]:
    """Plot loss against time and entries: the seeds' baseline, shared memory, the server with 1 to N workers.

    Leaves REPORT.md, report.json, speedup.png, speedup.svg and each variant's run folder in OUT.
    """
    from glovewire.common.model.options import TrainingOptions

    from .speedup import SpeedupConfig, run

    options = TrainingOptions.of_vectors(**training)
    config = SpeedupConfig(dataset, out, options, workers, servers, seconds_limit)
    result, text = run(config, lambda line: click.echo(line, err=True))
    click.echo(text)
    return result


@click.command("study-staleness", cls=Command)
@click.argument("dataset", type=click.Path(path_type=Path))
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    required=True,
    help="Folder; what was done there in the same way is not done again.",
)
@click.option("--workers", type=int, multiple=True, default=[16], help="Worker processes; repeat for more settings.")
@click.option(
    "--batch",
    "batches",
    type=int,
    multiple=True,
    show_default="2048 entries, or 32 images",
    help="Examples in a batch; repeat for more settings.",
)
@click.option(
    "--latency",
    multiple=True,
    default=["pareto:100ms"],
    metavar="TIME",
    help="As of `worker`; repeat for more.",
)
@click.option("--mode", multiple=True, default=["sync"], metavar="MODE", help="Modes to compare with; repeat for more.")
@click.option(
    "--policy",
    multiple=True,
    default=["inverse", "hyperbolic:8", "gap", "dc:0.01"],
    metavar="POLICY",
    help="Staleness policies; repeat for more.",
)
@click.option(
    "--share",
    type=float,
    multiple=True,
    default=[1.0, 0.75, 0.5, 0.25, 0.125],
    help="Fractions of the learning rate at which every method is tried.",
)
@click.option("--seeds", default=3, help="Runs of each method at its best rate.")
@click.option("--seconds", default=15.0, help="A run ends after so long if its entries have not come before.")
@click.option("--goal", default=0.0, show_default="what async has after 2/3 of its entries", help="Loss to be reached.")
@click.option(
    "--virtual/--real",
    default=False,
    help="In virtual time, the same on any machine, or with real processes over TCP.",
)
@training_flags
@click.pass_context
def staleness(
    ctx: click.Context,
    /,
    dataset: Path,
    out: Path,
    workers: tuple[int, ...],
    batches: tuple[int, ...],
    latency: tuple[str, ...],
    mode: tuple[str, ...],
    policy: tuple[str, ...],
    share: tuple[float, ...],
    seeds: int,
    seconds: float,
    goal: float,
    virtual: bool,
    **training: Any,
) -> dict[str, Any]:
    """Compare synchronous, asynchronous and staleness-aware minibatch training under simulated latency.

    DATASET is a folder made by `preprocess`, or `digits` (images that scikit-learn carries) or a folder with MNIST's
    files, which train a small dense network instead of word vectors.

    Every method trains at each of a few rates, then with more seeds at its best rate. The plan and its estimated
    duration are printed first; an interrupted study continues where it stopped. Leaves REPORT.md, report.json, plots
    and each run in OUT.

    Defaults: plain SGD on mean gradients at a constant rate. Word vectors: 32 tied dimensions, 3 epochs, rate 200.
    Images: 64 hidden units, 60 epochs, rate 1.
    """
    from glovewire.common.errors import UsageError
    from glovewire.common.model.options import TrainingOptions

    from . import emulation, simulation
    from .staleness import REPORT, Subject, run
    from .trainings import StalenessConfig
    from .workloads import GloveProblem, problem

    trained = problem(dataset)
    objective = "glove" if isinstance(trained, GloveProblem) else "tensors"
    given = {key: value for key, value in training.items() if _is_given(ctx, key)}
    preset = {name: value for name, value in (ctx.default_map or {}).items() if name in COMPARED}
    usual = {**STALENESS[objective], **preset}
    options = TrainingOptions.from_flags(**{**training, "objective": objective, **usual, **given})
    if options.objective != objective:
        raise UsageError(f"{trained.name}: it cannot be trained with --objective {options.objective}")
    batches = batches or (options.batch_size,)
    config = StalenessConfig(out, options, workers, batches, latency, policy, mode, share, seeds, seconds, goal)
    real = partial(emulation.emulate, emulation.workload(trained))
    way = (lambda options, conditions, _: simulation.simulate(trained, options, conditions)) if virtual else real
    result = run(config, way, Subject(trained.name, trained.unit, virtual), lambda line: click.echo(line, err=True))
    click.echo((out / REPORT).read_text(encoding="utf-8"))
    return result


def _is_given(ctx: click.Context, name: str) -> bool:
    """Return whether an option was given by flag, environment or file."""
    return ctx.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT


staleness.params = [flag for flag in staleness.params if flag.name not in COMPARED]
study.add_command(speedup, "speedup")
study.add_command(staleness, "staleness")
