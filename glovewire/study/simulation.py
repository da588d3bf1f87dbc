"""The same training in virtual time: the server's and the worker's own arithmetic, without processes or sockets.

An event queue stands for the network: a gradient arrives when its computation and its latency have passed, and what
waits at the server waits. One process, as fast as it computes, and the same figures however busy the machine is.
"""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from glovewire.common.model.options import TrainingOptions
from glovewire.common.protocol import messages as m
from glovewire.server.checkpoints.cuts import Cuts
from glovewire.server.consistency.interface import BEGINNING, OBSERVER, make_consistency
from glovewire.server.core.pull_push import Exchange
from glovewire.server.table import optimizers
from glovewire.server.table.table import Table
from glovewire.worker.simulated_latency import Latency

from .emulation import DIVERGED, Scene, Seen
from .workloads import HasRows, Problem

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


def watch(problem: Problem, options: TrainingOptions, scene: Scene) -> Seen:
    """Train on one shard until it is complete, has diverged, or `scene.seconds` have passed."""
    return _Run(problem, options, scene).seen()


class _Run:
    """One training: workers that pull, compute and push, and a server that answers."""

    def __init__(self, problem: Problem, options: TrainingOptions, scene: Scene) -> None:
        self._problem, self._options, self._scene = problem, options, scene
        values, parameters = problem.initial(options)
        versions, step = np.zeros(len(values), np.int64), optimizers.make(options)
        self._table = Table("rows", 0, values, parameters, step, versions)
        self._mode = make_consistency(options, np.zeros(2, np.int64), BEGINNING, scene.workers)
        cuts = Cuts(self._table, self._mode, options.epochs, 0, dict)
        self._exchange = Exchange(self._table, self._mode, options, cuts, Counter())
        self._total = problem.examples * options.epochs
        self._batches = [problem.batches(options, n) for n in range(scene.workers)]
        self._delays = [self._law(n).draws(options.seed, n) for n in range(scene.workers)]
        self._sequences = [0] * scene.workers
        self._way: list[Arrival] = []
        self._parked: dict[int, HasRows] = {}

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
        self._pull(worker, self._batches[worker](), t)

    def _unpark(self, t: float) -> None:
        for worker in sorted(self._parked):
            self._pull(worker, self._parked.pop(worker), t)

    def _pull(self, worker: int, batch: Any, t: float) -> None:
        """Let a worker have its rows and compute, or wait."""
        rows = self._exchange.answer(m.Pull("rows", 0, 0, m.NO_VERSION, 0, batch.rows), worker)
        if rows is None:
            self._parked[worker] = batch
            return
        gradients, _ = self._problem.gradients(batch, rows.values, self._options)
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
        sample = self._problem.sample
        rows = self._exchange.answer(m.Pull("rows", 0, 0, m.NO_VERSION, 0, sample.rows), OBSERVER)
        assert rows is not None
        loss = self._problem.gradients(sample, rows.values, self._options)[1]
        seen.t.append(t)
        seen.gradients.append(self._mode.gradients)
        seen.loss.append(loss)
        if not loss <= DIVERGED * seen.loss[0]:
            seen.ended = "diverged"
        elif t > self._scene.seconds:
            seen.ended = "out of time"
