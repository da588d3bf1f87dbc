"""List the training objectives. A new objective is a new `Objective` with its compiled loops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from glovewire.common.array_types import Indices, Rows
from glovewire.common.model.options import TrainingOptions
from glovewire.common.model.row_layout import RowLayout

from . import glove, sgns

Sums = tuple[float, float, int]


@dataclass(frozen=True)
class Tiles:
    """Some tiles of a block: those in `order`; tile t is entries[starts[t]:starts[t + 1]].

    `frequencies` are those of the words of both partitions, fractions of the text, each of shape (rows,). `seed` is
    that of the block and the epoch. A stored entry of a `symmetric` matrix stands for its mirror image too; in a
    `diagonal` block both partitions are the same.
    """

    entries: npt.NDArray[np.void]
    frequencies: tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]
    starts: Indices
    order: Indices
    seed: int
    symmetric: bool
    diagonal: bool


@dataclass(frozen=True)
class Objective:
    """The two functions of an objective.

    `train` steps over the tiles on the rows of both partitions (float32, laid out by RowLayout, changed in place, the
    same array for a diagonal block) at a learning rate; it returns the sums of the loss and of the loss with the
    vectors at zero, and the entries of the full matrix covered. `warm` compiles its loops.
    """

    train: Callable[[Rows, Rows, Tiles, RowLayout, TrainingOptions, float], Sums]
    warm: Callable[[], None]


def _train_glove(
    rows_a: Rows, rows_b: Rows, tiles: Tiles, layout: RowLayout, options: TrainingOptions, rate: float
) -> Sums:
    pairs, counts = glove.as_plain_arrays(tiles.entries)
    return glove.train_block(
        rows_a, rows_b, pairs, counts, tiles.starts, tiles.order, tiles.seed, layout.columns, layout.dim,
        glove.OPTIMIZERS[layout.optimizer], layout.tied, tiles.symmetric, tiles.diagonal, options.x_max,
        options.alpha, rate,
    )  # fmt: skip


def _warm_glove() -> None:
    glove.warm(RowLayout(16, True, "adagrad-row").columns, 32, 16)


def _train_sgns(
    rows_a: Rows, rows_b: Rows, tiles: Tiles, layout: RowLayout, options: TrainingOptions, rate: float
) -> Sums:
    kept_a, kept_b = (
        np.log(sgns.keep_probability(each, options.sample)).astype(np.float32) for each in tiles.frequencies
    )
    return sgns.train_block(
        rows_a, rows_b, tiles.entries, kept_a, kept_b, tiles.starts, tiles.order, tiles.seed, layout.columns,
        layout.dim, tiles.symmetric, tiles.diagonal, options.x_max, options.alpha, options.negatives, rate,
    )  # fmt: skip


def _warm_sgns() -> None:
    layout = RowLayout(16, False, "adagrad-row", biases=False)
    sgns.warm(layout.columns, layout.width, layout.dim)


OBJECTIVES = {"glove": Objective(_train_glove, _warm_glove), "sgns": Objective(_train_sgns, _warm_sgns)}


def warm() -> None:
    """Compile the loops of every objective, before a server waits for this worker."""
    for objective in OBJECTIVES.values():
        objective.warm()
