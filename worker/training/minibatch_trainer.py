"""Train on random minibatches: pull rows, compute gradients, push them and pull the next rows with the same message.

The loop is the same for every store; the store runs the optimizer. No sockets.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from glovewire.common.array_types import Indices
from glovewire.common.client.pending import Pending
from glovewire.common.endings import Ending, RunEnd
from glovewire.common.errors import RunOver
from glovewire.common.model.options import TrainingOptions
from glovewire.common.model.random_streams import Purpose, stream
from glovewire.common.model.row_layout import RowLayout
from glovewire.common.protocol import messages as m
from glovewire.common.storage.dataset import Dataset

from ..kernels import glove as kernels
from ..stores.interface import Store
from .loss_sums import LossSums, check_finite

MAX_UNREPORTED = 1 / 8
"""Largest unreported share of all entries: a short training would be over before a report is due."""


@dataclass(frozen=True)
class Minibatch:
    """Entries of a minibatch: `rows` are distinct and ascending; entry n is (rows[at_i[n]], rows[at_j[n]])."""

    rows: Indices
    at_i: Indices
    at_j: Indices
    counts: npt.NDArray[np.float32]


class MinibatchSampler:
    """Draws minibatches uniformly, with replacement, from the entries of the full matrix, starting at step `step`.

    A minibatch depends only on (seed, worker, step), so a resumed worker repeats none.
    """

    def __init__(self, dataset: Dataset, size: int, seed: int, worker: int, step: int = 0) -> None:
        self._dataset, self._size = dataset, size
        self._seed, self._worker, self._step = seed, worker, step
        layout = dataset.layout
        self._block_starts = dataset.tiles[layout.first_tile]
        pairs = np.array(layout.blocks, np.int64)
        self._row_base, self._column_base = np.array(layout.bounds)[pairs.T]

    def next(self) -> Minibatch:
        """Return the minibatch of the current step, and advance to the next step."""
        i, j, counts = self._entries(stream(self._seed, Purpose.BATCHES, self._worker, self._step))
        self._step += 1
        rows, places = np.unique(np.concatenate([i, j]), return_inverse=True)
        return Minibatch(rows, places[: len(i)], places[len(i) :], counts)

    def _entries(self, draw: np.random.Generator) -> tuple[Indices, Indices, npt.NDArray[np.float32]]:
        i, j, counts = self._drawn(draw, self._size)
        if self._dataset.layout.symmetric:
            mirrored = draw.random(len(i)) < 0.5
            again = mirrored & (i == j)  # a diagonal entry has no mirror image: draw another one
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


class MinibatchTrainer:
    """Draws minibatches, pulls their rows and pushes summed row gradients."""

    def __init__(self, store: Store, dataset: Dataset, options: TrainingOptions, worker: int, step: int) -> None:
        self._store, self._options = store, options
        self._layout = RowLayout.of(options)
        self._batches = MinibatchSampler(dataset, options.batch_size, options.seed, worker, step)
        self._total = dataset.total_entries * options.epochs
        self._sums = LossSums()
        self._pushed: list[tuple[Pending[bool], tuple[int, float, float, float]]] = []
        self._reported: Pending[m.Recorded] | None = None

    def run(self) -> RunEnd:
        """Train until the store reports the end of training; return why it ended."""
        self._batch = self._batches.next()
        self._rows = self._store.pull_rows(self._batch.rows)
        try:
            while True:
                self._step()
                self._add_up()
                while self._reported is not None and not self._reported.done and self._must_report:
                    self._store.wait()
                if self._reported is not None and self._reported.done:
                    recorded, self._reported = self._reported.get(), None
                    if recorded is not None and recorded.stop:
                        return self._leave(RunEnd(Ending.COMPLETE))
                if self._reported is None and (self._sums.is_due or self._must_report):
                    self._report()
        except RunOver as error:
            return self._leave(error.end)

    @property
    def _must_report(self) -> bool:
        return self._sums.entries >= MAX_UNREPORTED * self._total

    def _step(self) -> None:
        batch, columns = self._batch, self._layout.columns
        self._batch = self._batches.next()  # drawn while the rows of this one are on their way
        while not self._rows.done:
            self._store.wait()
        pulled = self._rows.get()
        assert pulled is not None
        gradients = np.zeros((len(batch.rows), self._layout.parameters), np.float32)
        loss, bias_only = kernels.batch_gradients(
            pulled.values, batch.at_i, batch.at_j, batch.counts, columns, self._options.dim, self._options.x_max,
            self._options.alpha, gradients,
        )  # fmt: skip
        check_finite(loss, "a minibatch")
        if self._options.mean_gradient:
            gradients *= 2.0 / len(batch.counts)
        rate = self._options.rate(pulled.gradients * self._options.batch_size / self._total)
        norm = kernels.mean_norm(pulled.values, columns, self._options.dim)
        push, self._rows = self._store.push_rows("gradient", batch.rows, gradients, rate, pulled, self._batch.rows)
        self._pushed.append((push, (len(batch.counts), loss, bias_only, norm)))

    def _add_up(self) -> None:
        """Add up the batches whose gradients were applied, not those that came too late for their step."""
        for reply, result in self._pushed:
            if reply.done and reply.get():
                self._sums.add(*result)
        self._pushed = [each for each in self._pushed if not each[0].done]

    def _report(self) -> None:
        self._reported, self._sums = self._store.report(self._sums.report), LossSums()

    def _leave(self, end: RunEnd) -> RunEnd:
        """Report the remaining sums, so that every applied batch is counted; return `end`."""
        self._store.flush()
        self._add_up()
        if self._sums.entries:
            self._report()
            self._store.flush()
        return end
