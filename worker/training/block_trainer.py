"""Train leased blocks: lease, pull, compute, push, until no more are granted. The loop is the same for every store.

The rows of the next blocks are prefetched while a block is trained. In exclusive order, rows that this worker trained
last are pushed, but not pulled again. No sockets.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from glovewire.common.array_types import Indices, Rows
from glovewire.common.endings import Ending, RunEnd
from glovewire.common.errors import RunOver, TrainingDiverged, parse_ending
from glovewire.common.model.options import TrainingOptions
from glovewire.common.model.random_streams import Purpose, stream
from glovewire.common.model.row_layout import RowLayout
from glovewire.common.protocol import messages as m
from glovewire.common.storage.dataset import Dataset

from ..kernels import glove as kernels
from ..kernels.objectives import OBJECTIVES, Tiles
from ..stores.interface import Change, Reply, Store, aligned_copy, still_pending
from .loss_sums import MakeReport, check_finite
from .minibatch_trainer import MinibatchTrainer
from .prefetch import PartitionCache, PrefetchWindow, cache_capacity

PORTION_ENTRIES = 1 << 18
STUCK_S = 1.0


def train(store: Store, dataset: Dataset, options: TrainingOptions, worker: int, step: int = 0) -> RunEnd:
    """Train until the run is over; leave the store and return why training ended.

    Minibatches are drawn from the random stream of `worker`, from step `step` on. If the loss is not finite, reports
    the failure to the store and raises TrainingDiverged.
    """
    trainer: BlockTrainer | MinibatchTrainer = (
        BlockTrainer(store, dataset, options)
        if options.schedule == "blocks"
        else MinibatchTrainer(store, dataset, options, worker, step)
    )
    try:
        end = trainer.run()
    except TrainingDiverged as error:
        store.leave(RunEnd(Ending.FAILED, str(error)))
        raise
    store.leave(end)
    return end


@dataclass
class Task:
    """A leased block, and the rows pulled for it, by partition; rows of a partition not pulled come from the cache."""

    granted: m.Granted
    pulled: dict[int, Reply[Rows]]

    @property
    def partitions(self) -> set[int]:
        """Return the one or two partitions of the block."""
        return {self.granted.a, self.granted.b}


@dataclass
class UnreportedBlock:
    """A trained block whose push is unanswered: the report to send then, and the push's least latency (`took_s`)."""

    push: Reply[int]
    report: MakeReport
    pushed: float
    took_s: float = 0.0


