"""Define `glovewire server`: read its options, start one shard, print one line when it is ready."""

from contextlib import suppress
from typing import Any

import click

from glovewire.common.cli.command import Command
from glovewire.common.cli.options import Given, note_ignored, takes

from .config import ServerConfig, parse_shard


@click.command(cls=Command)
@click.option("--shard", default="0/1", metavar="K/S", help="This is shard K (from 0) of S.")
@takes(ServerConfig)
def server(given: Given[ServerConfig]) -> dict[str, Any]:
    """Serve one shard of the parameters for DATASET until training is complete or `glovewire finish` ends it.

    DATASET may be a URL, such as s3://bucket/dataset (docs/stores.md).

    With --objective tensors there is no DATASET: workers of your own bring a model and its gradients (docs/dense.md).
    """
    from glovewire.common import log
    from glovewire.common.errors import OutputError
    from glovewire.common.ready import Ready
    from glovewire.common.runtime.signals import signals_exit
    from glovewire.common.storage.artifacts import write_text_atomically

    with signals_exit():
        from .checkpoints.initial_state import saved_options
        from .daemon import Daemon
        from .service import serve
        from .stored_checkpoints import bring

    shard, shards = parse_shard(given["shard"])
    log.configure(given["log_level"], f"server {shard}")
    if given["resume"]:
        if given["checkpoints"]:  # they may be in the store alone, and have the options of the run
            bring(given["checkpoints"], given["out"], shard, shards)
        options = saved_options(given["out"], given["objective"], given["epochs"])
        note_ignored(options)
    else:
        options = given.training()
    config = given.config(options=options, shard=shard, shards=shards)

    def ready(daemon: Daemon) -> None:
        line = Ready(daemon.address, daemon.stream_address, shard, shards).format()
        click.echo(line)
        with suppress(OSError, OutputError):  # it is for `glovewire monitor RUN` alone
            (config.out / "logs").mkdir(exist_ok=True)
            write_text_atomically(config.out / "logs" / f"server-{shard}.address", f"{line}\n")

    return serve(config, ready)
