"""The training loop over minibatches: draw -> pull -> gradient -> push, until told to stop; the same for every store.

The optimizer is the store's. Knows nothing of sockets, and of time only when a report is due.
"""

from __future__ import annotations

import numpy as np

from common import messages as m
from common.dataset import Dataset
from common.errors import Finishing
from common.options import TrainingOptions
from common.rows import RowLayout

from . import kernels
from .batches import RandomBatches
from .stores import Reply, Store, settled
from .tally import Tally, check_finite


class BatchTrainer:
    """Draws minibatches, pulls their rows, pushes summed row gradients; the optimizer is the store's."""

    def __init__(self, store: Store, dataset: Dataset, options: TrainingOptions, worker: int) -> None:
        self._store, self._options = store, options
        self._layout = RowLayout.of(options)
        self._batches = RandomBatches(dataset, options.batch_size, options.seed, worker)
        self._total = dataset.total_entries * options.epochs
        self._done = 0

    def run(self) -> str:
        """Train until the store has counted enough entries; returns why it ended."""
        tally = Tally()
        reply: Reply[m.Noted] | None = None
        pushes: list[Reply[None]] = []
        try:
            while True:
                tally.add(*self._step(pushes))
                while reply is not None and reply.done:
                    noted, reply = reply.get(), None
                    self._done = noted.entries if noted is not None else self._done
                    if noted is not None and noted.stop:
                        self._store.flush()
                        return "complete"
                if reply is None and tally.due:
                    reply, tally = self._store.report(tally.message), Tally()
        except Finishing as error:
            return error.reason

    def _step(self, pushes: list[Reply[None]]) -> tuple[int, float, float, float]:
        batch, columns = self._batches.next(), self._layout.columns
        pulled = self._store.pull_rows(batch.rows)
        while not pulled.done:
            self._store.wait()
        rows = pulled.get()
        assert rows is not None
        gradients = np.zeros((len(rows), self._layout.parameters), np.float32)
        loss, floor = kernels.batch_gradients(
            rows, batch.at_i, batch.at_j, batch.counts, columns, self._options.dim, self._options.x_max,
            self._options.alpha, gradients,
        )  # fmt: skip
        check_finite(loss, "a minibatch")
        if self._options.mean_gradient:
            gradients *= 2.0 / len(batch.counts)
        rate = self._options.rate(self._done / self._total)
        pushes.append(self._store.push_rows("gradient", batch.rows, gradients, rate))
        pushes[:] = settled(pushes)
        return len(batch.counts), loss, floor, kernels.mean_norm(rows, columns, self._options.dim)
