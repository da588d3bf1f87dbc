"""Train on random minibatches: pull rows, compute gradients, push them and pull the next rows with the same message.

The loop is the same for every store; the store runs the optimizer. No sockets.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from glovewire.common.array_types import Indices, Rows
from glovewire.common.client.pending import Pending
from glovewire.common.endings import Ending, RunEnd
from glovewire.common.errors import RunOver
from glovewire.common.model.options import TrainingOptions
from glovewire.common.model.random_streams import Purpose, stream
from glovewire.common.model.row_layout import RowLayout
from glovewire.common.protocol import messages as m
from glovewire.common.storage.dataset import Dataset

from ..kernels import glove as kernels
from ..stores.interface import BatchStore
from .loss_sums import LossSums, check_finite

MAX_UNREPORTED = 1 / 8
"""Largest unreported share of all entries: otherwise a short training could end before a report is due."""


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


class Gradients(NamedTuple):
    """Gradients of a batch, one row for each of its rows; the loss sums of its `examples`, and their vectors' norm."""

    rows: Rows
    examples: int
    loss: float
    bias_only_loss: float = 0.0
    norm: float = 0.0

    @property
    def mean_loss(self) -> float:
        """Return the mean loss of the examples."""
        return self.loss / self.examples


def glove_gradients(batch: Minibatch, rows: Rows, options: TrainingOptions) -> Gradients:
    """Return the gradients of GloVe for a minibatch whose rows are `rows`."""
    layout, examples = RowLayout.of(options), len(batch.counts)
    gradients = np.zeros((len(batch.rows), layout.parameters), np.float32)
    loss, bias_only = kernels.batch_gradients(
        rows, batch.at_i, batch.at_j, batch.counts, layout.columns, options.dim, options.x_max, options.alpha, gradients
    )
    if options.mean_gradient:
        gradients *= 2.0 / examples
    return Gradients(gradients, examples, loss, bias_only, kernels.mean_norm(rows, layout.columns, layout.span))


class Batch(Protocol):
    """A batch of examples of any model."""

    @property
    def rows(self) -> Indices:
        """Return the numbers of the rows that the batch needs, distinct and ascending."""


B = TypeVar("B", bound=Batch)


def glove_trainer(
    store: BatchStore, dataset: Dataset, options: TrainingOptions, worker: int, step: int
) -> "MinibatchTrainer[Minibatch]":
    """Return the trainer of GloVe by minibatches, starting at `step` of the random stream of `worker`."""
    sampler = MinibatchSampler(dataset, options.batch_size, options.seed, worker, step)
    gradients = partial(glove_gradients, options=options)
    return MinibatchTrainer(store, sampler.next, gradients, options, dataset.total_entries * options.epochs)


class MinibatchTrainer(Generic[B]):
    """Draws batches, pulls their rows and pushes the gradients; a training has `total` examples.

    This is a state machine: `advance` does everything that the replies so far allow, and never waits.
    """

    def __init__(
        self,
        store: BatchStore,
        draw: Callable[[], B],
        gradients: Callable[[B, Rows], Gradients],
        options: TrainingOptions,
        total: int,
    ) -> None:
        self._store, self._draw, self._gradients = store, draw, gradients
        self._options, self._total = options, total
        self._sums = LossSums(store.now())
        self._pushed: list[tuple[Pending[bool], Gradients]] = []
        self._reported: Pending[m.Recorded] | None = None
        self._batch = draw()
        self._rows, self._next = store.pull_rows(self._batch.rows), draw()

    def run(self) -> RunEnd:
        """Train until the store reports the end of training; return why it ended."""
        try:
            while (end := self.advance()) is None:
                self._store.wait()
        except RunOver as error:
            end = error.end
        return self._leave(end)

    def advance(self) -> RunEnd | None:
        """Train and report the batches whose rows have arrived; return why training is over, None if it continues."""
        while True:
            if self._reported is not None and self._reported.done:
                recorded, self._reported = self._reported.get(), None
                if recorded.stop:
                    return RunEnd(Ending.COMPLETE)
            if self._reported is None and (self._sums.is_due(self._store.now()) or self._must_report):
                self._report()
            if not self._rows.done or (self._reported is not None and self._must_report):
                return None
            self._step()
            self._add_up()

    @property
    def _must_report(self) -> bool:
        return self._sums.entries >= MAX_UNREPORTED * self._total

    def _step(self) -> None:
        """Push the gradients of the batch whose rows have arrived, and pull the rows of the next."""
        batch, pulled = self._batch, self._rows.get()
        found = self._gradients(batch, pulled.values)
        check_finite(found.loss, "a minibatch")
        rate = self._options.rate(pulled.gradients * self._options.batch_size / self._total)
        push, self._rows = self._store.push_rows("gradient", batch.rows, found.rows, rate, pulled, self._next.rows)
        self._pushed.append((push, found))
        self._batch, self._next = self._next, self._draw()  # drawn while the rows of this one are in flight

    def _add_up(self) -> None:
        """Add up the batches whose gradients were applied, not those that arrived too late for their step."""
        for reply, found in self._pushed:
            if reply.done and reply.get():
                self._sums.add(found.examples, found.loss, found.bias_only_loss, found.norm)
        self._pushed = [each for each in self._pushed if not each[0].done]

    def _report(self) -> None:
        now = self._store.now()
        self._reported, self._sums = self._store.report(partial(self._sums.report, now)), LossSums(now)

    def _leave(self, end: RunEnd) -> RunEnd:
        """Report the remaining sums, so that every applied batch is counted; return `end`."""
        self._store.flush()
        self._add_up()
        if self._sums.entries:
            self._report()
            self._store.flush()
        return end
