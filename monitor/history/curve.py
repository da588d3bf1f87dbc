"""Keep a loss curve of bounded length: when the curve is full, merge neighbouring points in pairs. No I/O."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

import numpy as np


@dataclass(frozen=True, slots=True)
class Point:
    """State of training at `t` seconds: losses and rate are means over `entries` entries, from `samples` samples.

    `position` is the number of entries trained by all workers together; `mean_loss` and `mean_bias_only_loss` are means
    over the whole matrix.
    """

    t: float
    position: int
    epoch: int
    loss: float
    bias_only_loss: float
    norm: float
    entries_per_second: float
    entries: int = 1
    samples: int = 1
    mean_loss: float = 0.0
    mean_bias_only_loss: float = 0.0


class LossCurve:
    """Keeps at most `limit` points in order of time, each merged from equally many samples, and the newest sample."""

    def __init__(self, limit: int) -> None:
        self.limit = max(4, limit)
        self.points: list[Point] = []
        self.last: Point | None = None
        self.generation = 0
        """Incremented when existing points change: a view that only appends points must then redraw the whole curve."""
        self._stride = 1
        self._open: Point | None = None

    def add(self, point: Point) -> None:
        """Append the newest point."""
        self.last = point
        self._open = point if self._open is None else merge(self._open, point)
        if self._open.samples < self._stride:
            return
        self.points.append(self._open)
        self._open = None
        if len(self.points) >= self.limit:
            self._halve()

    def rewind(self, position: int) -> None:
        """Drop the points beyond `position` entries, because training has resumed from an earlier state."""
        kept = [point for point in self.points if point.position <= position]
        if len(kept) < len(self.points):
            self.points, self.generation = kept, self.generation + 1
        self._open = None
        self.last = kept[-1] if kept else None

    def all_points(self) -> list[Point]:
        """Return the merged points, followed by the newest sample unless a merged point already contains it."""
        if self.last is None or self._open is None:
            return list(self.points)
        return [*self.points, self.last]

    def recent(self, seconds: float) -> list[Point]:
        """Return the points of the last `seconds` before the newest point, at most 64, including that point."""
        points = self.all_points()
        return [point for point in points[-64:] if point.t >= points[-1].t - seconds]

    def _halve(self) -> None:
        pairs = zip(self.points[0::2], self.points[1::2], strict=False)
        if len(self.points) % 2:
            self._open = self.points[-1]
        self.points = [merge(first, second) for first, second in pairs]
        self._stride *= 2
        self.generation += 1


def merge(first: Point, second: Point) -> Point:
    """Merge two neighbouring points: average losses and rates over their entries, keep the later time and position."""
    entries = first.entries + second.entries

    def mean(a: float, b: float) -> float:
        return (a * first.entries + b * second.entries) / entries

    return replace(
        second,
        loss=mean(first.loss, second.loss),
        bias_only_loss=mean(first.bias_only_loss, second.bias_only_loss),
        entries_per_second=mean(first.entries_per_second, second.entries_per_second),
        entries=entries,
        samples=first.samples + second.samples,
    )


def rolling_means(points: Sequence[Point], span: float, step: int = 1) -> list[Point]:
    """Return every `step`-th point, its losses averaged over the last `span` entries, or half of a shorter curve.

    Some blocks of the matrix are fitted better than others, and every block is visited once a sweep, so the loss of a
    single sample depends more on its block than on the progress of training. A span of one sweep covers all blocks.
    """
    named = ("position", "entries", "loss", "bias_only_loss")
    position, entries, *losses = (np.fromiter(map(attrgetter(name), points), float, len(points)) for name in named)
    sums = np.cumsum([entries, *(entries * each for each in losses)], axis=1)
    here = np.arange(len(points))[::step]
    begin = np.searchsorted(position, position[here] - np.minimum(span, position[here] / 2), side="right")
    before = np.minimum(begin, here) - 1  # the last point outside the window
    window = sums[:, here] - np.where(before < 0, 0.0, sums[:, before])
    means = np.maximum(window[1:] / window[0], 0.0).T.tolist()
    shown = zip(points[::step], means, strict=True)
    return [replace(point, loss=loss, bias_only_loss=bias_only) for point, (loss, bias_only) in shown]


def sweep_means(points: Sequence[Point], per_sweep: float) -> list[Point]:
    """Return one point for each whole sweep of `per_sweep` entries: its mean losses, placed at its middle.

    Only whole sweeps are comparable, because each visits every block once. Rolling means of the first quarter sweep and
    a point at the end are added, so that the curve spans the run. Before two sweeps are done, returns rolling means.
    """
    if not points or points[-1].position < 2 * per_sweep:
        return rolling_means(points, per_sweep)
    means: dict[int, Point] = {}
    middles: dict[int, float] = {}
    for point in points:
        sweep = int((point.position - 1) // per_sweep)
        means[sweep] = merge(means[sweep], point) if sweep in means else point
        if point.position <= (sweep + 0.5) * per_sweep or sweep not in middles:
            middles[sweep] = point.t
    whole = [sweep for sweep in means if (sweep + 1) * per_sweep <= points[-1].position]
    if not whole:  # the run was so short that one sample covers all its sweeps
        return rolling_means(points, per_sweep)
    start = rolling_means([point for point in points if point.position <= per_sweep / 4], per_sweep)
    middle = [replace(means[sweep], t=middles[sweep], position=int((sweep + 0.5) * per_sweep)) for sweep in whole]
    last = replace(points[-1], loss=middle[-1].loss, bias_only_loss=middle[-1].bias_only_loss)
    return [*start, *middle, last]
