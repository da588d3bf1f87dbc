"""Train leased strips: lease, pull, compute, push, until no more are granted. The loop is the same for every store.

The rows of a strip's own partition stay here while it visits other partitions: only those of their rows that the strip
needs are pulled, and pushed after the visit. The rows of the next visits, and of the next strip, are prefetched.
No sockets.
"""

import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import reduce
from operator import xor
from typing import Self

import numpy as np

from glovewire.common.array_types import Array, Indices, Rows
from glovewire.common.client.pending import Pending, still_pending
from glovewire.common.endings import Ending, RunEnd
from glovewire.common.errors import RunOver, TrainingDiverged, parse_ending
from glovewire.common.model.bfloat16 import BFLOAT16
from glovewire.common.model.bfloat16_kernels import subtract_from, widen
from glovewire.common.model.options import TrainingOptions
from glovewire.common.model.random_streams import Purpose, stream
from glovewire.common.model.rounds import Rounds
from glovewire.common.model.row_layout import RowLayout
from glovewire.common.protocol import messages as m
from glovewire.common.storage.dataset import Dataset

from ..kernels import glove as kernels
from ..kernels.objectives import OBJECTIVES, Sums, Tiles, renumbered
from ..stores.interface import Change, Store, empty_aligned
from .loss_sums import MakeReport, check_finite
from .minibatch_trainer import MinibatchTrainer
from .prefetch import PrefetchWindow, needs_visit

PORTION_ENTRIES = 1 << 18
STUCK_S = 1.0
"""Time without any row after which those that were pulled are overdue."""
STRIPES_TOGETHER = 8
"""Stripes whose tiles are trained in one shuffled order: the rows of 8,192 words, 17 MB, stay in the last cache."""


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
class Visit:
    """Blocks of a strip between its own partition and `partition`: the rows pulled, or `rows` of them if not all."""

    partition: int
    rows: Indices | None
    pulled: Pending[Array]
    nbytes: int


@dataclass
class LocalRows:
    """Rows to train, and their values `before`, which are subtracted for a push; None if the push assigns the rows."""

    values: Rows
    before: Array | None

    @classmethod
    def of(cls, pulled: Pending[Array], *, adds: bool) -> Self:
        """Return float32 rows of what was pulled; with `adds`, and always of bfloat16, with those before."""
        rows = pulled.get()
        assert rows is not None
        if rows.dtype == BFLOAT16:
            values = empty_aligned(*rows.shape)
            widen(rows, values)
            return cls(values, rows)
        return cls(rows, rows.copy() if adds else None)

    def change(self) -> Array:
        """Return what to push; the rows must not be trained any more."""
        if self.before is None:
            return self.values
        if self.before.dtype == BFLOAT16:
            subtract_from(self.values, self.before)
            return self.before
        return np.subtract(self.values, self.before, out=self.before)


@dataclass
class Task:
    """A leased strip of partition `own`: its rows, the partitions to visit, and the visits whose rows are pulled.

    `local` are its rows once it is in training.
    """

    granted: m.Granted
    own: int
    rows: Pending[Array]
    nbytes: int
    ahead: deque[int]
    left: int
    visits: deque[Visit] = field(default_factory=deque)
    local: LocalRows | None = None
    pushes: list[Pending[int]] = field(default_factory=list)
    sums: Sums = (0.0, 0.0, 0)
    seconds: float = 0.0

    @property
    def is_ready(self) -> bool:
        """Return whether the rows of the next visit have arrived."""
        return bool(self.visits) and self.rows.done and self.visits[0].pulled.done

    @property
    def missing(self) -> int:
        """Return how many messages with pulled rows have not arrived."""
        return self.rows.missing + sum(visit.pulled.missing for visit in self.visits)


@dataclass
class UnreportedStrip:
    """A trained strip with unanswered pushes: the report to send then, and the last push's least latency (`took_s`)."""

    pushes: list[Pending[int]]
    report: MakeReport
    pushed: float
    took_s: float = 0.0

    @property
    def done(self) -> bool:
        """Return whether all pushes are answered; raise the error of one that failed."""
        self.pushes = [push for push in self.pushes if not push.done or push.get()]
        return all(push.done for push in self.pushes)


