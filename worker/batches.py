"""Which entries come next in the minibatch schedule: a function of (seed, worker, step) and of nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from common.array_types import Indices
from common.dataset import Dataset
from common.draws import Purpose, stream


@dataclass(frozen=True)
class Batch:
    """Entries of one minibatch by row: `rows` distinct and ascending, entry n is (rows[at_i[n]], rows[at_j[n]])."""

    rows: Indices
    at_i: Indices
    at_j: Indices
    counts: npt.NDArray[np.float32]


class RandomBatches:
    """Batches of entries drawn uniformly, with replacement, from the full matrix, beginning with that of `step`.

    Each worker has its own stream, and in it each step a part, so that one that goes on draws nothing again.
    """

    def __init__(self, dataset: Dataset, size: int, seed: int, worker: int, step: int = 0) -> None:
        self._dataset, self._size = dataset, size
        self._seed, self._worker, self._step = seed, worker, step
        layout = dataset.layout
        self._block_starts = dataset.tiles[layout.first_tile]
        pairs = np.array(layout.blocks, np.int64)
        self._row_base = layout.bounds[pairs[:, 0]]
        self._column_base = layout.bounds[pairs[:, 1]]

    def next(self) -> Batch:
        """The batch of this step; the next call is for the next."""
        i, j, counts = self._entries(stream(self._seed, Purpose.BATCHES, self._worker, self._step))
        self._step += 1
        rows, places = np.unique(np.concatenate([i, j]), return_inverse=True)
        return Batch(rows, places[: len(i)], places[len(i) :], counts)

    def _entries(self, draw: np.random.Generator) -> tuple[Indices, Indices, npt.NDArray[np.float32]]:
        i, j, counts = self._drawn(draw, self._size)
        if self._dataset.layout.symmetric:
            mirrored = draw.random(len(i)) < 0.5
            again = mirrored & (i == j)  # a diagonal entry has no mirror image: draw another in its place
            while again.any():
                more = self._drawn(draw, int(again.sum()))
                i[again], j[again], counts[again] = more
                mirrored[again] = draw.random(len(more[0])) < 0.5
                again = again & mirrored & (i == j)
            i[mirrored], j[mirrored] = j[mirrored], i[mirrored]
        return i, j, counts

    def _drawn(self, draw: np.random.Generator, size: int) -> tuple[Indices, Indices, npt.NDArray[Any]]:
        places = draw.integers(0, len(self._dataset.entries), size)
        entries = self._dataset.entries[places]
        block = np.searchsorted(self._block_starts, places, "right") - 1
        i = self._row_base[block] + entries["i"]
        j = self._column_base[block] + entries["j"]
        return i, j, entries["x"].copy()
