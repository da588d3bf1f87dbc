"""Define `glovewire plan`: predict epoch time, bottleneck and number of servers for a cluster, without training.

`model` contains the simulation; this module gets its parameters from the options and from `kernel_rate`.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from glovewire.common.cli.command import Command
from glovewire.common.cli.options import Given, takes

from ..vectors.show import size
from .config import WORDS, PlanConfig, bytes_per_second

if TYPE_CHECKING:
    from .model import Cluster, Forecast

SERVED_PER_S = 1.5e9
"""Bytes per second that a shard serves on one core, measured by `glovewire bench wire` with 1,024 rows per message."""
BUFFER_BYTES = 4 << 20
"""Unacknowledged bytes that Linux allows a TCP sender by default (net.ipv4.tcp_wmem)."""
LIMITS = {
    "worker": "computation: add workers",
    "worker link, in": "the workers' inbound links: add workers or use faster links",
    "worker link, out": "the workers' outbound links: add workers or use faster links",
    "server": "copying in the shards: add servers",
    "server link, in": "the shards' inbound links: add servers or use faster links",
    "server link, out": "the shards' outbound links: add servers or use faster links",
    "rounds": "waiting for rows that other workers train: use fewer workers, or a network with a shorter round trip",
}
WITH_ENOUGH_SERVERS = {
    "server": "copying in the shards, though more shards would gain little",
    "server link, in": "the shards' inbound links: use faster links",
    "server link, out": "the shards' outbound links: use faster links",
}


@click.command("plan", cls=Command)
@takes(PlanConfig)
def plan(given: Given[PlanConfig]) -> dict[str, Any]:
    """Predict how long an epoch takes on a cluster, how many servers it needs, and what limits it.

    The block schedule is simulated in virtual time; docs/scaling.md explains how and compares it with measurements.
    """
    from glovewire.common.model.options import TrainingOptions
    from glovewire.common.model.row_layout import RowLayout
    from glovewire.common.storage.dataset import Dataset
    from glovewire.preprocess.counts.arrangement import default_partitions

    from .kernel_rate import measured_rate
    from .model import Cluster, forecast, partitions_advised, servers_needed
    from .work import counted, estimated, zipf_counts

    config = given.config()
    names = ("dim", "tied", "epochs", "local_epochs")
    options = TrainingOptions.from_flags(**{name: getattr(config, name) for name in names})
    opened = None if config.dataset is None else Dataset.open(config.dataset, verify=False)
    if opened is not None:
        entries, counts, usual = float(opened.total_entries), opened.counts, opened.layout.partitions
    else:
        assert config.entries is not None
        entries, counts = config.entries, zipf_counts(config.words or WORDS, config.entries)
        usual = default_partitions(counts)
    partitions = usual if config.partitions is None else config.partitions
    config = dataclasses.replace(
        config, dataset=None, words=len(counts), entries=entries, partitions=partitions
    )  # which checks them
    estimate = partial(estimated, counts, entries)
    work = counted(opened) if opened is not None and partitions == usual else estimate(partitions)
    if not config.kernel_rate:
        _tell("measuring how fast this machine trains")
    link = bytes_per_second(config.bandwidth)
    rate = config.kernel_rate or measured_rate(options, opened)
    cluster = Cluster(
        work, RowLayout.of(options).width * options.wire_bytes, config.workers, config.servers or 1, rate, link,
        SERVED_PER_S, config.round_trip / 1e3, options.epochs, options.local_epochs,
    )  # fmt: skip
    _tell(f"simulating an epoch of {work.partitions:,} strips with different numbers of servers")
    needed = servers_needed(cluster)
    cluster = dataclasses.replace(cluster, servers=config.servers or needed)
    found = forecast(cluster)
    _tell("simulating other numbers of partitions")
    advised = partitions_advised(cluster, estimate)
    for line in _told(cluster, found, needed, config.epochs):
        click.echo(line)
    if advised != cluster.work.partitions:
        shorter = forecast(dataclasses.replace(cluster, work=estimate(advised))).seconds
        click.echo(f"better      preprocess --partitions {advised}: {_figure(shorter)} s an epoch")
    in_flight = link * cluster.round_trip_s
    if in_flight > BUFFER_BYTES:
        click.echo(
            f"buffers     such a link holds {in_flight / 1e6:.0f} MB in flight: raise net.ipv4.tcp_wmem and tcp_rmem, "
            f"because {BUFFER_BYTES >> 20} MiB limit it to {BUFFER_BYTES / cluster.round_trip_s / 1e6:.0f} MB/s"
        )
    return {
        "epoch_seconds": found.seconds,
        "training_seconds": found.seconds * config.epochs,
        "entries_per_second": cluster.entries / found.seconds,
        "servers": cluster.servers,
        "servers_needed": needed,
        "partitions_advised": advised,
        "bottleneck": found.bottleneck,
        "busy": found.busy,
        "bytes_pulled": found.bytes_pulled,
        "bytes_pushed": found.bytes_pushed,
        "kernel_rate": cluster.entries_per_second,
        "bytes_in_flight": in_flight,
    }


def _tell(what: str) -> None:
    """Report on stderr what is being done, because it may take several seconds."""
    click.echo(f"{what} ...", err=True)


def _figure(value: float) -> str:
    """Format with three significant digits, and from 1,000 on as a whole number."""
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def _told(cluster: Cluster, found: Forecast, needed: int, epochs: int) -> list[str]:
    busy = ", ".join(f"{kind} {share:.0%}" for kind, share in sorted(found.busy.items(), key=lambda kv: -kv[1]))
    an_entry = found.bytes_pushed / cluster.entries
    limits = LIMITS | (WITH_ENOUGH_SERVERS if cluster.servers >= needed else {})
    return [
        f"an epoch    {_figure(found.seconds)} s: {_figure(cluster.entries / found.seconds / 1e6)} M entries/s; "
        f"{epochs} epochs {_figure(found.seconds * epochs)} s",
        f"servers     {cluster.servers}; more than {needed} would not help",
        f"limited by  {limits[found.bottleneck]}",
        f"busy        {busy}",
        f"an epoch    pulls {size(int(found.bytes_pulled))} and pushes {size(int(found.bytes_pushed))} "
        f"({an_entry:.1f} bytes an entry)",
        f"assumed     {cluster.entries:,.0f} entries, {cluster.words:,} words in {cluster.work.partitions} partitions, "
        f"rows of {cluster.row_bytes:,} bytes sent once in {cluster.local_epochs} epochs; {cluster.workers} workers at "
        f"{cluster.entries_per_second / 1e6:.3g} M entries/s",
    ]
