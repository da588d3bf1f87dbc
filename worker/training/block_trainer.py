"""Train leased strips: lease, pull, compute, push, until no more are granted. The loop is the same for every store.

`strips` decides what to do next. The rows of a strip's own partition stay in this worker while the strip visits other
partitions; of those, only the rows that the strip needs are pulled, and pushed after the visit. No sockets.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from glovewire.common.array_types import Array, Indices, Rows
from glovewire.common.client.pending import Pending, take_done
from glovewire.common.endings import Ending, RunEnd
from glovewire.common.errors import RunOver, TrainingDiverged, parse_ending
from glovewire.common.model.bfloat16 import BFLOAT16
from glovewire.common.model.bfloat16_kernels import subtract_from, widen
from glovewire.common.model.options import TrainingOptions
from glovewire.common.model.random_streams import Purpose, stream
from glovewire.common.model.rounds import Rounds
from glovewire.common.model.row_layout import RowLayout
from glovewire.common.protocol import messages as m
from glovewire.common.runtime.memory import trim
from glovewire.common.storage.dataset import Dataset

from ..kernels import glove as kernels
from ..kernels.objectives import OBJECTIVES, Sums, Tiles, renumbered
from ..stores.interface import Change, Store, empty_aligned
from ..strip_entries import ALL_ENTRIES, StripEntries
from .loss_sums import check_finite
from .minibatch_trainer import Minibatch, MinibatchTrainer, glove_trainer
from .strips import Instruction, Lease, Load, Pull, Push, Report, Strip, Strips, Train, Visit, told

PORTION_ENTRIES = 1 << 18
TRIM_BYTES = 16 << 20
"""Before a strip whose own rows take more than this, free memory is returned to the kernel, because much of it is in
pieces too small for them. For smaller rows that would save little and cost more, since the pages are cleared again."""
STRIPES_TOGETHER = 8
"""Stripes whose tiles are shuffled together: the rows of 8,192 words, 17 MB, stay in the last-level cache."""

logger = logging.getLogger(__name__)


def train(
    store: Store,
    dataset: Dataset,
    options: TrainingOptions,
    worker: int,
    step: int = 0,
    entries: StripEntries = ALL_ENTRIES,
) -> RunEnd:
    """Train until the run is over; leave the store and return why training ended.

    `entries` loads the entries of strips, unless `dataset` is complete. Minibatches are drawn from the random stream of
    `worker`, starting at `step`. If the loss is not finite, reports the failure to the store and raises
    TrainingDiverged.
    """
    trainer: BlockTrainer | MinibatchTrainer[Minibatch] = (
        BlockTrainer(store, dataset, options, entries)
        if options.schedule == "blocks"
        else glove_trainer(store, dataset, options, worker, step)
    )
    try:
        end = trainer.run()
    except TrainingDiverged as error:
        store.leave(RunEnd(Ending.FAILED, str(error)))
        raise
    store.leave(end)
    return end


@dataclass
class LocalRows:
    """Rows to train, and their values `before` training, to push the difference; None if the push assigns the rows."""

    values: Rows
    before: Array | None

    @classmethod
    def of(cls, pulled: Pending[Array], *, adds: bool) -> Self:
        """Return the pulled rows as float32; with `adds`, or if they are bfloat16, keep their values for `before`."""
        rows = pulled.get()
        if rows.dtype == BFLOAT16:
            values = empty_aligned(*rows.shape)
            widen(rows, values)
            return cls(values, rows)
        return cls(rows, rows.copy() if adds else None)

    def change(self) -> Array:
        """Return the values to push; the rows must not be trained afterwards."""
        if self.before is None:
            return self.values
        if self.before.dtype == BFLOAT16:
            subtract_from(self.values, self.before)
            return self.before
        return np.subtract(self.values, self.before, out=self.before)


@dataclass
class StripResult:
    """Results of a strip so far: sums of the loss, and the XOR of the receipts of its pushes.

    Once its own rows are pushed, at `pushed_at`: their mean norm, and a lower bound of the time the last answer took.
    """

    sums: Sums = (0.0, 0.0, 0)
    pushes: list[Pending[int]] = field(default_factory=list)
    receipt: int = 0
    norm: float = 0.0
    pushed_at: float = 0.0
    took_s: float = 0.0

    def settle(self) -> bool:
        """Combine the receipts that have arrived; return whether all have. Raises the error of a push that failed."""
        for push in take_done(self.pushes):
            self.receipt ^= push.get()
        return not self.pushes


class BlockTrainer:
    """Leases strips and trains them on local copies of their rows."""

    def __init__(
        self, store: Store, dataset: Dataset, options: TrainingOptions, entries: StripEntries = ALL_ENTRIES
    ) -> None:
        self._store, self._dataset, self._options, self._source = store, dataset, options, entries
        self._layout, self._train_tiles = RowLayout.of(options), OBJECTIVES[options.objective]
        self._rounds = Rounds.of(options, dataset.layout.partitions)
        self._exclusive = options.consistency == "exclusive"
        self._in_place = store.in_place
        self._bfloat16 = options.sends_bfloat16 and not store.in_place
        self._strips = Strips(self._rounds, self._entries, self._nbytes, store.now())
        self._distinct: dict[tuple[int, int], Indices | None] = {}
        self._loading: dict[Strip, Pending[None]] = {}
        self._pulled: dict[Visit, Pending[Array]] = {}
        self._own: dict[Strip, LocalRows] = {}
        self._others: dict[Visit, LocalRows] = {}
        self._results: dict[Strip, StripResult] = {}
        self._unanswered: list[Strip] = []
        self._reports: list[Pending[m.Recorded]] = []
        self._lease: Pending[m.Granted | m.Done] | None = None
        self._end: RunEnd | None = None

    def run(self) -> RunEnd:
        """Train every granted strip; return why no more are granted."""
        try:
            while not (self._strips.is_over and not self._reports):
                if not self._go_on():
                    self._store.wait()
        except RunOver as error:
            return self._end or error.end
        assert self._end is not None
        return self._end

    def _go_on(self) -> bool:
        """Do everything that can be done without waiting; return whether anything was done."""
        any_done = False
        while (instruction := self._instruction()) is not None:
            self._carry_out(instruction)
            any_done = True
        return any_done

    def _instruction(self) -> Instruction | None:
        """Pass what has arrived to `strips`, and return what to do next."""
        now = self._store.now()
        if self._lease is not None and self._lease.done:
            answer, self._lease = self._lease.get(), None
            if isinstance(answer, m.Granted):
                self._strips.granted(answer)
            elif isinstance(answer, m.Done):
                self._end = parse_ending(answer.ending, answer.text)
                self._strips.ended()
        self._source.poll()
        for strip, reply in [*self._loading.items()]:
            reply.get()
            if reply.missing != strip.missing:
                self._strips.arrived(strip, reply.missing, now)
            if reply.done:
                del self._loading[strip]
        for visit, pulled in self._pulled.items():
            missing = 0 if pulled.done else pulled.missing
            if missing != visit.missing:
                self._strips.arrived(visit, missing, now)
        for strip in [strip for strip in self._unanswered if self._results[strip].settle()]:
            self._unanswered.remove(strip)
            self._strips.answered(strip, self._results[strip].took_s)
        for result in map(self._results.__getitem__, self._unanswered):
            result.took_s = now - result.pushed_at
        for report in take_done(self._reports):
            report.get()
        return self._strips.next(now)

    def _carry_out(self, instruction: Instruction) -> None:
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug(told(instruction))
        match instruction:
            case Lease():
                self._lease = self._store.lease(self._source.has)
            case Load(strip):
                self._loading[strip] = self._source.load(strip.own)
            case Pull(visit):
                self._pull(visit)
            case Train(visit):
                self._train(visit)
            case Push(visit):
                self._push(visit)
            case Report(strip):
                self._report(strip)

    def _pull(self, visit: Visit) -> None:
        numbers = self._numbers(visit.strip.own, visit.partition)
        version = visit.strip.round if self._exclusive else m.NO_VERSION
        span = self._dataset.layout.span(visit.partition)
        self._pulled[visit] = self._store.pull_range(*span, version, numbers, bfloat16=self._bfloat16)

    def _nbytes(self, own: int, partition: int) -> int:
        """Return the bytes of the rows of a partition that the strip of `own` pulls."""
        numbers = self._numbers(own, partition)
        count = self._dataset.layout.size(partition) if numbers is None else len(numbers)
        return count * self._layout.width * self._options.wire_bytes

    def _numbers(self, own: int, other: int) -> Indices | None:
        """Return the rows of a partition that a strip needs; None for all, as of its own or if a store is in place."""
        if self._in_place or other == own:
            return None
        if (own, other) not in self._distinct:
            rows = self._dataset.distinct(own, other)
            self._distinct[own, other] = rows if len(rows) < self._dataset.layout.size(other) else None
        return self._distinct[own, other]

    def _entries(self, own: int) -> int:
        """Return how many stored entries a round trains in the strip of a partition."""
        spans = (self._dataset.block_range(a, b) for a, b in self._dataset.layout.strip(own))
        return sum(last - first for first, last in spans) * self._options.local_epochs

    def _train(self, visit: Visit) -> None:
        began, strip, pulled = self._store.now(), visit.strip, self._pulled.pop(visit)
        if visit.is_own and visit.nbytes > TRIM_BYTES:
            trim()
        rows = LocalRows.of(pulled, adds=not self._exclusive and not self._in_place)
        if visit.is_own:
            self._own[strip], self._results[strip] = rows, StripResult()
        else:
            self._others[visit] = rows
        sums: Sums = (0.0, 0.0, 0)
        for epoch in self._rounds.epochs_of(strip.round):
            sums = _added(sums, self._compute(epoch, visit, self._own[strip].values, rows.values))
        self._results[strip].sums = _added(self._results[strip].sums, sums)
        now = self._store.now()
        self._strips.trained(now - began, now)

    def _push(self, visit: Visit) -> None:
        """Push the rows of a trained visit; a strip's own rows come last."""
        strip, result = visit.strip, self._results[visit.strip]
        rows = self._own.pop(strip) if visit.is_own else self._others.pop(visit)
        if visit.is_own:
            result.norm = kernels.mean_norm(rows.values, self._layout.columns, self._layout.span)
        numbers = self._numbers(strip.own, visit.partition)
        change = Change(*self._dataset.layout.span(visit.partition), rows.change(), numbers)
        operation = "assign" if rows.before is None else "add"
        result.pushes.append(self._store.push_range(operation, strip.granted, change))
        if visit.is_own:
            self._source.release(strip.own)
            result.pushed_at = self._store.now()
            self._unanswered.append(strip)

    def _report(self, strip: Strip) -> None:
        result = self._results.pop(strip)
        loss, bias_only, entries = result.sums

        def report(sequence: int, sent: int) -> m.Report:
            lease, seconds = strip.granted.lease, strip.seconds
            return m.Report(sequence, lease, entries, loss, bias_only, result.norm, seconds, sent, result.receipt)

        self._reports.append(self._store.report(report))

    def _compute(self, epoch: int, visit: Visit, own: Rows, others: Rows) -> Sums:
        """Train the blocks of a visit: `own` are the rows of the strip's partition, `others` those of the other one."""
        layout, options, dataset = self._dataset.layout, self._options, self._dataset
        strip, other = visit.strip.own, visit.partition
        numbers = self._numbers(strip, other)
        rate = options.rate(self._rounds.progress(visit.strip.round, epoch))
        shares = {
            other: dataset.frequencies[slice(*layout.span(other)) if numbers is None else numbers],
            strip: dataset.frequencies[slice(*layout.span(strip))],
        }
        sums: Sums = (0.0, 0.0, 0)
        for a, b in layout.between(strip, other):
            entries, starts = dataset.block(a, b)
            draw = stream(options.seed, Purpose.TILES, (epoch << 32) + layout.block_index[a, b])
            order = shuffled_tiles(draw, layout.stripes(b), layout.tile_rows(a))
            seed = int(draw.integers(1 << 31))
            left, right = (own, others) if a == strip else (others, own)
            for tiles in tile_portions(order, starts):
                piece = Tiles(entries, (shares[a], shares[b]), starts, tiles, tiles, seed, layout.symmetric, a == b)
                if numbers is not None:
                    piece = renumbered(piece, 0 if a == other else 1, numbers - layout.bounds[other])
                sums = _added(sums, self._train_tiles(left, right, piece, self._layout, options, rate))
                self._strips.progressed(int((starts[tiles + 1] - starts[tiles]).sum()))
                self._store.poll()
                self._go_on()
            check_finite(sums[0], f"block ({a}, {b}) of epoch {epoch + 1}")
        return sums


def _added(some: Sums, more: Sums) -> Sums:
    return some[0] + more[0], some[1] + more[1], some[2] + more[2]


def shuffled_tiles(draw: np.random.Generator, stripes: int, tiles: int) -> Indices:
    """Return the numbers of a block's tiles, `tiles` for each of `stripes`, shuffled in STRIPES_TOGETHER at a time."""
    order = draw.permutation(stripes)
    together = (order[n : n + STRIPES_TOGETHER, None] for n in range(0, stripes, STRIPES_TOGETHER))
    shuffled = (draw.permutation((some * tiles + np.arange(tiles)).ravel()) for some in together)
    return np.concatenate([np.zeros(0, np.int64), *shuffled])


def tile_portions(order: Indices, starts: Indices) -> Iterator[Indices]:
    """Yield `order` (tiles of a block) in pieces of about PORTION_ENTRIES entries, between which to read messages."""
    order = order[starts[order] < starts[order + 1]]
    if len(order):
        sizes = np.cumsum(starts[order + 1] - starts[order])
        cuts = np.searchsorted(sizes, np.arange(PORTION_ENTRIES, int(sizes[-1]), PORTION_ENTRIES))
        yield from np.split(order, np.unique(cuts))
