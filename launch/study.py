"""`glovewire study`: experiments that compare ways to train, each from one command to a table and a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from common.settings import Command
from common.training_flags import training_flags


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
def study() -> None:
    """Compare ways to train: full trainings, one table, one picture."""


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
    """Loss against time and against entries: the seeds' baseline, shared memory, and the server with 1 to N workers.

    Leaves REPORT.md, report.json, speedup.png, speedup.svg and each variant's run folder in OUT.
    """
    from common.options import TrainingOptions

    from .study_speedup import SpeedupConfig, run

    options = TrainingOptions.from_flags(**training)
    config = SpeedupConfig(dataset, out, options, workers, servers, seconds_limit)
    result, text = run(config, lambda line: click.echo(line, err=True))
    click.echo(text)
    return result


study.add_command(speedup, "speedup")
