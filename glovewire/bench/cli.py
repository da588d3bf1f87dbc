"""`glovewire bench`: measure the wire, training and preprocessing. Imports what it measures only when it measures."""

from __future__ import annotations

from typing import Any

import click

from glovewire.common.cli.command import Command
from glovewire.common.cli.options import Given, takes

from ..exits import Interruptible
from .config import DenseBenchConfig, TrainBenchConfig, WireConfig
from .preprocess import command as preprocess


@click.group(cls=Interruptible, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
def bench() -> None:
    """Measure this machine: each figure is a median of repeats that take turns, with its range."""


def _tell(line: str) -> None:
    click.echo(line, err=True)


@click.command("bench-wire", cls=Command)
@takes(WireConfig)
def wire(given: Given[WireConfig]) -> dict[str, Any]:
    """Measure pulls and pushes between a server and a worker over loopback TCP: rows a second and latencies.

    Random rows and contiguous ranges; what was pushed is compared with the table at the end.
    """
    from .wire import bench, table

    result = bench(given.config(), _tell)
    click.echo(table(result))
    return result


@click.command("bench-train", cls=Command)
@takes(TrainBenchConfig)
def train(given: Given[TrainBenchConfig]) -> dict[str, Any]:
    """Measure training on DATASET: entries a second, processor time and memory of each role, bytes an entry."""
    from . import gensim_peer
    from . import train as bench_train

    workers = given["workers"]
    if workers is None:
        workers = 1 if given["store"] == "local" and not given["beside"] and given["peer"] is None else 2
    config = given.config(workers=workers)
    if config.text is not None:
        judges = gensim_peer.Judges(config.similarity, config.analogies)
        compared = gensim_peer.bench(config, config.text, judges, _tell)
        click.echo(gensim_peer.table(compared))
        return compared
    result = bench_train.bench(config, _tell)
    click.echo(bench_train.table(result))
    return result


@click.command("bench-dense", cls=Command)
@takes(DenseBenchConfig)
def dense(given: Given[DenseBenchConfig]) -> dict[str, Any]:
    """Measure updates of a small ConvNet in PyTorch, in step and apart, beside Ray's parameter-server example."""
    from .dense import bench, table

    result = bench(given.config(), _tell)
    click.echo(table(result))
    return result


bench.add_command(dense, "dense")
bench.add_command(wire, "wire")
bench.add_command(train, "train")
bench.add_command(preprocess, "preprocess")