class BlockTrainer:
    """Leases blocks and trains them on local copies of their rows."""

    def __init__(self, store: Store, dataset: Dataset, options: TrainingOptions) -> None:
        self._store, self._dataset, self._options = store, dataset, options
        self._layout, self._objective = RowLayout.of(options), OBJECTIVES[options.objective]
        self._exclusive = options.consistency == "exclusive"
        self._in_place = store.in_place
        self._tasks: list[Task] = []
        partition_bytes = int(np.diff(dataset.layout.bounds).max()) * self._layout.width * 4
        self._window = PrefetchWindow(partition_bytes)
        self._cache: PartitionCache[tuple[Rows, Reply[int]]] = PartitionCache(cache_capacity(partition_bytes))
        self._unreported: list[UnreportedBlock] = []
        self._reports: list[Reply[m.Recorded]] = []
        self._lease: Reply[m.Granted | m.Done] | None = None
        self._end: RunEnd | None = None
        self._trained_at = time.perf_counter()

    def run(self) -> RunEnd:
        """Train every granted block; return why no more are granted."""
        try:
            while self._end is None or self._tasks:
                self._collect()
                task = self._next_ready()
                if task is not None:
                    self._train(task)
                elif self._end is None or self._tasks:
                    self._store.wait()
            while self._unreported or self._reports:
                self._store.wait()
                self._collect()
        except RunOver as error:
            return self._end or error.end
        assert self._end is not None
        return self._end

    def _collect(self) -> None:
        """Keep one lease request open, pull the rows of granted blocks, and report blocks whose pushes are answered."""
        if self._lease is not None and self._lease.done:
            answer, self._lease = self._lease.get(), None
            if isinstance(answer, m.Granted):
                self._tasks.append(self._pull(answer))
            elif answer is not None:
                self._end = parse_ending(answer.ending, answer.text)
        if self._lease is None and self._end is None and (self._needs_task() or self._is_stuck()):
            self._lease = self._store.lease()
        now = time.perf_counter()
        for trained in self._unreported:
            if trained.push.done:
                trained.push.get()
                self._window.pushed(trained.took_s)
                self._reports.append(self._store.report(trained.report))
            else:
                trained.took_s = now - trained.pushed
        self._unreported = [trained for trained in self._unreported if not trained.push.done]
        self._reports = still_pending(self._reports)

    def _needs_task(self) -> bool:
        return len(self._tasks) < self._window.tasks(sum(len(task.pulled) for task in self._tasks))

    def _is_stuck(self) -> bool:
        """Return whether pulled rows are overdue: they may wait for a block that a lost worker gave back."""
        return self._next_ready() is None and time.perf_counter() - self._trained_at > STUCK_S

    def _next_ready(self) -> Task | None:
        ready = [
            task
            for task in self._tasks
            if all(reply.done for reply in task.pulled.values())
            and all(self._cache.has((p, task.granted.round)) for p in task.partitions - task.pulled.keys())
        ]
        return min(ready, key=lambda task: task.granted.round, default=None)

    def _pull(self, granted: m.Granted) -> Task:
        """Pull the rows of a block, except those that are in the cache or that an earlier task will add to it."""
        task = Task(granted, {})
        for partition in task.partitions:
            if not self._will_be_cached(partition, granted.round):
                first, last = self._range(partition)
                version = granted.round if self._exclusive else m.NO_VERSION
                task.pulled[partition] = self._store.pull_range(first, last, version)
        return task

    def _will_be_cached(self, partition: int, round: int) -> bool:
        if not self._exclusive or self._in_place:
            return False
        return self._cache.has((partition, round)) or any(
            task.granted.round == round - 1 and partition in task.partitions for task in self._tasks
        )

    def _range(self, partition: int) -> tuple[int, int]:
        bounds = self._dataset.layout.bounds
        return int(bounds[partition]), int(bounds[partition + 1])

    def _train(self, task: Task) -> None:
        began = time.perf_counter()
        granted = task.granted
        local = {partition: self._rows(task, partition) for partition in task.partitions}
        before = {} if self._exclusive or self._in_place else {p: r.copy() for p, r in local.items()}
        loss, bias_only, entries = self._compute(granted, local[granted.a], local[granted.b])
        self._tasks.remove(task)
        self._trained_at = time.perf_counter()
        push = self._push(granted, local, before)
        norms = [kernels.mean_norm(r, self._layout.columns, self._options.dim) for r in local.values()]
        now = time.perf_counter()
        seconds = now - began
        self._window.trained(seconds)

        def report(sequence: int, sent: int) -> m.Report:
            norm, receipt = float(np.mean(norms)), push.get() or 0
            return m.Report(sequence, granted.lease, entries, loss, bias_only, norm, seconds, sent, receipt)

        self._unreported.append(UnreportedBlock(push, report, now))

    def _rows(self, task: Task, partition: int) -> Rows:
        """Return the rows of a partition of a ready task; copy cached rows if their last push may still read them."""
        if (reply := task.pulled.get(partition)) is None:
            rows, push = self._cache.take((partition, task.granted.round))
            return rows if push.done else aligned_copy(rows)
        pulled = reply.get()
        assert pulled is not None
        return pulled

    def _compute(self, granted: m.Granted, rows_a: Rows, rows_b: Rows) -> tuple[float, float, int]:
        layout, options = self._dataset.layout, self._options
        a, b, total = granted.a, granted.b, layout.partitions * options.epochs
        frequencies = {p: self._dataset.frequencies[slice(*self._range(p))] for p in (a, b)}
        pairs = [(a, b)] if layout.symmetric or a == b else [(a, b), (b, a)]
        loss, bias_only, covered, rate = 0.0, 0.0, 0, options.rate(granted.round / total)
        for x, y in pairs:
            entries, starts = self._dataset.block(x, y)
            block = layout.block_index[x, y]
            draw = stream(options.seed, Purpose.TILES, (granted.epoch << 32) + block)
            order = draw.permutation(len(starts) - 1)
            seed, left, right = int(draw.integers(1 << 31)), *((rows_a, rows_b) if x == a else (rows_b, rows_a))
            for tiles in tile_portions(order, starts):
                piece = Tiles(entries, (frequencies[x], frequencies[y]), starts, tiles, seed, layout.symmetric, x == y)
                sums = self._objective.train(left, right, piece, self._layout, options, rate)
                loss, bias_only, covered = loss + sums[0], bias_only + sums[1], covered + sums[2]
                self._store.poll()
                self._collect()
        check_finite(loss, f"block ({a}, {b}) of epoch {granted.epoch + 1}")
        return loss, bias_only, covered

    def _push(self, granted: m.Granted, local: dict[int, Rows], before: dict[int, Rows]) -> Reply[int]:
        """Push trained rows or, with `before`, the differences; in exclusive order, also cache the rows."""
        for partition, old in before.items():
            np.subtract(local[partition], old, out=old)
        changes = [Change(partition, self._range(partition)[0], rows) for partition, rows in (before or local).items()]
        push = self._store.push_block("add" if before else "assign", granted, changes)
        if self._exclusive and not self._in_place:
            needed = {(p, task.granted.round) for task in self._tasks for p in task.partitions - task.pulled.keys()}
            for partition, rows in local.items():
                self._cache.put((partition, granted.round + 1), (rows, push), needed)
        return push


def tile_portions(order: Indices, starts: Indices) -> Iterator[Indices]:
    """Yield `order` (tiles of a block) in pieces of about PORTION_ENTRIES entries, to read messages in between."""
    sizes = np.cumsum((starts[1:] - starts[:-1])[order])
    cuts = np.searchsorted(sizes, np.arange(PORTION_ENTRIES, int(sizes[-1]) if len(sizes) else 0, PORTION_ENTRIES))
    yield from np.split(order, np.unique(cuts))
