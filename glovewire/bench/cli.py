"""Define `glovewire bench`, which imports what it measures only when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from glovewire.common.cli.command import Command
from glovewire.common.cli.training_options import training_flags

from ..exits import Interruptible
from .preprocess import command as preprocess


@click.group(cls=Interruptible, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
def bench() -> None:
    """Measure this machine: every figure is a median with its range, over repeats in turns."""


def _report(line: str) -> None:
    click.echo(line, err=True)


@click.command("bench-wire", cls=Command)
@click.option("--rows", default=32_768, help="Rows of the table.")
@click.option("--dim", default=256, help="Numbers in a vector; a row also holds its bias and the optimizer's state.")
@click.option("--size", "sizes", multiple=True, default=(1, 32, 256, 1024, 4096), help="Rows in a message.")
@click.option("--window", "windows", multiple=True, default=(1, 8), help="Messages in flight.")
@click.option("--repeats", default=5, help="How often everything is measured.")
@click.option("--seconds", default=0.15, help="For one figure of one repeat.")
@click.option("--seed", default=0, help="Of the rows that are drawn.")
def wire(**options: Any) -> dict[str, Any]:
    """Measure pulls and pushes between a server and a worker over loopback TCP: rows per second and latencies.

    Measures random rows and contiguous ranges, and compares the pushed rows with the table at the end.
    """
    from .wire import WireConfig, bench, table

    result = bench(WireConfig(**options), _report)
    click.echo(table(result))
    return result


@click.command("bench-train", cls=Command)
@click.argument("dataset", type=click.Path(path_type=Path))
@click.option(
    "--workers",
    default=None,
    type=int,
    show_default="2, 1 for --store local by itself",
    help="Worker processes; threads of the peer.",
)
@click.option("--servers", default=1, help="Server shards.")
@click.option(
    "--store", type=click.Choice(["server", "shared", "local"]), default="server", help="Where parameters live."
)
@click.option(
    "--beside",
    multiple=True,
    type=click.Choice(["server", "shared", "local"]),
    help="Another store to compare with; may be repeated.",
)
@click.option("--repeats", default=5, help="Trainings of each store; they and the peer's take turns.")
@click.option("--peer", type=click.Path(path_type=Path), help="A built Stanford GloVe: its folder, or its build/.")
@click.option("--peer-epochs", default=1, help="Epochs of each of the peer's trainings.")
@training_flags
def train(
    dataset: Path,
    workers: int | None,
    servers: int,
    store: str,
    beside: tuple[str, ...],
    repeats: int,
    peer: Path | None,
    peer_epochs: int,
    **training: Any,
) -> dict[str, Any]:
    """Measure training on DATASET: entries per second, processor time and memory of each role, bytes per entry."""
    from glovewire.common.model.options import TrainingOptions

    from .train import TrainBenchConfig, bench, table

    if workers is None:
        workers = 1 if store == "local" and not beside and peer is None else 2
    options = TrainingOptions.of_vectors(**training)
    config = TrainBenchConfig(dataset, options, store, beside, workers, servers, repeats, peer, peer_epochs)
    result = bench(config, _report)
    click.echo(table(result))
    return result


@click.command("bench-dense", cls=Command)
@click.option("--workers", default=2, help="Worker processes.")
@click.option("--batch", default=128, help="Images of one gradient.")
@click.option("--seconds", default=5.0, help="For one figure of one repeat.")
@click.option("--repeats", default=3, help="How often everything is measured.")
@click.option("--shards", default=1, help="Server shards.")
def dense(**options: Any) -> dict[str, Any]:
    """Measure updates of a small ConvNet in PyTorch, synchronous and asynchronous."""
    from .dense import DenseBenchConfig, bench, table

    result = bench(DenseBenchConfig(**options), _report)
    click.echo(table(result))
    return result


bench.add_command(dense, "dense")
bench.add_command(wire, "wire")
bench.add_command(train, "train")
bench.add_command(preprocess, "preprocess")
