"""Simulate a training in virtual time with the code of server and worker, but without processes or sockets.

An event queue replaces the network: a gradient arrives after its computation time and latency. The result does not
depend on the load of the machine.
"""

import heapq
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from glovewire.common.model.options import TrainingOptions
from glovewire.common.protocol import messages as m
from glovewire.server.checkpoints.cuts import Cuts
from glovewire.server.consistency.interface import BEGINNING, OBSERVER, make_consistency
from glovewire.server.core.pull_push import PullPush
from glovewire.server.core.waiting import WaitingRequests
from glovewire.server.table import optimizers
from glovewire.server.table.table import Table
from glovewire.worker.simulated_latency import Latency

from .emulation import DIVERGED, Trace
from .trainings import Conditions
from .workloads import Problem

COMPUTE_S = 0.005
"""Assumed computation time of one gradient, in seconds."""
SAMPLES = 100
"""The loss is sampled after every 1/SAMPLES of the time limit, or of all gradients, whichever comes first."""


@dataclass(order=True)
class Arrival:
    """A push of a gradient by `worker` that arrives at time `t` (seconds of virtual time)."""

    t: float
    worker: int
    push: m.Push = field(compare=False)


def simulate(problem: Problem, options: TrainingOptions, conditions: Conditions) -> Trace:
    """Train on one shard until the run is complete, has diverged or has used up its time."""
    return _Simulation(problem, options, conditions).trace()


class _Simulation:
    """State of one training: one shard, and workers that pull, compute and push."""

    def __init__(self, problem: Problem, options: TrainingOptions, conditions: Conditions) -> None:
        self._problem, self._options, self._scene = problem, options, conditions
        values, parameters = problem.initial(options)
        versions, step = np.zeros(len(values), np.int64), optimizers.make(options)
        self._table = Table("rows", 0, values, parameters, step, versions)
        self._mode = make_consistency(options, np.zeros(2, np.int64), BEGINNING, conditions.workers)
        cuts = Cuts(self._table, self._mode, options.epochs, 0, dict)
        self._pull_push = PullPush(self._table, self._mode, options, cuts, Counter(), WaitingRequests())
        self._total = problem.examples * options.epochs
        self._batches = [problem.batches(options, n) for n in range(conditions.workers)]
        laws = [Latency.parse(conditions.latency_of(n)) for n in range(conditions.workers)]
        self._delays = [law.draws(options.seed, n) for n, law in enumerate(laws)]
        self._sequences = [0] * conditions.workers
        self._in_flight: list[Arrival] = []
        self._waiting: dict[int, Any] = {}  # batch by worker

    def trace(self) -> Trace:
        """Train to the end and return the samples of the loss."""
        trace, last = Trace(), -(-self._total // self._options.batch_size)
        self._sample(trace, 0.0)
        for worker in range(self._scene.workers):
            self._pull_push.joined(worker)
        for worker in range(self._scene.workers):
            self._begin(worker, 0.0)
        every, t = max(last // SAMPLES, 1), 0.0
        while self._mode.gradients < last and trace.ended == "complete":
            arrival = heapq.heappop(self._in_flight)
            t = arrival.t
            self._pull_push.apply(arrival.push, arrival.worker)
            self._begin(arrival.worker, t)
            for worker in sorted(self._waiting):
                self._pull(worker, self._waiting.pop(worker), t)
            late = t >= trace.t[-1] + self._scene.seconds / SAMPLES
            if late or self._mode.gradients >= trace.gradients[-1] + every:
                self._sample(trace, t)
        if trace.ended == "complete":
            self._sample(trace, t)
        trace.staleness, trace.row_ages = self._pull_push.staleness.as_fields(), self._pull_push.ages.as_fields()
        return trace

    def _begin(self, worker: int, t: float) -> None:
        self._pull(worker, self._batches[worker](), t)

    def _pull(self, worker: int, batch: Any, t: float) -> None:
        """Answer a worker's pull at time `t` and queue its gradient, or keep its batch if the pull must wait."""
        rows = self._pull_push.read(m.Pull("rows", 0, 0, m.NO_VERSION, batch.rows), worker)
        if rows is None:
            self._waiting[worker] = batch
            return
        gradients, _ = self._problem.gradients(batch, rows.values, self._options)
        if not np.isfinite(gradients).all():
            gradients[:] = 0  # the next sample shows what became of the table
        rate = self._options.rate(rows.gradients * self._options.batch_size / self._total)
        self._sequences[worker] += 1
        push = m.Push(
            "rows", self._sequences[worker], "gradient", 0, 0, rows.version, -1, rate, gradients, batch.rows,
            rows.versions,
        )  # fmt: skip
        heapq.heappush(self._in_flight, Arrival(t + COMPUTE_S + self._delays[worker](), worker, push))

    def _sample(self, trace: Trace, t: float) -> None:
        sample = self._problem.sample
        rows = self._pull_push.read(m.Pull("rows", 0, 0, m.NO_VERSION, sample.rows), OBSERVER)
        assert rows is not None
        loss = self._problem.gradients(sample, rows.values, self._options)[1]
        trace.t.append(t)
        trace.gradients.append(self._mode.gradients)
        trace.loss.append(loss)
        if not loss <= DIVERGED * trace.loss[0]:
            trace.ended = "diverged"
        elif t > self._scene.seconds:
            trace.ended = "out of time"