class BlockTrainer:
    """Leases strips and trains them on local copies of their rows."""

    def __init__(self, store: Store, dataset: Dataset, options: TrainingOptions) -> None:
        self._store, self._dataset, self._options = store, dataset, options
        self._layout, self._objective = RowLayout.of(options), OBJECTIVES[options.objective]
        self._rounds = Rounds(dataset.layout.partitions, options.epochs)
        self._exclusive = options.consistency == "exclusive"
        self._in_place = store.in_place
        self._bfloat16 = options.sends_bfloat16 and not store.in_place
        self._tasks: list[Task] = []
        self._window = PrefetchWindow()
        self._distinct: dict[tuple[int, int], Indices | None] = {}
        self._unreported: list[UnreportedStrip] = []
        self._reports: list[Pending[m.Recorded]] = []
        self._lease: Pending[m.Granted | m.Done] | None = None
        self._end: RunEnd | None = None
        self._missing, self._moved_at = 0, time.perf_counter()

    def run(self) -> RunEnd:
        """Train every granted strip; return why no more are granted."""
        try:
            while self._end is None or self._tasks:
                self._collect()
                task = min((task for task in self._tasks if task.is_ready), key=_round, default=None)
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
        """Keep one lease request open, pull rows, and report strips whose pushes are answered."""
        if self._lease is not None and self._lease.done:
            answer, self._lease = self._lease.get(), None
            if isinstance(answer, m.Granted):
                self._tasks.append(self._task(answer))
                self._tasks.sort(key=_round)
            elif answer is not None:
                self._end = parse_ending(answer.ending, answer.text)
        if self._lease is None and self._end is None and (self._needs_strip() or self._is_stuck()):
            self._lease = self._store.lease()
        for place, task in enumerate(self._tasks):
            self._prefetch(task, needed=place == 0)
        now = time.perf_counter()
        for trained in self._unreported:
            if not trained.done:
                trained.took_s = now - trained.pushed
        for trained in [each for each in self._unreported if each.done]:
            self._unreported.remove(trained)
            self._window.pushed(trained.took_s)
            self._reports.append(self._store.report(trained.report))
        self._reports = still_pending(self._reports)

    def _needs_strip(self) -> bool:
        total = self._entries(self._tasks[0].own, range(self._tasks[0].own + 1)) if self._tasks else 0
        left = self._tasks[0].left / total if total else 0.0
        return self._window.needs_strip(len(self._tasks), sum(task.nbytes for task in self._tasks[1:]), left)

    def _is_stuck(self) -> bool:
        """Return whether pulled rows are overdue: they may wait for a strip that a lost worker gave back."""
        if any(task.is_ready for task in self._tasks):
            return False
        missing = sum(task.missing for task in self._tasks)
        if missing != self._missing:
            self._missing, self._moved_at = missing, time.perf_counter()
        return time.perf_counter() - self._moved_at > STUCK_S

    def _task(self, granted: m.Granted) -> Task:
        """Pull the own rows of a strip, which are the rows of its first visit as well."""
        own, *others = self._rounds.visits(granted.round)
        pulled = self._pull(granted, own, None)
        nbytes = self._nbytes(self._dataset.layout.size(own))
        task = Task(granted, own, pulled, nbytes, deque(others), self._entries(own, [own, *others]))
        task.visits.append(Visit(own, None, pulled, 0))
        return task

    def _prefetch(self, task: Task, *, needed: bool) -> None:
        """Pull the rows of the next visits of a strip: several while it is `needed` next, else one."""
        while task.ahead and (
            needs_visit(len(task.visits), sum(each.nbytes for each in task.visits)) if needed else len(task.visits) < 2
        ):
            other = task.ahead.popleft()
            rows = self._rows_of(task.own, other)
            count = self._dataset.layout.size(other) if rows is None else len(rows)
            pulled = self._pull(task.granted, other, rows)
            task.visits.append(Visit(other, rows, pulled, self._nbytes(count)))

    def _nbytes(self, rows: int) -> int:
        """Return the bytes of pulled rows."""
        return rows * self._layout.width * self._options.wire_bytes

    def _pull(self, granted: m.Granted, partition: int, rows: Indices | None) -> Pending[Array]:
        version = granted.round if self._exclusive else m.NO_VERSION
        return self._store.pull_range(*self._dataset.layout.span(partition), version, rows, bfloat16=self._bfloat16)

    def _rows_of(self, own: int, other: int) -> Indices | None:
        """Return the rows of another partition that a strip needs; None for all, which a store in place returns."""
        if self._in_place:
            return None
        if (own, other) not in self._distinct:
            rows = self._dataset.distinct(own, other)
            self._distinct[own, other] = rows if len(rows) < self._dataset.layout.size(other) else None
        return self._distinct[own, other]

    def _entries(self, own: int, others: Iterable[int]) -> int:
        """Return how many stored entries there are between a partition and others."""
        pairs = (pair for other in others for pair in self._dataset.layout.strip(own, other))
        return sum(last - first for first, last in (self._dataset.block_range(a, b) for a, b in pairs))

    def _train(self, task: Task) -> None:
        """Train the next visit of a ready strip and push it; after the last one, push and report the strip."""
        began = time.perf_counter()
        visit, adds = task.visits.popleft(), not self._exclusive and not self._in_place
        task.local = own = task.local or LocalRows.of(task.rows, adds=adds)
        others = own if visit.partition == task.own else LocalRows.of(visit.pulled, adds=adds)
        loss, bias_only, covered = self._compute(task, visit, own.values, others.values)
        task.sums = task.sums[0] + loss, task.sums[1] + bias_only, task.sums[2] + covered
        if others is not own:
            self._push(task, visit.partition, visit.rows, others)
        task.seconds += time.perf_counter() - began
        self._moved_at = time.perf_counter()
        if not task.visits and not task.ahead:
            self._finish(task, own)

    def _push(self, task: Task, partition: int, numbers: Indices | None, rows: LocalRows) -> None:
        change = Change(*self._dataset.layout.span(partition), rows.change(), numbers)
        task.pushes.append(self._store.push_range("assign" if rows.before is None else "add", task.granted, change))

    def _finish(self, task: Task, own: LocalRows) -> None:
        """Push the own rows of a trained strip; its report waits until all pushes are answered."""
        self._tasks.remove(task)
        norm = kernels.mean_norm(own.values, self._layout.columns, self._options.dim)
        self._push(task, task.own, None, own)
        self._window.trained(task.seconds)
        loss, bias_only, entries = task.sums
        pushes = list(task.pushes)

        def report(sequence: int, sent: int) -> m.Report:
            receipt = reduce(xor, (push.get() or 0 for push in pushes), 0)
            lease, seconds = task.granted.lease, task.seconds
            return m.Report(sequence, lease, entries, loss, bias_only, norm, seconds, sent, receipt)

        self._unreported.append(UnreportedStrip(pushes, report, time.perf_counter()))

    def _compute(self, task: Task, visit: Visit, own: Rows, others: Rows) -> Sums:
        """Train the blocks of a visit; `own` and `others` are the rows of the strip's partition and of the other's."""
        layout, options, dataset = self._dataset.layout, self._options, self._dataset
        round, epoch = task.granted.round, self._rounds.epoch(task.granted.round)
        rate = options.rate(round / self._rounds.total)
        shares = {task.own: dataset.frequencies[slice(*layout.span(task.own))]}
        if visit.partition != task.own:
            shares[visit.partition] = dataset.frequencies[
                slice(*layout.span(visit.partition)) if visit.rows is None else visit.rows
            ]
        loss, bias_only, covered = 0.0, 0.0, 0
        for a, b in layout.strip(task.own, visit.partition):
            entries, starts = dataset.block(a, b)
            draw = stream(options.seed, Purpose.TILES, (epoch << 32) + layout.block_index[a, b])
            order = shuffled_tiles(draw, layout.stripes(b), layout.tile_rows(a))
            seed = int(draw.integers(1 << 31))
            left, right = (own, others) if a == task.own else (others, own)
            for tiles in tile_portions(order, starts):
                piece = Tiles(entries, (shares[a], shares[b]), starts, tiles, tiles, seed, layout.symmetric, a == b)
                if visit.rows is not None:
                    piece = renumbered(
                        piece, 0 if a == visit.partition else 1, visit.rows - layout.bounds[visit.partition]
                    )
                sums = self._objective.train(left, right, piece, self._layout, options, rate)
                loss, bias_only, covered = loss + sums[0], bias_only + sums[1], covered + sums[2]
                task.left -= int((starts[tiles + 1] - starts[tiles]).sum())
                self._store.poll()
                self._collect()
            check_finite(loss, f"block ({a}, {b}) of epoch {epoch + 1}")
        return loss, bias_only, covered


def _round(task: Task) -> int:
    return task.granted.round


def shuffled_tiles(draw: np.random.Generator, stripes: int, tiles: int) -> Indices:
    """Return the numbers of a block's tiles, `tiles` for each of `stripes`, shuffled in STRIPES_TOGETHER at a time."""
    order = draw.permutation(stripes)
    together = (order[n : n + STRIPES_TOGETHER, None] for n in range(0, stripes, STRIPES_TOGETHER))
    shuffled = (draw.permutation((some * tiles + np.arange(tiles)).ravel()) for some in together)
    return np.concatenate([np.zeros(0, np.int64), *shuffled])


def tile_portions(order: Indices, starts: Indices) -> Iterator[Indices]:
    """Yield `order` (tiles of a block) in pieces of about PORTION_ENTRIES entries, to read messages in between."""
    order = order[starts[order] < starts[order + 1]]
    if len(order):
        sizes = np.cumsum(starts[order + 1] - starts[order])
        cuts = np.searchsorted(sizes, np.arange(PORTION_ENTRIES, int(sizes[-1]), PORTION_ENTRIES))
        yield from np.split(order, np.unique(cuts))
