"""A curve of bounded length: when it is full, neighbours are merged and it goes on at half the resolution.

Pure: no clock, no files, no sockets. It must never forget the last point, nor grow beyond its limit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Point:
    """Where training stood at `t` seconds: means over `entries` entries in `samples` samples.

    `position` is the number of entries that all workers have done; the means are those over the whole matrix.
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


class Series:
    """Points in order of time, at most `limit` of them, each of the same number of samples."""

    def __init__(self, limit: int) -> None:
        self.limit = max(4, limit)
        self.points: list[Point] = []
        self.last: Point | None = None
        self.generation = 0
        """Grows when points that were there have changed: a view that only adds what is new must start over."""
        self._stride = 1
        self._open: Point | None = None

    def add(self, point: Point) -> None:
        """Take the newest point."""
        self.last = point
        self._open = point if self._open is None else merge(self._open, point)
        if self._open.samples < self._stride:
            return
        self.points.append(self._open)
        self._open = None
        if len(self.points) >= self.limit:
            self._thin()

    def rewind(self, position: int) -> None:
        """Forget what lies beyond `position`: training went on from an earlier state."""
        kept = [point for point in self.points if point.position <= position]
        if len(kept) < len(self.points):
            self.points, self.generation = kept, self.generation + 1
        self._open = None
        self.last = kept[-1] if kept else None

    def curve(self) -> list[Point]:
        """All points, and the last one as it came."""
        if self.last is None or self._open is None:
            return list(self.points)
        return [*self.points, self.last]

    def recent(self, seconds: float) -> list[Point]:
        """Points of the last `seconds`, at least the last one."""
        curve = self.curve()
        return [point for point in curve[-64:] if point.t >= curve[-1].t - seconds]

    def _thin(self) -> None:
        pairs = zip(self.points[0::2], self.points[1::2], strict=False)
        merged = [merge(first, second) for first, second in pairs]
        if len(self.points) % 2:
            self._open = self.points[-1]
        self.points = merged
        self._stride *= 2
        self.generation += 1


class Rolling:
    """Means of loss and bias-only loss over a span of entries; over the last half of what there is before that.

    Blocks of the matrix differ in how well they can be fitted, and each is visited once an epoch: a single sample says
    which block it comes from rather than how far training is. A span of one epoch sees them all.
    """

    def __init__(self) -> None:
        self.loss = 0.0
        self.bias_only_loss = 0.0
        self._points: deque[Point] = deque()
        self._entries = 0
        self._sums = [0.0, 0.0]

    def add(self, point: Point, span: float) -> Point:
        """Take the newest point and return it with the means; `span` in entries, 0 for none, infinite if unknown."""
        self._points.append(point)
        self._count(point, 1)
        shorter = min(span, point.position / 2)
        while len(self._points) > 1 and point.position - self._points[0].position >= shorter:
            self._count(self._points.popleft(), -1)
        self.loss, self.bias_only_loss = (max(0.0, total / self._entries) for total in self._sums)
        return replace(point, loss=self.loss, bias_only_loss=self.bias_only_loss)

    def _count(self, point: Point, sign: int) -> None:
        self._entries += sign * point.entries
        self._sums[0] += sign * point.entries * point.loss
        self._sums[1] += sign * point.entries * point.bias_only_loss


def rolled(curve: Iterable[Point], span: float) -> list[Point]:
    """The curve with its losses as Rolling has them."""
    rolling = Rolling()
    return [rolling.add(point, span) for point in curve]


def by_epoch(curve: Sequence[Point], per_epoch: float) -> list[Point]:
    """The curve as the mean of each epoch, in its middle, from where it began to where it is.

    Only whole epochs compare: each holds every block once. While there are not two of them, the rolling means stand in.
    """
    if not curve or curve[-1].position < 2 * per_epoch:
        return rolled(curve, per_epoch)
    whole: dict[int, Point] = {}
    middles: dict[int, float] = {}
    for point in curve:
        epoch = int((point.position - 1) // per_epoch)
        whole[epoch] = merge(whole[epoch], point) if epoch in whole else point
        if point.position <= (epoch + 0.5) * per_epoch or epoch not in middles:
            middles[epoch] = point.t
    done = [epoch for epoch in whole if (epoch + 1) * per_epoch <= curve[-1].position]
    if not done:  # so short a run that one sample held all its epochs
        return rolled(curve, per_epoch)
    start = rolled([point for point in curve if point.position <= per_epoch / 4], per_epoch)
    means = [replace(whole[k], t=middles[k], position=int((k + 0.5) * per_epoch), epoch=k) for k in done]
    last = replace(curve[-1], loss=means[-1].loss, bias_only_loss=means[-1].bias_only_loss)
    return [*start, *means, last]


def merge(first: Point, second: Point) -> Point:
    """One point for two neighbours: means over their entries, at the time and place of the later one."""
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
