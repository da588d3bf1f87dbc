"""Adds up what workers report and decides whose sample is due. Pure: `now` is an argument, seconds since any start.

Losses are sums over entries of the full matrix; samples carry means over the entries since the sample before. There are
ten samples a second, whatever the number of workers: three of four are of all together, the fourth is of the worker
that has waited longest, and tells of everything that it did meanwhile.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from glovewire.common.protocol.messages import LossSample, Report

ALL = "all"
SAMPLE_EVERY_S = 0.1
RATE_OVER_S = 2.0
MAX_PARTS = 4096


@dataclass
class Sum:
    """Running sums of one worker, or of all."""

    entries: int = 0
    loss: float = 0.0
    bias_only_loss: float = 0.0
    norm: float = 0.0

    def add(self, report: Report) -> None:
        """Count a report; norms are weighted by entries."""
        self.entries += report.entries
        self.loss += report.loss
        self.bias_only_loss += report.bias_only_loss
        self.norm += report.norm * report.entries

    def means(self) -> tuple[float, float, float]:
        """Loss, bias-only loss and vector norm per entry."""
        n = max(self.entries, 1)
        return self.loss / n, self.bias_only_loss / n, self.norm / n


@dataclass
class Whole:
    """The mean over the whole matrix: each part of it as it was when it was last trained.

    Some blocks can be fitted better than others. A mean over the last few says which blocks they were rather than how
    far training is; this one holds each block once, from the first epoch's end on. What is no block (minibatches) is a
    part of its own until an epoch of entries has come after it.
    """

    per_epoch: int
    _parts: dict[Hashable, Sum] = field(default_factory=dict)
    _entries: int = 0
    _count: int = 0

    def add(self, part: Hashable, report: Report) -> None:
        """A part was trained; None for one that will not be named again."""
        self._count += 1
        self._forget(part)
        self._parts[self._count if part is None else part] = one = Sum()
        one.add(report)
        self._entries += one.entries
        while len(self._parts) > 1:
            oldest = next(iter(self._parts))
            if self._entries - self._parts[oldest].entries < self.per_epoch and len(self._parts) <= MAX_PARTS:
                break
            self._forget(oldest)

    def means(self) -> tuple[float, float]:
        """Loss and bias-only loss per entry."""
        entries, parts = max(self._entries, 1), self._parts.values()
        return sum(part.loss for part in parts) / entries, sum(part.bias_only_loss for part in parts) / entries

    def _forget(self, part: Hashable) -> None:
        gone = self._parts.pop(part, None)
        self._entries -= gone.entries if gone is not None else 0


@dataclass
class Losses:
    """Progress of the whole run; only shard 0 has reports to count."""

    total: int
    epochs: int
    started: float = 0.0
    first_report: float | None = None
    last_report: float = 0.0
    entries: int = 0
    _epochs: dict[int, Sum] = field(default_factory=dict)
    _since: dict[str, Sum] = field(default_factory=dict)
    _done: dict[str, int] = field(default_factory=dict)
    _told: dict[str, float] = field(default_factory=dict)
    _sampled: float = -1e9
    _slot: int = 0
    _marks: list[tuple[float, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._whole = Whole(self.per_epoch)
        self._before = self.entries  # in the checkpoint that this begins from

    @property
    def per_epoch(self) -> int:
        """Entries of one epoch."""
        return max(self.total // max(self.epochs, 1), 1)

    @property
    def epoch(self) -> int:
        """Epochs done."""
        return min(self.entries // self.per_epoch, self.epochs)

    def add(self, worker: str, epoch: int, report: Report, now: float, part: Hashable = None) -> None:
        """Count one report of `worker` for `epoch`; `part` of the matrix is the block that it is about, if any."""
        if self.first_report is None:
            self.first_report = now - report.seconds
        self.last_report = now
        self.entries += report.entries
        self._done[worker] = self._done.get(worker, 0) + report.entries
        self._told.setdefault(worker, now - report.seconds)
        self._whole.add(part, report)
        for sums in (
            self._since.setdefault(worker, Sum()),
            self._since.setdefault(ALL, Sum()),
            self._epochs.setdefault(epoch, Sum()),
        ):
            sums.add(report)

    def epoch_means(self, epoch: int) -> tuple[float, float, float]:
        """Mean loss, bias-only loss and norm over an epoch (from 0) so far."""
        return self._epochs.get(epoch, Sum()).means()

    def last_epoch(self) -> int:
        """The newest epoch that has reports."""
        return max(self._epochs, default=0)

    def seconds(self) -> float:
        """From the start of the first reported work to the last report."""
        return 0.0 if self.first_report is None else self.last_report - self.first_report

    def pace(self) -> float:
        """Entries a second in `seconds`, so without those of the training that this one goes on with."""
        seconds = self.seconds()
        return (self.entries - self._before) / seconds if seconds else 0.0

    def samples(self, now: float, *, force: bool = False) -> list[LossSample]:
        """The sample that is due, if any; with `force`, at the end, one of each worker with news and of all."""
        if not self._since or not (force or now - self._sampled >= SAMPLE_EVERY_S):
            return []
        on_time = now - self._sampled < 2 * SAMPLE_EVERY_S
        self._sampled = self._sampled + SAMPLE_EVERY_S if on_time and not force else now
        if not force:
            return [self._sample(self._next(), now)]
        names = sorted(self._since, key=lambda name: name == ALL)
        return [self._sample(name, now) for name in names]

    def _next(self) -> str:
        """Whose turn it is: names stand in the order in which they began to have news."""
        self._slot += 1
        worker = next((name for name in self._since if name != ALL), ALL)
        return worker if self._slot % 4 == 0 or ALL not in self._since else ALL

    def _sample(self, worker: str, now: float) -> LossSample:
        sums = self._since.pop(worker)
        loss, floor, norm = sums.means()
        mean_loss, mean_floor = self._whole.means() if worker == ALL else (loss, floor)
        done = self.entries if worker == ALL else self._done[worker]
        rate = self._rate(now) if worker == ALL else sums.entries / max(now - self._told[worker], SAMPLE_EVERY_S)
        self._told[worker] = now
        return LossSample(
            now - self.started, worker, self.epoch, self.epochs, done, self.total, loss, floor, norm, rate, mean_loss,
            mean_floor,
        )  # fmt: skip

    def _rate(self, now: float) -> float:
        self._marks = [(t, n) for t, n in self._marks if t >= now - RATE_OVER_S] or self._marks[-1:]
        self._marks.append((now, self.entries))
        first, entries = self._marks[0]
        if first == now:
            return self.pace()
        return (self.entries - entries) / (now - first)
