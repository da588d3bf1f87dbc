"""`glovewire plan`: predict epoch time, bottleneck and number of servers for a cluster. Trains nothing.

The simulation is in `model`; this module supplies its parameters, from options and a short measurement.
"""

from __future__ import annotations

import dataclasses
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from glovewire.common.cli.command import Command
from glovewire.common.errors import UsageError, require
from glovewire.common.storage.dataset import MAX_PARTITION_ROWS

if TYPE_CHECKING:
    from glovewire.common.model.options import TrainingOptions

    from .model import Cluster, Forecast

SERVED_PER_S = 1.5e9
"""Bytes per second that a shard serves on one core, as measured by `glovewire bench wire` with 1,024 rows a message."""
BUFFER_BYTES = 4 << 20
"""Unacknowledged bytes that Linux allows a TCP sender by default (net.ipv4.tcp_wmem)."""
WORDS = 32_000
MOST_WORDS = 4_000_000
"""The limit of `glovewire preprocess`."""
MOST_PARTITIONS = 256
"""The simulation visits every pair of partitions; more would take hours."""
SLOWEST_BIT_S, FASTEST_BIT_S = 1e3, 1e15
MEASURE_S = 0.5
SAMPLE_ROWS = 4096
SAMPLE_DENSITY = 0.055
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
@click.argument("dataset", type=click.Path(path_type=Path), required=False)
@click.option("--entries", type=float, help="Entries of the full matrix; a DATASET tells them.")
@click.option("--words", type=int, show_default=f"{WORDS}", help="Words in the vocabulary; a DATASET tells them.")
@click.option("--dim", default=256, help="Numbers in a vector.")
@click.option("--tied/--untied", default=False, help="As in training.")
@click.option(
    "--partitions",
    type=int,
    show_default="those of the DATASET, or as preprocess makes them",
    help="Parts of the vocabulary.",
)
@click.option("--workers", default=2, help="Worker processes, each with a core and a link of its own.")
@click.option("--servers", type=int, show_default="as many as help", help="Shards, each with a link of its own.")
@click.option("--bandwidth", default="10Gbit", metavar="RATE", help="Of each link, in each direction: 100Mbit, 10Gbit.")
@click.option("--round-trip", default=0.2, metavar="MILLISECONDS", help="From a worker to a shard and back.")
@click.option(
    "--kernel-rate",
    type=float,
    metavar="ENTRIES/S",
    show_default="measured on this machine, in a second or two",
    help="Entries that one worker trains a second.",
)
@click.option("--epochs", default=16, help="Passes over the whole matrix.")
def plan(
    dataset: Path | None,
    entries: float | None,
    words: int | None,
    dim: int,
    tied: bool,
    partitions: int | None,
    workers: int,
    servers: int | None,
    bandwidth: str,
    round_trip: float,
    kernel_rate: float | None,
    epochs: int,
) -> dict[str, Any]:
    """Predict how long an epoch takes on a cluster, how many servers it needs, and what limits it.

    The block schedule is simulated in virtual time; docs/scaling.md explains how and compares it with measurements.
    """
    from glovewire.common.model.options import TrainingOptions
    from glovewire.common.model.row_layout import RowLayout
    from glovewire.common.storage.dataset import Dataset
    from glovewire.preprocess.config import default_partitions

    from .model import Cluster, forecast, partitions_advised, servers_needed

    options = TrainingOptions(dim=dim, tied=tied)
    if dataset is not None:
        if twice := [name for name, value in {"words": words, "entries": entries}.items() if value is not None]:
            left_out = " and ".join(f"--{name}" for name in twice)
            raise UsageError(f"a DATASET tells its {' and '.join(twice)}: leave out {left_out}")
        opened = Dataset.open(dataset, verify=False)
        words, entries = opened.layout.rows, float(opened.total_entries)
        partitions = opened.layout.partitions if partitions is None else partitions
    words = WORDS if words is None else words
    partitions = default_partitions(words) if partitions is None else partitions
    link = bytes_per_second(bandwidth)
    require(_problems(entries, words, partitions, workers, servers, round_trip, kernel_rate, epochs))
    cluster = Cluster(
        int(entries or 0), words, RowLayout.of(options).width * 4, partitions, workers, servers or 1,
        kernel_rate or measured_rate(options), link, SERVED_PER_S, round_trip / 1e3,
    )  # fmt: skip
    needed = servers_needed(cluster)
    cluster = dataclasses.replace(cluster, servers=servers or needed)
    found = forecast(cluster)
    advised = partitions_advised(cluster)
    for line in _told(cluster, found, needed, epochs):
        click.echo(line)
    if advised != partitions:
        shorter = forecast(dataclasses.replace(cluster, partitions=advised)).seconds
        click.echo(f"better      preprocess --partitions {advised}: {_figure(shorter)} s an epoch")
    in_flight = link * cluster.round_trip_s
    if in_flight > BUFFER_BYTES:
        click.echo(
            f"buffers     such a link holds {in_flight / 1e6:.0f} MB in flight: raise net.ipv4.tcp_wmem and tcp_rmem, "
            f"because {BUFFER_BYTES >> 20} MiB limit it to {BUFFER_BYTES / cluster.round_trip_s / 1e6:.0f} MB/s"
        )
    return {
        "epoch_seconds": found.seconds,
        "training_seconds": found.seconds * epochs,
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


def bytes_per_second(bandwidth: str) -> float:
    """Return `100Mbit` in bytes per second; UsageError for anything else."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) *([kMGT])bit(?:/s)?", bandwidth, re.IGNORECASE)
    bits = float(found[1]) * {"k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}[found[2].lower()] if found else 0.0
    if not SLOWEST_BIT_S <= bits <= FASTEST_BIT_S:
        raise UsageError(f"bandwidth must look like 100Mbit or 10Gbit, from 1kbit to 1000Tbit, not {bandwidth!r}")
    return bits / 8


def measured_rate(options: TrainingOptions) -> float:
    """Measure how many synthetic entries per second this machine's kernel trains on one core."""
    import numpy as np

    from glovewire.common.model.row_layout import RowLayout
    from glovewire.common.storage.dataset import ENTRY
    from glovewire.worker.kernels.objectives import OBJECTIVES, Tiles

    draw, tile = np.random.default_rng(0), 256
    at = np.unique(draw.integers(0, SAMPLE_ROWS**2, int(SAMPLE_DENSITY * SAMPLE_ROWS**2)))
    i, j = at // SAMPLE_ROWS, at % SAMPLE_ROWS
    number = i // tile * (SAMPLE_ROWS // tile) + j // tile
    order = np.lexsort((j, i, number))
    entries = np.empty(len(at), ENTRY)
    entries["i"], entries["j"], entries["x"] = i[order], j[order], draw.integers(1, 20, len(at))
    count = (SAMPLE_ROWS // tile) ** 2
    starts, even = np.searchsorted(number[order], np.arange(count + 1)), np.full(SAMPLE_ROWS, 1 / SAMPLE_ROWS)
    tiles = Tiles(entries, (even, even), starts, np.arange(count), 0, True, False)
    layout = RowLayout.of(options)
    rows = [layout.initial(first, first + SAMPLE_ROWS, options) for first in (0, SAMPLE_ROWS)]
    train = OBJECTIVES[options.objective].train
    rates: list[float] = []
    until = time.perf_counter() + MEASURE_S
    while len(rates) < 3 or time.perf_counter() < until:  # the first pass compiles or loads compiled code
        began = time.perf_counter()
        covered = train(rows[0], rows[1], tiles, layout, options, options.learning_rate)[2]
        rates.append(covered / (time.perf_counter() - began))
    return max(rates)


def _problems(
    entries: float | None,
    words: int,
    partitions: int,
    workers: int,
    servers: int | None,
    round_trip: float,
    kernel_rate: float | None,
    epochs: int,
) -> list[str]:
    """List values that no cluster has or that would take hours to simulate; NaN is in no range."""
    checks = {
        "give a DATASET, or --entries": entries is not None,
        f"entries must be between 1 and 1e15, not {entries}": entries is None or 1 <= entries <= 1e15,
        f"words must be between 2 and {MOST_WORDS:,}, not {words}": 2 <= words <= MOST_WORDS,
        f"workers must be between 1 and 1,000, not {workers}": 1 <= workers <= 1_000,
        f"round-trip must be between 0 and 60,000 milliseconds, not {round_trip}": 0 <= round_trip <= 60_000,
        f"kernel-rate must be between 1 and 1e12 entries a second, not {kernel_rate}": kernel_rate is None
        or 1 <= kernel_rate <= 1e12,
        f"epochs must be between 1 and 1,000,000, not {epochs}": 1 <= epochs <= 1_000_000,
    }
    if 2 <= words <= MOST_WORDS:
        fewest, most = -(-words // MAX_PARTITION_ROWS), min(words, MOST_PARTITIONS)
        checks |= {
            f"partitions must be between {fewest} and {most} for {words:,} words, not {partitions}: "
            "the simulation visits every pair of them": fewest <= partitions <= most,
            f"servers must be between 1 and {most}, not {servers}": servers is None or 1 <= servers <= most,
        }
    return [problem for problem, fine in checks.items() if not fine]


def _figure(value: float) -> str:
    """Format with three significant digits, or all digits before the point."""
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
        f"an epoch    pulls {found.bytes_pulled / 1e6:,.0f} MB and pushes {found.bytes_pushed / 1e6:,.0f} MB "
        f"({an_entry:.1f} bytes an entry)",
        f"assumed     {cluster.entries:,} entries, {cluster.words:,} words in {cluster.partitions} partitions, rows of "
        f"{cluster.row_bytes:,} bytes; {cluster.workers} workers at {cluster.entries_per_second / 1e6:.3g} M entries/s",
    ]
