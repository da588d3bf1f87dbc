"""Add up what workers report and decide whose sample is due. No I/O; `now` is an argument, in seconds.

Losses are sums over entries of the full matrix. Samples carry mean losses over the entries since the previous sample,
and, of all workers together, means over the whole matrix. There are ten samples a second, whatever the number of
workers: three of four are of all workers together, the fourth is of the worker that has waited longest, and covers all
its reports since its last sample.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Self

from glovewire.common.model.options import TrainingOptions
from glovewire.common.protocol.messages import LossSample, Report

ALL = "all"
SAMPLE_EVERY_S = 0.1
RATE_OVER_S = 2.0
MAX_PARTS = 4096
MAX_NAMES = 1024
"""Maximum number of workers whose entries are counted separately: that of sessions."""
NEWEST = 32
"""The final loss of a dense model is the mean of this many newest reports; a worker sends about five a second."""


@dataclass
class MeanSums:
    """Running sums from which means per entry are computed."""

    entries: int = 0
    loss: float = 0.0
    bias_only_loss: float = 0.0
    norm: float = 0.0

    def add(self, report: Report) -> None:
        """Add a report; norms are weighted by entries."""
        self.entries += report.entries
        self.loss += report.loss
        self.bias_only_loss += report.bias_only_loss
        self.norm += report.norm * report.entries

    def means(self) -> tuple[float, float, float]:
        """Return loss, bias-only loss and vector norm per entry."""
        n = max(self.entries, 1)
        return self.loss / n, self.bias_only_loss / n, self.norm / n


def means_of(reports: Iterable[Report]) -> tuple[float, float, float]:
    """Return loss, bias-only loss and vector norm per entry of all `reports` together."""
    sums = MeanSums()
    for report in reports:
        sums.add(report)
    return sums.means()


class MatrixMean:
    """Mean losses and norm over the whole matrix: each part (block) with its latest report.

    Some blocks can be fitted better than others, so a mean over the last few blocks would depend on which they were.
    This mean holds each block once, from the end of the first sweep on. A report of minibatches, which names no block,
    is a part of its own until an epoch of entries has followed it.
    """

    def __init__(self, per_sweep: int) -> None:
        self._per_sweep = per_sweep
        self._parts: dict[Hashable, Report] = {}
        self._entries = self._reports = 0

    def add(self, part: Hashable, report: Report) -> None:
        """Count a report, replacing the earlier one of the same part; `part` is None for minibatches."""
        self._reports += 1
        self._forget(part)
        self._parts[self._reports if part is None else part] = report
        self._entries += report.entries
        while len(self._parts) > 1:
            oldest = next(iter(self._parts))
            if self._entries - self._parts[oldest].entries < self._per_sweep and len(self._parts) <= MAX_PARTS:
                break
            self._forget(oldest)

    def means(self) -> tuple[float, float, float]:
        """Return loss, bias-only loss and vector norm per entry."""
        return means_of(self._parts.values())

    def _forget(self, part: Hashable) -> None:
        if (report := self._parts.pop(part, None)) is not None:
            self._entries -= report.entries


@dataclass
class Losses:
    """Entries and losses of the whole run, as reported to shard 0; `entries` starts at those of the checkpoint.

    `total`: entries of all epochs; a sweep over all blocks is `local_epochs` of them. `recent`: (time, entries) of the
    samples of all workers in the last RATE_OVER_S. `updates` returns (updates done, updates in all, 0 if unknown) of a
    dense model, which has no epochs.
    """

    total: int
    epochs: int
    started: float = 0.0
    local_epochs: int = 1
    first_report: float | None = None
    last_report: float = 0.0
    entries: int = 0
    _by_sweep: dict[int, MeanSums] = field(default_factory=dict)
    _unsampled: dict[str, MeanSums] = field(default_factory=dict)
    _entries_of: dict[str, int] = field(default_factory=dict)
    _last_sample_of: dict[str, float] = field(default_factory=dict)
    _last_sample: float = -1e9
    _samples: int = 0
    _newest: deque[Report] = field(default_factory=lambda: deque(maxlen=NEWEST))
    recent: list[tuple[float, int]] = field(default_factory=list)
    updates: Callable[[], tuple[int, int]] | None = None

    def __post_init__(self) -> None:
        self._per_sweep = max(self.total * self.local_epochs // max(self.epochs, 1), 1)
        self._matrix_mean = MatrixMean(self._per_sweep)
        self._restored = self.entries

    @classmethod
    def of(cls, options: TrainingOptions, entries: int, started: float, restored: int = 0) -> Self:
        """Return the losses for a matrix of `entries` entries; `restored` have been trained before, over all epochs."""
        return cls(entries * options.epochs, options.epochs, started, options.local_epochs, entries=restored)

    @property
    def sweep(self) -> int:
        """Return the number of completed sweeps."""
        return min(self.entries // self._per_sweep, self.epochs // self.local_epochs)

    @property
    def epoch(self) -> int:
        """Return the number of completed epochs."""
        return self.sweep * self.local_epochs

    def add(self, worker: str, sweep: int, report: Report, now: float, part: Hashable = None) -> None:
        """Count one report of `worker` in a sweep; `part` names its block, None for minibatches."""
        if self.first_report is None:
            self.first_report = now - report.seconds
        self.last_report = now
        self._newest.append(report)
        self.entries += report.entries
        self._entries_of[worker] = self._entries_of.pop(worker, 0) + report.entries
        if len(self._entries_of) > MAX_NAMES:
            silent = next(iter(self._entries_of))  # for the longest time; its entries stay in the sum of all workers
            for by_name in (self._entries_of, self._last_sample_of, self._unsampled):
                by_name.pop(silent, None)
        self._last_sample_of.setdefault(worker, now - report.seconds)
        self._matrix_mean.add(part, report)
        for name in (worker, ALL):
            self._unsampled.setdefault(name, MeanSums()).add(report)
        self._by_sweep.setdefault(sweep, MeanSums()).add(report)

    def sweep_means(self, sweep: int) -> tuple[float, float, float]:
        """Return mean loss, bias-only loss and norm of a sweep (from 0) so far."""
        return self._by_sweep.get(sweep, MeanSums()).means()

    def last_means(self) -> tuple[float, float, float]:
        """Return mean loss, bias-only loss and norm of the newest sweep; of a dense model, of the newest reports."""
        return self.sweep_means(max(self._by_sweep, default=0)) if self.updates is None else means_of(self._newest)

    def seconds(self) -> float:
        """Return the time from the start of the first reported work to the last report."""
        return 0.0 if self.first_report is None else self.last_report - self.first_report

    def entries_per_second(self) -> float:
        """Return the mean rate over `seconds`, without the entries of the checkpoint that this run resumed."""
        seconds = self.seconds()
        return (self.entries - self._restored) / seconds if seconds else 0.0

    def samples(self, now: float, *, force: bool = False) -> list[LossSample]:
        """Return the sample that is due, if any; with `force` (at the end) all that have new reports."""
        if not self._unsampled or not (force or now - self._last_sample >= SAMPLE_EVERY_S):
            return []
        on_time = now - self._last_sample < 2 * SAMPLE_EVERY_S
        self._last_sample = self._last_sample + SAMPLE_EVERY_S if on_time and not force else now
        names = sorted(self._unsampled, key=lambda name: name == ALL) if force else [self._next()]
        return [self._sample(name, now) for name in names]

    def _next(self) -> str:
        """Return the worker, or ALL, to sample next; names are ordered by the first report since their last sample."""
        self._samples += 1
        worker = next((name for name in self._unsampled if name != ALL), ALL)
        return worker if self._samples % 4 == 0 or ALL not in self._unsampled else ALL

    def _sample(self, worker: str, now: float) -> LossSample:
        sums = self._unsampled.pop(worker)
        loss, bias_only_loss, _ = means = sums.means()
        if worker == ALL:
            entries, rate, means = self.entries, self._recent_rate(now), self._matrix_mean.means()
        else:
            rate = sums.entries / max(now - self._last_sample_of[worker], SAMPLE_EVERY_S)
            entries = self._entries_of[worker]
        mean_loss, mean_bias_only_loss, norm = means
        self._last_sample_of[worker] = now
        done, of = (self.epoch, self.epochs) if self.updates is None else self.updates()
        progress, losses = (done, of, entries, self.total), (loss, bias_only_loss)
        return LossSample(now - self.started, worker, *progress, *losses, norm, rate, mean_loss, mean_bias_only_loss)

    def _recent_rate(self, now: float) -> float:
        """Return entries per second over the last RATE_OVER_S, at first since the first reported work began.

        A span below SAMPLE_EVERY_S counts as that long: the first report alone would give a rate far too high.
        """
        if not self.recent and self.first_report is not None:
            self.recent.append((self.first_report, self._restored))
        self.recent = [(t, n) for t, n in self.recent if t >= now - RATE_OVER_S] or self.recent[-1:]
        self.recent.append((now, self.entries))
        since, entries = self.recent[0]
        return (self.entries - entries) / max(now - since, SAMPLE_EVERY_S)
