"""Adds up what workers report and decides when a sample is due. Pure: `now` is an argument, seconds since any start.

Losses are sums over entries of the full matrix; samples carry means over the entries since the sample before.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from common.messages import LossSample, Report

SAMPLE_EVERY_S = 0.1
RATE_OVER_S = 2.0


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
class Losses:
    """Progress of the whole run; only shard 0 has reports to count. Unless `bounded`, nobody knows its `total`."""

    total: int
    epochs: int
    started: float = 0.0
    first_report: float | None = None
    last_report: float = 0.0
    entries: int = 0
    bounded: bool = True
    _epochs: dict[int, Sum] = field(default_factory=dict)
    _since: dict[str, Sum] = field(default_factory=dict)
    _done: dict[str, int] = field(default_factory=dict)
    _sampled: float = -1e9
    _marks: list[tuple[float, int]] = field(default_factory=list)

    @property
    def per_epoch(self) -> int:
        """Entries of one epoch."""
        return max(self.total // max(self.epochs, 1), 1)

    @property
    def epoch(self) -> int:
        """Epochs done."""
        return min(self.entries // self.per_epoch, self.epochs)

    def add(self, worker: str, epoch: int, report: Report, now: float) -> None:
        """Count one report of `worker` for `epoch`."""
        if self.first_report is None:
            self.first_report = now - report.seconds
        self.last_report = now
        self.entries += report.entries
        self._done[worker] = self._done.get(worker, 0) + report.entries
        for sums in (
            self._since.setdefault(worker, Sum()),
            self._since.setdefault("all", Sum()),
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

    def samples(self, now: float, *, force: bool = False) -> list[LossSample]:
        """Samples that are due: one for each worker with news, and `all`; at most ten times a second."""
        if not self._since or not (force or now - self._sampled >= SAMPLE_EVERY_S):
            return []
        rate = self._rate(now)
        since, self._since, self._sampled = self._since, {}, now
        every = max(since["all"].entries, 1)
        return [self._sample(name, sums, rate * sums.entries / every, now) for name, sums in since.items()]

    def _sample(self, worker: str, sums: Sum, rate: float, now: float) -> LossSample:
        loss, floor, norm = sums.means()
        done = self.entries if worker == "all" else self._done[worker]
        t = now - self.started
        return LossSample(t, worker, self.epoch, self.epochs, done, self.total, loss, floor, norm, rate)

    def _rate(self, now: float) -> float:
        self._marks = [(t, n) for t, n in self._marks if t >= now - RATE_OVER_S] or self._marks[-1:]
        self._marks.append((now, self.entries))
        first, entries = self._marks[0]
        if first == now:
            return self.entries / max(self.seconds(), 1e-9)
        return (self.entries - entries) / (now - first)
