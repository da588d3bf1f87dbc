"""The same training in virtual time: the server's and the worker's own arithmetic, without processes or sockets.

An event queue stands for the network: a gradient arrives when its computation and its latency have passed, and what
waits at the server waits. One process, as fast as it computes, and the same figures however busy the machine is.
"""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from common import messages as m
from common.dataset import Dataset
from common.options import TrainingOptions
from common.rows import RowLayout
from server import consistency, optimizers
from server.consistency import BEGINNING, OBSERVER
from server.cuts import Cuts
from server.exchange import Exchange
from server.table import Table
from worker import kernels
from worker.batches import Batch, RandomBatches
from worker.latency import Latency

from .crowd import DIVERGED, NOBODY, SAMPLE_ENTRIES, Scene, Seen

COMPUTE_S = 0.005
"""What a worker is taken to compute for one gradient."""
LOOKS = 100
"""So often the loss is looked at: in equal times, and in equal numbers of gradients."""


@dataclass(order=True)
class Arrival:
    """A gradient on its way; it arrives at `t`."""

    t: float
    worker: int
    push: m.Push = field(compare=False)


class VirtualGlove:
    """Minibatches of a dataset on one shard, `Scene` by `Scene`."""

    def __init__(self, dataset: Path) -> None:
        self._dataset = Dataset.open(dataset)
        self._sample = RandomBatches(self._dataset, SAMPLE_ENTRIES, 0, NOBODY).next()

    def watch(self, options: TrainingOptions, scene: Scene) -> Seen:
        """Train until it is complete, has diverged, or `scene.seconds` have passed."""
        return _Run(self._dataset, self._sample, options, scene).seen()


class _Run:
    """One training: workers that pull, compute and push, and a server that answers."""

    def __init__(self, dataset: Dataset, sample: Batch, options: TrainingOptions, scene: Scene) -> None:
        self._options, self._scene, self._sample = options, scene, sample
        self._layout, rows = RowLayout.of(options), dataset.layout.rows
        values, versions = self._layout.initial(0, rows, options), np.zeros(rows, np.int64)
        step = optimizers.make(options)
        self._table = Table("rows", 0, values, self._layout.parameters, step, versions)
        self._mode = consistency.make(options, dataset.layout.bounds, BEGINNING, scene.workers)
        cuts = Cuts(self._table, self._mode, options.epochs, 0, dict)
        self._exchange = Exchange(self._table, self._mode, options, cuts, Counter())
        self._total = dataset.total_entries * options.epochs
        self._batches = [RandomBatches(dataset, options.batch_size, options.seed, n) for n in range(scene.workers)]
        self._delays = [self._law(n).draws(options.seed, n) for n in range(scene.workers)]
        self._sequences = [0] * scene.workers
        self._way: list[Arrival] = []
        self._parked: dict[int, Batch] = {}

    def seen(self) -> Seen:
        """Train, and look about LOOKS times."""
        seen, last = Seen(), -(-self._total // self._options.batch_size)
        self._look(seen, 0.0)
        for worker in range(self._scene.workers):
            self._exchange.joined(worker)
        for worker in range(self._scene.workers):
            self._begin(worker, 0.0)
        every, t = max(last // LOOKS, 1), 0.0
        while self._mode.gradients < last and seen.ended == "complete":
            arrival = heapq.heappop(self._way)
            t = arrival.t
            self._exchange.take(arrival.push, arrival.worker)
            self._begin(arrival.worker, t)
            self._unpark(t)
            late = t >= seen.t[-1] + self._scene.seconds / LOOKS
            if late or self._mode.gradients >= seen.gradients[-1] + every:
                self._look(seen, t)
        if seen.ended == "complete":
            self._look(seen, t)
        seen.staleness, seen.row_ages = self._exchange.staleness.as_fields(), self._exchange.ages.as_fields()
        return seen

    def _law(self, worker: int) -> Latency:
        return Latency.parse(self._scene.latency[min(worker, len(self._scene.latency) - 1)])

    def _begin(self, worker: int, t: float) -> None:
        self._pull(worker, self._batches[worker].next(), t)

    def _unpark(self, t: float) -> None:
        for worker in sorted(self._parked):
            self._pull(worker, self._parked.pop(worker), t)

    def _pull(self, worker: int, batch: Batch, t: float) -> None:
        """Let a worker have its rows and compute, or wait."""
        rows = self._exchange.answer(m.Pull("rows", 0, 0, m.NO_VERSION, 0, batch.rows), worker)
        if rows is None:
            self._parked[worker] = batch
            return
        gradients, _ = self._gradients(batch, rows.values)
        if self._options.mean_gradient:
            gradients *= 2.0 / len(batch.counts)
        if not np.isfinite(gradients).all():
            gradients[:] = 0  # the next look sees what has become of the table
        rate = self._options.rate(rows.gradients * self._options.batch_size / self._total)
        self._sequences[worker] += 1
        push = m.Push(
            "rows", self._sequences[worker], "gradient", 0, 0, rows.version, -1, rate, gradients, batch.rows,
            rows.versions,
        )  # fmt: skip
        heapq.heappush(self._way, Arrival(t + COMPUTE_S + self._delays[worker](), worker, push))

    def _look(self, seen: Seen, t: float) -> None:
        rows = self._exchange.answer(m.Pull("rows", 0, 0, m.NO_VERSION, 0, self._sample.rows), OBSERVER)
        assert rows is not None
        loss = self._gradients(self._sample, rows.values)[1] / len(self._sample.counts)
        seen.t.append(t)
        seen.gradients.append(self._mode.gradients)
        seen.loss.append(loss)
        if not loss <= DIVERGED * seen.loss[0]:
            seen.ended = "diverged"
        elif t > self._scene.seconds:
            seen.ended = "out of time"

    def _gradients(self, batch: Batch, values: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.float32], float]:
        gradients = np.zeros((len(batch.rows), self._layout.parameters), np.float32)
        loss, _ = kernels.batch_gradients(
            values, batch.at_i, batch.at_j, batch.counts, self._layout.columns, self._options.dim,
            self._options.x_max, self._options.alpha, gradients,
        )  # fmt: skip
        return gradients, float(loss)
