"""Define `glovewire plan`: predict epoch time, bottleneck and number of servers for a cluster, without training.

Module `model` has the simulation; this module supplies its parameters from options and a short measurement.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from glovewire.common.cli.command import Command
from glovewire.common.cli.options import Given, takes

from ..vectors.show import size
from .config import WORDS, PlanConfig, bytes_per_second

if TYPE_CHECKING:
    import numpy as np

    from glovewire.common.model.options import TrainingOptions
    from glovewire.common.storage.dataset import Dataset
    from glovewire.worker.kernels.objectives import Tiles

    from .model import Cluster, Forecast
    from .work import Work

    Sample = tuple[tuple[int, int], Tiles]
    """The rows of the two partitions of a block, and tiles of it."""

SERVED_PER_S = 1.5e9
"""Bytes per second that a shard serves on one core, measured by `glovewire bench wire` with 1,024 rows per message."""
BUFFER_BYTES = 4 << 20
"""Unacknowledged bytes that Linux allows a TCP sender by default (net.ipv4.tcp_wmem)."""
MEASURE_S = 0.5
SAMPLE_ROWS, SAMPLE_TILE = 4096, 256
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
@takes(PlanConfig)
def plan(given: Given[PlanConfig]) -> dict[str, Any]:
    """Predict how long an epoch takes on a cluster, how many servers it needs, and what limits it.

    The block schedule is simulated in virtual time; docs/scaling.md explains how and compares it with measurements.
    """
    from glovewire.common.model.options import TrainingOptions
    from glovewire.common.model.row_layout import RowLayout
    from glovewire.common.storage.dataset import Dataset
    from glovewire.preprocess.counts.arrangement import default_partitions

    from .model import Cluster, forecast, partitions_advised, servers_needed
    from .work import counted, estimated, zipf_counts

    config = given.config()
    opened = None if config.dataset is None else Dataset.open(config.dataset, verify=False)
    entries = config.entries if opened is None else float(opened.total_entries)
    assert entries is not None
    counts = zipf_counts(WORDS if config.words is None else config.words, entries) if opened is None else opened.counts
    own = None if opened is None else opened.layout.partitions
    usual = default_partitions(counts) if own is None else own
    partitions = usual if config.partitions is None else config.partitions
    config = dataclasses.replace(
        config, dataset=None, words=len(counts), entries=entries, partitions=partitions
    )  # which checks them

    def estimate(partitions: int) -> Work:
        return estimated(counts, entries, partitions)

    work = counted(opened) if opened is not None and partitions == own else estimate(partitions)
    if not config.kernel_rate:
        _tell("measuring how fast this machine trains")
    options, link = TrainingOptions(dim=config.dim, tied=config.tied), bytes_per_second(config.bandwidth)
    rate = config.kernel_rate or measured_rate(options, opened)
    cluster = Cluster(
        work, RowLayout.of(options).width * options.wire_bytes, config.workers, config.servers or 1, rate, link,
        SERVED_PER_S, config.round_trip / 1e3, config.epochs,
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
    """Say on stderr what is being done, because it may take several seconds."""
    click.echo(f"{what} ...", err=True)


def measured_rate(options: TrainingOptions, dataset: Dataset | None) -> float:
    """Measure how many entries per second the compiled loops train on one core: of a dataset, or synthetic ones.

    Rare words take longer, because their rows are not in the cache. So a dataset's blocks are drawn in proportion to
    their entries.
    """
    import numpy as np

    from glovewire.common.model.row_layout import RowLayout
    from glovewire.worker.kernels.objectives import OBJECTIVES

    draw, layout = np.random.default_rng(0), RowLayout.of(options)
    objective = OBJECTIVES[options.objective]
    objective.warm()
    sample = _synthetic(draw) if dataset is None else _drawn(dataset, draw)
    covered, seconds = 0, 0.0
    while seconds < MEASURE_S:
        sizes, tiles = next(sample)
        left, right = (np.full((size, layout.width), 0.1, np.float32) for size in sizes)
        began = time.thread_time()
        covered += objective.train(
            left, left if tiles.diagonal else right, tiles, layout, options, options.learning_rate
        )[2]
        seconds += time.thread_time() - began
    return covered / seconds


def _synthetic(draw: np.random.Generator) -> Iterator[Sample]:
    """Yield one block of random entries, again and again."""
    import numpy as np

    from glovewire.common.storage.dataset import ENTRY, Layout
    from glovewire.worker.kernels.objectives import Tiles

    layout = Layout((0, SAMPLE_ROWS), SAMPLE_TILE, symmetric=True)
    at = np.unique(draw.integers(0, SAMPLE_ROWS**2, int(SAMPLE_DENSITY * SAMPLE_ROWS**2)))
    i, j = at // SAMPLE_ROWS, at % SAMPLE_ROWS
    number = j // layout.columns * layout.tile_rows(0) + i // layout.tile
    order = np.lexsort((j, i, number))
    entries = np.empty(len(at), ENTRY)
    entries["i"], entries["j"], entries["x"] = i[order], j[order], draw.integers(1, 20, len(at))
    entries.setflags(write=False)  # as those of a dataset are, for which the loops are compiled
    count = layout.tile_rows(0) * layout.stripes(0)
    starts, even = np.searchsorted(number[order], np.arange(count + 1)), np.full(SAMPLE_ROWS, 1 / SAMPLE_ROWS)
    every = np.arange(count)
    while True:
        yield (SAMPLE_ROWS, SAMPLE_ROWS), Tiles(entries, (even, even), starts, every, every, 0, True, False)


def _drawn(dataset: Dataset, draw: np.random.Generator) -> Iterator[Sample]:
    """Yield blocks of a dataset, drawn in proportion to their entries, each with some of its tiles."""
    import numpy as np

    from glovewire.worker.kernels.objectives import Tiles
    from glovewire.worker.training.block_trainer import shuffled_tiles, tile_portions

    layout = dataset.layout
    stored = np.diff(dataset.tiles[layout.first_tile])
    while True:
        a, b = layout.blocks[draw.choice(len(stored), p=stored / stored.sum())]
        entries, starts = dataset.block(a, b)
        some = next(tile_portions(shuffled_tiles(draw, layout.stripes(b), layout.tile_rows(a)), starts))
        shares = dataset.frequencies[slice(*layout.span(a))], dataset.frequencies[slice(*layout.span(b))]
        tiles = Tiles(entries, shares, starts, some, some, 0, layout.symmetric, a == b)
        yield (layout.size(a), layout.size(b)), tiles


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
        f"rows of {cluster.row_bytes:,} bytes; {cluster.workers} workers at "
        f"{cluster.entries_per_second / 1e6:.3g} M entries/s",
    ]
