"""Define `glovewire bench`; each command imports the code it measures only when it runs."""

from collections.abc import Callable
from functools import partial
from typing import Any

import click

from glovewire.common.cli.command import Command
from glovewire.common.cli.options import Given, takes

from ..exits import Interruptible
from .config import DenseBenchConfig, PreprocessBenchConfig, ScaleBenchConfig, TrainBenchConfig, WireConfig


@click.group(cls=Interruptible)
def bench() -> None:
    """Measure this machine. Every figure is a median with its range, over repeats that take turns."""


_report = partial(click.echo, err=True)


def _shown(result: dict[str, Any], table: Callable[[dict[str, Any]], str]) -> dict[str, Any]:
    """Print a result as text, and return it."""
    click.echo(table(result))
    return result


@bench.command("bench-wire", cls=Command)
@takes(WireConfig)
def wire(given: Given[WireConfig]) -> dict[str, Any]:
    """Measure pulls and pushes between a server and a worker over loopback TCP: rows per second and latencies.

    Measures random rows and contiguous ranges, and compares the pushed rows with the table at the end.
    """
    from .wire import bench, table

    return _shown(bench(given.config(), _report), table)


@bench.command("bench-train", cls=Command)
@takes(TrainBenchConfig)
def train(given: Given[TrainBenchConfig]) -> dict[str, Any]:
    """Measure training on DATASET: entries per second, processor time and memory of each role, bytes per entry."""
    from .train import bench, table

    workers = given["workers"]
    if workers is None:
        workers = 1 if given["store"] == "local" and not given["beside"] else 2
    options = given.training(subwords=0.0)  # which come after training
    return _shown(bench(given.config(workers=workers, options=options), _report), table)


@bench.command("bench-scale", cls=Command)
@takes(ScaleBenchConfig)
def scale(given: Given[ScaleBenchConfig]) -> dict[str, Any]:
    """Measure how the cost of training grows with the vocabulary: one server and its workers over loopback TCP.

    CORPUS is text as `glovewire preprocess` takes it, or a dataset, whose matrix is then reduced to the most frequent
    words. Trainings have 4 epochs, unless --epochs is given.
    """
    from .scale import bench, table

    options = given.training(epochs=4, subwords=0.0)  # subwords come after training
    return _shown(bench(given.config(options=options), _report), table)


@bench.command("bench-dense", cls=Command)
@takes(DenseBenchConfig)
def dense(given: Given[DenseBenchConfig]) -> dict[str, Any]:
    """Measure updates of a small ConvNet in PyTorch, synchronous and asynchronous."""
    from .dense import bench, table

    return _shown(bench(given.config(), _report), table)


@bench.command("bench-preprocess", cls=Command)
@takes(PreprocessBenchConfig)
def preprocess(given: Given[PreprocessBenchConfig]) -> dict[str, Any]:
    """Measure preprocessing of CORPUS, a file of texts as `glovewire preprocess` takes it."""
    from .preprocess import bench, table

    return _shown(bench(given.config()), table)
