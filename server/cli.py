"""`glovewire server`: reads its options, starts one shard, prints one line when it is ready."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from glovewire.common.cli.command import Command, keys_option, prometheus_option
from glovewire.common.cli.training_options import tell_overruled, training_flags


@click.command(cls=Command)
@click.argument("dataset", type=click.Path(path_type=Path), required=False)
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, help="Run folder: checkpoints, metrics and vectors."
)
@click.option("--bind", default="tcp://127.0.0.1:5555", help="Where workers connect; port 0 takes a free one.")
@click.option(
    "--publish", default="tcp://127.0.0.1:5556", help="Where losses and events are published, for `glovewire monitor`."
)
@click.option("--shard", default="0/1", metavar="K/S", help="This is shard K (from 0) of S.")
@click.option(
    "--checkpoint-every",
    default=0,
    metavar="EPOCHS",
    help="Checkpoint after so many epochs, of tensors so many updates; 0 is never.",
)
@click.option("--keep-checkpoints", default=3, metavar="N", help="Keep the last N automatic checkpoints; 0 keeps all.")
@click.option(
    "--lease",
    "lease_s",
    default=30.0,
    metavar="SECONDS",
    help="A worker that is silent for so long is lost; its blocks go to others.",
)
@click.option(
    "--workers",
    default=1,
    help="So many will come: minibatches in step (sync, ssp, softsync) begin when they have joined, and a run that is "
    "complete waits a lease for those who have not.",
)
@keys_option
@prometheus_option
@click.option(
    "--insecure", is_flag=True, help="Without --keys, allow addresses that other machines can reach: everybody may in."
)
@click.option("--resume", is_flag=True, help="Go on from the newest checkpoint in the run folder, with its options.")
@click.option(
    "--recover",
    is_flag=True,
    help="For a shard that is started again whenever it dies: take part in what RUN holds, from the newest checkpoint.",
)
@click.option("--init", type=click.Path(path_type=Path), help="Run folder whose vectors words begin with.")
@click.option("--verify/--no-verify", default=True, help="Compare the dataset's checksums first.")
@click.option("--join", is_flag=True, hidden=True, help="The run folder was prepared by whoever started this shard.")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    help="What is logged on stderr.",
)
@training_flags
def server(
    dataset: Path | None,
    out: Path,
    bind: str,
    publish: str,
    shard: str,
    checkpoint_every: int,
    keep_checkpoints: int,
    lease_s: float,
    keys: Path | None,
    prometheus: int | None,
    workers: int,
    insecure: bool,
    resume: bool,
    recover: bool,
    init: Path | None,
    verify: bool,
    join: bool,
    log_level: str,
    **training: Any,
) -> dict[str, Any]:
    """Serve one shard of the parameters for DATASET until training is complete or `glovewire finish` ends it.

    With --objective tensors there is no DATASET: workers of your own bring a model and its gradients (docs/dense.md).
    """
    from glovewire.common import log
    from glovewire.common.model.options import TrainingOptions
    from glovewire.common.runtime.signals import signals_exit

    with signals_exit():
        from .checkpoints.initial_state import saved_options
        from .config import ServerConfig, parse_shard
        from .daemon import Daemon
        from .service import serve

    number, shards = parse_shard(shard)
    if resume:
        options = saved_options(out, training["objective"])
        tell_overruled(options)
    else:
        options = TrainingOptions.from_flags(**training)
    config = ServerConfig(
        dataset,
        out,
        options,
        bind,
        publish,
        number,
        shards,
        checkpoint_every,
        keep_checkpoints,
        lease_s,
        insecure,
        join,
        verify,
        resume,
        init,
        recover,
        keys,
        workers,
        prometheus,
    )
    log.configure(log_level, f"server {number}")

    def ready(daemon: Daemon) -> None:
        click.echo(f"ready {daemon.address} publish {daemon.stream_address} shard {number}/{shards}")

    return serve(config, ready)
