"""`glovewire worker`: reads its options and trains as one worker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from glovewire.common.cli.command import Command, keys_option, prometheus_option


@click.command(cls=Command)
@click.argument("dataset", type=click.Path(path_type=Path))
@click.option(
    "--server",
    "servers",
    multiple=True,
    default=["tcp://127.0.0.1:5555"],
    metavar="tcp://HOST:PORT",
    help="Address of a server; repeat it for every shard, in order.",
)
@click.option("--name", default="", show_default="host and process id", help="What the server and the monitor call it.")
@click.option(
    "--timeout",
    "timeout_s",
    default=30.0,
    metavar="SECONDS",
    help="Give up on a server that is silent for so long; one that is still to be started is waited for.",
)
@click.option(
    "--latency",
    default="0ms",
    metavar="TIME",
    help="Simulated time that each push is on its way: 20ms, 20ms..80ms, exp:50ms or pareto:20ms.",
)
@keys_option
@prometheus_option
@click.option("--verify/--no-verify", default=True, help="Compare the dataset's checksums first.")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    help="What is logged on stderr.",
)
def worker(
    dataset: Path,
    servers: tuple[str, ...],
    name: str,
    timeout_s: float,
    latency: str,
    keys: Path | None,
    prometheus: int | None,
    verify: bool,
    log_level: str,
) -> dict[str, Any]:
    """Train the vectors of DATASET with the parameter server at --server, until the run is over."""
    from glovewire.common import log
    from glovewire.common.runtime.signals import signals_exit

    with signals_exit():
        from .config import WorkerConfig
        from .service import work

    config = WorkerConfig(dataset, servers, name, timeout_s, verify, keys, latency, prometheus)
    log.configure(log_level, f"worker {config.full_name}")
    return work(config)
