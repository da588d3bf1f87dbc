"""Measure how fast the compiled loops train on this machine, for `glovewire plan`."""

import time
from collections.abc import Iterator

import numpy as np

from glovewire.common.model.options import TrainingOptions
from glovewire.common.model.row_layout import RowLayout
from glovewire.common.storage.dataset import ENTRY, Dataset, Layout
from glovewire.worker.kernels.objectives import OBJECTIVES, Tiles, warm_objective
from glovewire.worker.training.block_trainer import shuffled_tiles, tile_portions

MEASURE_S = 0.5
SAMPLE_ROWS, SAMPLE_TILE = 4096, 256
SAMPLE_DENSITY = 0.055

Sample = tuple[tuple[int, int], Tiles]
"""The number of rows of each of a block's two partitions, and some of its tiles."""


def measured_rate(options: TrainingOptions, dataset: Dataset | None) -> float:
    """Measure how many entries per second the compiled loops train on one core: of a dataset, or synthetic ones.

    Rare words take longer, because their rows are not in the cache. So a dataset's blocks are drawn in proportion to
    their entries.
    """
    draw, layout = np.random.default_rng(0), RowLayout.of(options)
    train = OBJECTIVES[options.objective]
    warm_objective(options.objective)
    sample = _synthetic(draw) if dataset is None else _drawn(dataset, draw)
    covered, seconds = 0, 0.0
    while seconds < MEASURE_S:
        sizes, tiles = next(sample)
        left, right = (np.full((size, layout.width), 0.1, np.float32) for size in sizes)
        began = time.thread_time()
        covered += train(left, left if tiles.diagonal else right, tiles, layout, options, options.learning_rate)[2]
        seconds += time.thread_time() - began
    return covered / seconds


def _synthetic(draw: np.random.Generator) -> Iterator[Sample]:
    """Yield the same block of random entries without end."""
    layout = Layout((0, SAMPLE_ROWS), SAMPLE_TILE, symmetric=True)
    at = np.unique(draw.integers(0, SAMPLE_ROWS**2, int(SAMPLE_DENSITY * SAMPLE_ROWS**2)))
    i, j = at // SAMPLE_ROWS, at % SAMPLE_ROWS
    number = j // layout.columns * layout.tile_rows(0) + i // layout.tile
    order = np.lexsort((j, i, number))
    entries = np.empty(len(at), ENTRY)
    entries["i"], entries["j"], entries["x"] = i[order], j[order], draw.integers(1, 20, len(at))
    entries.setflags(write=False)  # like a dataset's entries, for which the loops are compiled
    count = layout.tile_rows(0) * layout.stripes(0)
    starts, even = np.searchsorted(number[order], np.arange(count + 1)), np.full(SAMPLE_ROWS, 1 / SAMPLE_ROWS)
    every = np.arange(count)
    while True:
        yield (SAMPLE_ROWS, SAMPLE_ROWS), Tiles(entries, (even, even), starts, every, every, 0, True, False)


def _drawn(dataset: Dataset, draw: np.random.Generator) -> Iterator[Sample]:
    """Yield blocks of a dataset, drawn in proportion to their entries, each with some of its tiles."""
    layout = dataset.layout
    stored = np.diff(dataset.tiles[layout.first_tile])
    while True:
        a, b = layout.blocks[draw.choice(len(stored), p=stored / stored.sum())]
        entries, starts = dataset.block(a, b)
        some = next(tile_portions(shuffled_tiles(draw, layout.stripes(b), layout.tile_rows(a)), starts))
        shares = dataset.frequencies[slice(*layout.span(a))], dataset.frequencies[slice(*layout.span(b))]
        tiles = Tiles(entries, shares, starts, some, some, 0, layout.symmetric, a == b)
        yield (layout.size(a), layout.size(b)), tiles
