"""List the training objectives.

A new objective needs an entry in OBJECTIVES with its compiled loops, its name and defaults in
`common/model/options.py`, and its columns in `common/model/row_layout.py`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from glovewire.common.array_types import Indices, Rows
from glovewire.common.model import bfloat16_kernels
from glovewire.common.model.options import TrainingOptions
from glovewire.common.model.row_layout import RowLayout
from glovewire.common.storage.dataset import ENTRY

from . import glove, sgns

Sums = tuple[float, float, int]


@dataclass(frozen=True)
class Tiles:
    """The tiles of a block that are listed in `order`; tile t is entries[starts[t]:starts[t + 1]].

    `numbers` (len(order),) are their numbers in the block, from which each tile's random stream is derived.
    `frequencies` holds each word's share of the text for both partitions: two arrays of shape (rows,). `seed` is drawn
    for the block and the epoch. A stored entry of a `symmetric` matrix stands for its mirror image too; in a `diagonal`
    block both partitions are the same.
    """

    entries: npt.NDArray[np.void]
    frequencies: tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]
    starts: Indices
    order: Indices
    numbers: Indices
    seed: int
    symmetric: bool
    diagonal: bool


def renumbered(tiles: Tiles, side: int, positions: Indices) -> Tiles:
    """Return a copy of the tiles in `order` whose rows (side 0) or columns (side 1) are renumbered by `positions`.

    `positions` (n,), ascending, are the positions in the partition that occur; the new numbers are indices into it.
    """
    sizes = (tiles.starts[1:] - tiles.starts[:-1])[tiles.order]
    starts = np.concatenate([[0], np.cumsum(sizes)])
    entries = np.empty(int(starts[-1]), ENTRY)
    pairs, _ = glove.as_plain_arrays(tiles.entries)
    glove.renumber(pairs, tiles.starts, tiles.order, side, positions, glove.as_plain_arrays(entries)[0])
    entries.setflags(write=False)  # like a dataset's entries, because the loops are compiled for read-only arrays
    return replace(tiles, entries=entries, starts=starts, order=np.arange(len(sizes)))


def _train_glove(
    rows_a: Rows, rows_b: Rows, tiles: Tiles, layout: RowLayout, options: TrainingOptions, rate: float
) -> Sums:
    pairs, counts = glove.as_plain_arrays(tiles.entries)
    return glove.train_block(
        rows_a, rows_b, pairs, counts, tiles.starts, tiles.order, tiles.numbers, tiles.seed, layout.columns, layout.dim,
        layout.span, glove.OPTIMIZERS[layout.optimizer], layout.tied, tiles.symmetric, tiles.diagonal, options.x_max,
        options.alpha, rate,
    )  # fmt: skip


def _train_sgns(
    rows_a: Rows, rows_b: Rows, tiles: Tiles, layout: RowLayout, options: TrainingOptions, rate: float
) -> Sums:
    pairs, counts = glove.as_plain_arrays(tiles.entries)
    kept_a, kept_b = (
        np.log(sgns.keep_probability(each, options.sample)).astype(np.float32) for each in tiles.frequencies
    )
    loss, total, covered = sgns.train_block(
        rows_a, rows_b, pairs, counts, kept_a, kept_b, tiles.starts, tiles.order, tiles.numbers, tiles.seed,
        layout.columns, tiles.symmetric, tiles.diagonal, np.float32(np.log(options.x_max)), np.float32(options.alpha),
        np.float32(options.negatives), sgns.group_buffers(layout.span),
        sgns.SgnsParams(np.float32(rate), layout.span, np.float32(1 / layout.dim)),
    )  # fmt: skip
    return loss, math.log(2.0) * (1.0 + options.negatives) * total, covered


Train = Callable[[Rows, Rows, Tiles, RowLayout, TrainingOptions, float], Sums]
OBJECTIVES: dict[str, Train] = {"glove": _train_glove, "sgns": _train_sgns}
"""By its name on the command line, the function that steps over tiles at a learning rate.

It changes the rows of both partitions in place (float32, columns as in RowLayout; the same array for a diagonal block).
It returns the sum of the loss, the sum of the loss with all vectors at zero, and the number of entries of the full
matrix covered.
"""


def warm_objective(name: str) -> None:
    """Compile an objective's loops or load them from the cache; called before a server waits for this worker."""
    options = TrainingOptions.from_flags(objective=name, dim=16)
    layout = RowLayout.of(options)
    rows, entries, ones = np.ones((1, layout.width), np.float32), np.ones(0, ENTRY), np.ones(1)
    entries.setflags(write=False)
    none = np.zeros(0, np.int64)
    tiles = Tiles(entries, (ones, ones), np.zeros(2, np.int64), none, none, 0, True, True)
    renumbered(tiles, 0, none)
    OBJECTIVES[name](rows, rows, tiles, layout, options, 0.1)
    glove.mean_norm(rows, layout.columns, layout.span)
    if name == "glove":  # the only one with minibatches
        counts = np.ones(0, np.float32)
        glove.batch_gradients(rows, none, none, counts, layout.columns, layout.dim, 1.0, 1.0, rows.copy())


def warm() -> None:
    """Compile the loops of every objective, and those that convert rows for transfer."""
    rows = np.ones((1, 16), np.float32)
    halves = bfloat16_kernels.narrow(rows)
    bfloat16_kernels.widen(halves, rows)
    bfloat16_kernels.subtract_from(rows, halves)
    for name in OBJECTIVES:
        warm_objective(name)
