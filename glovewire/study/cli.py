"""Implement `glovewire study`: each command compares ways to train and writes a table and plots."""

from functools import partial
from pathlib import Path
from typing import Any

import click

from glovewire.common.cli.command import Command
from glovewire.common.cli.options import Given, takes

from ..exits import Interruptible
from .config import SpeedupConfig
from .trainings import StalenessConfig

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
        "subwords": 0.0,
    },
    "tensors": {"consistency": "async", "optimizer": "sgd", "learning_rate": 1.0, "epochs": 60, "batch_size": 32},
}
"""Defaults of `study staleness`."""
COMPARED = ("batch_size", "consistency", "staleness")
"""Training options that `study staleness` does not offer, because it sets them from --batch, --mode and --policy."""


@click.group(cls=Interruptible)
def study() -> None:
    """Compare ways to train: full trainings, one table, plots."""


@study.command("study-speedup", cls=Command)
@takes(SpeedupConfig)
def speedup(given: Given[SpeedupConfig]) -> dict[str, Any]:
    """Plot loss against time and entries: a plain baseline, shared memory, the server with 1 to N workers.

    The baseline is `train --preset baseline`: one process that draws random batches of 64 entries and takes plain SGD
    steps at a rate of 0.01.

    Leaves REPORT.md, report.json, speedup.png, speedup.svg and each variant's run folder in OUT.
    """
    from .speedup import run

    config = given.config(options=given.training(subwords=0.0))  # which come after training
    result, text = run(config, lambda line: click.echo(line, err=True))
    click.echo(text)
    return result


@study.command("study-staleness", cls=Command)
@click.argument("dataset", type=click.Path(path_type=Path))
@takes(StalenessConfig)
@click.option(
    "--virtual/--real",
    default=False,
    help="Train in virtual time, with the same result on any machine, or with real processes over TCP.",
)
def staleness(given: Given[StalenessConfig]) -> dict[str, Any]:
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

    from .emulation import emulate
    from .simulation import Simulation
    from .staleness import REAL, REPORT, VIRTUAL, run
    from .workloads import GloveProblem, problem

    trained = problem(given["dataset"])
    objective = "glove" if isinstance(trained, GloveProblem) else "tensors"
    preset = click.get_current_context().default_map or {}
    usual = {**STALENESS[objective], **{name: preset[name] for name in COMPARED if name in preset}}
    options = given.training(objective=objective, **usual)
    if options.objective != objective:
        raise UsageError(f"{trained.name}: it cannot be trained with --objective {options.objective}")
    config = given.config(options=options, batch_sizes=given["batch_sizes"] or (options.batch_size,))
    way = (
        (lambda options, conditions, _: Simulation(trained, options, conditions).trace())
        if given["virtual"]
        else partial(emulate, trained)
    )
    clock = VIRTUAL if given["virtual"] else REAL
    result = run(config, way, trained, clock, lambda line: click.echo(line, err=True))
    click.echo((config.out / REPORT).read_text(encoding="utf-8"))
    return result


staleness.params = [flag for flag in staleness.params if flag.name not in COMPARED]
