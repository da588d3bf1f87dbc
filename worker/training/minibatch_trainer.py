"""The training loop over minibatches: rows -> gradient -> push, with it pull the next rows; the same for every store.

The optimizer is the store's. Knows nothing of sockets, and of time only when a report is due.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from glovewire.common.array_types import Indices
from glovewire.common.endings import Ending, RunEnd
from glovewire.common.errors import RunOver
from glovewire.common.model.options import TrainingOptions
from glovewire.common.model.random_streams import Purpose, stream
from glovewire.common.model.row_layout import RowLayout
from glovewire.common.protocol import messages as m
from glovewire.common.storage.dataset import Dataset

from ..kernels import glove as kernels
from ..stores.interface import Reply, Store
from .loss_sums import Brought, Tally, check_finite

PARTS = 8


class BatchTrainer:
    """Draws minibatches, pulls their rows, pushes summed row gradients; the optimizer is the store's."""

    def __init__(self, store: Store, dataset: Dataset, options: TrainingOptions, worker: int, step: int) -> None:
        self._store, self._options = store, options
        self._layout = RowLayout.of(options)
        self._batches = RandomBatches(dataset, options.batch_size, options.seed, worker, step)
        self._total = dataset.total_entries * options.epochs
        self._tally = Tally()
        self._pushed: list[tuple[Reply[bool], Brought]] = []
        self._noted: Reply[m.Recorded] | None = None

    def run(self) -> RunEnd:
        """Train until the store has enough gradients; return why it ended."""
        self._batch = self._batches.next()
        self._coming = self._store.pull_rows(self._batch.rows)
        try:
            while True:
                self._step()
                self._count()
                while self._noted is not None and not self._noted.done and self._is_ahead:
                    self._store.wait()
                if self._noted is not None and self._noted.done:
                    noted, self._noted = self._noted.get(), None
                    if noted is not None and noted.stop:
                        return self._leave(RunEnd(Ending.COMPLETE))
                if self._noted is None and (self._tally.due or self._is_ahead):
                    self._report()
        except RunOver as error:
            return self._leave(error.end)

    @property
    def _is_ahead(self) -> bool:
        """Whether a good part of the whole training is not reported yet: a small one is over before a report is due."""
        return self._tally.entries * PARTS >= self._total

    def _step(self) -> None:
        batch, columns = self._batch, self._layout.columns
        self._batch = self._batches.next()  # while the rows of this one come
        while not self._coming.done:
            self._store.wait()
        pulled = self._coming.get()
        assert pulled is not None
        gradients = np.zeros((len(batch.rows), self._layout.parameters), np.float32)
        loss, floor = kernels.batch_gradients(
            pulled.values, batch.at_i, batch.at_j, batch.counts, columns, self._options.dim, self._options.x_max,
            self._options.alpha, gradients,
        )  # fmt: skip
        check_finite(loss, "a minibatch")
        if self._options.mean_gradient:
            gradients *= 2.0 / len(batch.counts)
        rate = self._options.rate(pulled.gradients * self._options.batch_size / self._total)
        norm = kernels.mean_norm(pulled.values, columns, self._options.dim)
        push, self._coming = self._store.push_rows("gradient", batch.rows, gradients, rate, pulled, self._batch.rows)
        self._pushed.append((push, Brought(len(batch.counts), loss, floor, norm)))

    def _count(self) -> None:
        """Add up what has been taken; a gradient that came too late for its step brought nothing."""
        for reply, brought in self._pushed:
            if reply.done and reply.get():
                self._tally.add(brought)
        self._pushed = [each for each in self._pushed if not each[0].done]

    def _report(self) -> None:
        self._noted, self._tally = self._store.report(self._tally.message), Tally()

    def _leave(self, end: RunEnd) -> RunEnd:
        """Report what has not been reported, so that every entry in the table is counted."""
        self._store.flush()
        self._count()
        if self._tally.entries:
            self._report()
            self._store.flush()
        return end


# ---- Which entries come next in the minibatch schedule: a function of (seed, worker, step) and of nothing else.


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
