"""Define `glovewire worker`: read its options and train as one worker."""

from typing import Any

import click

from glovewire.common.cli.command import Command
from glovewire.common.cli.options import Given, takes

from .config import WorkerConfig


@click.command(cls=Command)
@takes(WorkerConfig)
def worker(given: Given[WorkerConfig]) -> dict[str, Any]:
    """Train with the parameter server at --server until the run is over.

    Without DATASET, the worker downloads those parts of the run's dataset that it trains.

    DATASET may be a URL, such as s3://bucket/dataset (docs/stores.md).
    """
    from glovewire.common import log
    from glovewire.common.runtime.signals import signals_exit

    with signals_exit():
        from .service import work

    config = given.config()
    log.configure(config.log_level, f"worker {config.full_name}")
    return work(config)
