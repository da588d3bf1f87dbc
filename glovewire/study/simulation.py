"""Simulate a training in virtual time with the code of server and worker, but without processes or sockets.

An event queue replaces the network: a gradient arrives after its computation time and latency. The result does not
depend on the load of the machine.
"""

import heapq
from collections import Counter
from collections.abc import Callable
from functools import partial

import numpy as np

from glovewire.common.array_types import Indices, Rows
from glovewire.common.client.pending import Pending
from glovewire.common.errors import TrainingDiverged
from glovewire.common.model.options import TrainingOptions
from glovewire.common.protocol import messages as m
from glovewire.server.checkpoints.cuts import Cuts
from glovewire.server.consistency.interface import BEGINNING, OBSERVER, make_consistency
from glovewire.server.core.pull_push import PullPush
from glovewire.server.core.waiting import WaitingRequests
from glovewire.server.table import optimizers
from glovewire.server.table.table import Table
from glovewire.worker.simulated_latency import latencies
from glovewire.worker.stores.interface import Pulled
from glovewire.worker.training.minibatch_trainer import MinibatchTrainer

from .emulation import Trace
from .trainings import Conditions
from .workloads import Problem

COMPUTE_S = 0.005
"""Assumed computation time of one gradient, in seconds."""
SAMPLES = 100
"""The loss is sampled after every 1/SAMPLES of the time limit, or of all gradients, whichever comes first."""


class Simulation:
    """State of one training: one shard, the trainers of all workers, and the gradients in flight."""

    def __init__(self, problem: Problem, options: TrainingOptions, conditions: Conditions) -> None:
        self._problem, self._options, self._scene = problem, options, conditions
        values, parameters = problem.initial(options)
        versions, step = np.zeros(len(values), np.int64), optimizers.make(options)
        table = Table("rows", 0, values, parameters, step, versions)
        self._mode = make_consistency(options, np.zeros(2, np.int64), BEGINNING, conditions.workers)
        cuts = Cuts(table, self._mode, 0, dict)
        self.pull_push = PullPush(table, self._mode, options, cuts, Counter(), WaitingRequests())
        self.now = 0.0
        self._total = problem.examples * options.epochs
        self._arrivals: list[tuple[float, int, Callable[[], None]]] = []
        for worker in range(conditions.workers):
            self.pull_push.joined(worker)
        self._stores = [_Store(self, options, n, conditions.latency_of(n)) for n in range(conditions.workers)]

    def trace(self) -> Trace:
        """Train until the run is complete, has diverged or has used up its time; return the samples of the loss."""
        trace, last = Trace(), -(-self._total // self._options.batch_size)
        self._sample(trace)
        gradients = partial(self._problem.gradients, options=self._options)
        trainers = [
            MinibatchTrainer(store, self._problem.batches(self._options, n), gradients, self._options, self._total)
            for n, store in enumerate(self._stores)
        ]
        every = max(last // SAMPLES, 1)
        try:
            while self._mode.gradients < last and trace.ended == "complete":
                for trainer in trainers:
                    trainer.advance()
                self.now, worker, arrive = heapq.heappop(self._arrivals)
                arrive()
                for store in [self._stores[worker], *self._stores]:
                    store.answer()
                late = self.now >= trace.t[-1] + self._scene.seconds / SAMPLES
                if late or self._mode.gradients >= trace.gradients[-1] + every:
                    self._sample(trace)
        except TrainingDiverged:
            trace.ended = "diverged"
        if trace.ended == "complete":
            self._sample(trace)
        trace.staleness, trace.row_ages = self.pull_push.staleness.as_fields(), self.pull_push.ages.as_fields()
        return trace

    def send(self, worker: int, seconds: float, arrive: Callable[[], None]) -> None:
        """Let a worker's message arrive after `seconds` seconds; each worker has at most one message in flight."""
        heapq.heappush(self._arrivals, (self.now + seconds, worker, arrive))

    def _sample(self, trace: Trace) -> None:
        sample = self._problem.sample
        rows = self.pull_push.read(m.Pull("rows", 0, 0, m.NO_VERSION, sample.rows), OBSERVER)
        assert rows is not None
        loss = self._problem.gradients(sample, rows.values, self._options).mean_loss
        trace.add(self.now, self._mode.gradients, loss)
        if trace.ended == "complete" and self.now > self._scene.seconds:
            trace.ended = "out of time"


class _Store:
    """The store of a worker; implements `BatchStore`. Its pulls are answered when the consistency mode allows it."""

    def __init__(self, shard: Simulation, options: TrainingOptions, worker: int, latency: str) -> None:
        self._shard, self._worker, self._pushes = shard, worker, 0
        self._delay = latencies(latency, options.seed, worker)
        self._waiting: tuple[Indices, Pending[Pulled]] | None = None

    def now(self) -> float:
        """See BatchStore."""
        return self._shard.now

    def pull_rows(self, rows: Indices) -> Pending[Pulled]:
        """See BatchStore."""
        reply: Pending[Pulled] = Pending()
        self._waiting = rows, reply
        self.answer()
        return reply

    def answer(self) -> None:
        """Answer the waiting pull, if that is possible now."""
        if self._waiting is None:
            return
        numbers, reply = self._waiting
        rows = self._shard.pull_push.read(m.Pull("rows", 0, 0, m.NO_VERSION, numbers), self._worker)
        if rows is not None:
            self._waiting = None
            reply.value, reply.missing = Pulled(rows.values, {0: rows.version}, rows.versions, rows.gradients), 0

    def push_rows(
        self, operation: str, rows: Indices, values: Rows, rate: float, pulled: Pulled, wanted: Indices
    ) -> tuple[Pending[bool], Pending[Pulled]]:
        """See BatchStore."""
        self._pushes += 1
        push = m.Push(
            "rows", self._pushes, operation, 0, 0, pulled.clocks[0], -1, rate, values, rows, pulled.versions
        )  # fmt: skip
        applied: Pending[bool] = Pending()
        reply: Pending[Pulled] = Pending()

        def arrive() -> None:
            late = self._shard.pull_push.apply(push, self._worker).late
            applied.value, applied.missing = not late, 0
            self._waiting = wanted, reply

        self._shard.send(self._worker, COMPUTE_S + self._delay(), arrive)
        return applied, reply

    def report(self, report: Callable[[int, int], m.Report]) -> Pending[m.Recorded]:
        """See BatchStore. The simulation counts gradients itself."""
        del report
        return Pending(m.Recorded(stop=False, epoch=0, entries=0), 0)

    def wait(self) -> None:
        """See BatchStore. The simulation does not wait: `advance` returns to it."""

    flush = wait
