"""`glovewire plan`: what a training would take on machines that are not there yet. Trains nothing.

The model is in `plan`; here are its constants: what the user says, and what a short measurement on this machine tells.
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
"""Bytes a second that a shard takes in or gives out on one core: `glovewire bench wire`, 1,024 rows a message."""
BUFFER_BYTES = 4 << 20
"""What Linux lets a sender keep without an answer unless it is told otherwise (net.ipv4.tcp_wmem)."""
WORDS = 32_000
MOST_WORDS = 4_000_000
"""As `glovewire preprocess` has it."""
MOST_PARTITIONS = 256
"""Pairs of these are minutes of computing; of more it would be hours."""
SLOWEST_BIT_S, FASTEST_BIT_S = 1e3, 1e15
MEASURE_S = 0.5
SAMPLE_ROWS = 4096
SAMPLE_DENSITY = 0.055
HELD_UP = {
    "worker": "computing: more workers help",
    "worker link, in": "the workers' links, inwards: more workers, or faster links",
    "worker link, out": "the workers' links, outwards: more workers, or faster links",
    "server": "copying in the shards: more servers help",
    "server link, in": "the shards' links, inwards: more servers, or faster links",
    "server link, out": "the shards' links, outwards: more servers, or faster links",
    "rounds": "waiting for rows that others train: fewer workers do as well, or a shorter round trip",
}
WITH_ENOUGH_SERVERS = {
    "server": "copying in the shards, of which more would take little off",
    "server link, in": "the shards' links, inwards: faster links",
    "server link, out": "the shards' links, outwards: faster links",
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
    """Say how long an epoch would take on a cluster, how many servers it needs, and what holds it up.

    The schedule of the blocks is played through with a clock; docs/scaling.md tells how, and how near it comes.
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
    under_way = link * cluster.round_trip_s
    if under_way > BUFFER_BYTES:
        click.echo(
            f"buffers     such a link has {under_way / 1e6:.0f} MB under way: raise net.ipv4.tcp_wmem and tcp_rmem, "
            f"since {BUFFER_BYTES >> 20} MiB carry {BUFFER_BYTES / cluster.round_trip_s / 1e6:.0f} MB/s at most"
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
        "bytes_under_way": under_way,
    }


def bytes_per_second(bandwidth: str) -> float:
    """`100Mbit` as bytes a second; UsageError for anything else."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) *([kMGT])bit(?:/s)?", bandwidth, re.IGNORECASE)
    bits = float(found[1]) * {"k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}[found[2].lower()] if found else 0.0
    if not SLOWEST_BIT_S <= bits <= FASTEST_BIT_S:
        raise UsageError(f"bandwidth must look like 100Mbit or 10Gbit, from 1kbit to 1000Tbit, not {bandwidth!r}")
    return bits / 8


def measured_rate(options: TrainingOptions) -> float:
    """Entries a second that this machine's kernel trains on a block of made-up entries, on one core."""
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
    while len(rates) < 3 or time.perf_counter() < until:  # the first one compiles, or reads what is compiled
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
    """What no cluster has, or what the model would play through for hours; nan is in no range."""
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
            "the model plays every pair of them through": fewest <= partitions <= most,
            f"servers must be between 1 and {most}, not {servers}": servers is None or 1 <= servers <= most,
        }
    return [problem for problem, fine in checks.items() if not fine]


def _figure(value: float) -> str:
    """Three digits, and all those before the point."""
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def _told(cluster: Cluster, found: Forecast, needed: int, epochs: int) -> list[str]:
    busy = ", ".join(f"{kind} {share:.0%}" for kind, share in sorted(found.busy.items(), key=lambda kv: -kv[1]))
    an_entry = found.bytes_pushed / cluster.entries
    held_up = HELD_UP | (WITH_ENOUGH_SERVERS if cluster.servers >= needed else {})
    return [
        f"an epoch    {_figure(found.seconds)} s: {_figure(cluster.entries / found.seconds / 1e6)} M entries/s; "
        f"{epochs} epochs {_figure(found.seconds * epochs)} s",
        f"servers     {cluster.servers}; more than {needed} would not help",
        f"held up by  {held_up[found.bottleneck]}",
        f"busy        {busy}",
        f"an epoch    pulls {found.bytes_pulled / 1e6:,.0f} MB and pushes {found.bytes_pushed / 1e6:,.0f} MB "
        f"({an_entry:.1f} bytes an entry)",
        f"assumed     {cluster.entries:,} entries, {cluster.words:,} words in {cluster.partitions} partitions, rows of "
        f"{cluster.row_bytes:,} bytes; {cluster.workers} workers at {cluster.entries_per_second / 1e6:.3g} M entries/s",
    ]
