"""Keep a loss curve of bounded length: when it is full, neighbouring points are merged in pairs. No I/O."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Point:
    """State of training at `t` seconds: means over `entries` entries in `samples` samples.

    `position` is the number of entries that all workers have trained; `mean_loss` and `mean_bias_only_loss` are over
    the whole matrix.
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
    """Curve of at most `limit` points in order of time, each a merge of equally many samples, and the newest sample."""

    def __init__(self, limit: int) -> None:
        self.limit = max(4, limit)
        self.points: list[Point] = []
        self.last: Point | None = None
        self.generation = 0
        """Grows when points that were there have changed: a view that only appends must start over."""
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
        """Drop the points beyond `position`, because training resumed from an earlier state."""
        kept = [point for point in self.points if point.position <= position]
        if len(kept) < len(self.points):
            self.points, self.generation = kept, self.generation + 1
        self._open = None
        self.last = kept[-1] if kept else None

    def all_points(self) -> list[Point]:
        """Return the merged points, and the newest sample where it is not part of one yet."""
        if self.last is None or self._open is None:
            return list(self.points)
        return [*self.points, self.last]

    def recent(self, seconds: float) -> list[Point]:
        """Return the points of the last `seconds`, at least the last one."""
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
    """Return one point for two neighbours: means over their entries, at the time and position of the later one."""
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


def rolling_means(points: Iterable[Point], span: float) -> list[Point]:
    """Return the points with losses averaged over the last `span` entries, or over the last half of a shorter curve.

    Blocks of the matrix differ in how well they can be fitted, and each is visited once an epoch: a single sample shows
    which block it comes from rather than the progress of training. A span of one epoch covers all blocks.
    """
    window: deque[Point] = deque()
    means = []
    entries, loss, bias_only_loss = 0, 0.0, 0.0
    for point in points:
        window.append(point)
        entries += point.entries
        loss += point.entries * point.loss
        bias_only_loss += point.entries * point.bias_only_loss
        while len(window) > 1 and point.position - window[0].position >= min(span, point.position / 2):
            old = window.popleft()
            entries -= old.entries
            loss -= old.entries * old.loss
            bias_only_loss -= old.entries * old.bias_only_loss
        means.append(replace(point, loss=max(0.0, loss / entries), bias_only_loss=max(0.0, bias_only_loss / entries)))
    return means


def epoch_means(points: Sequence[Point], per_epoch: float) -> list[Point]:
    """Return a point for each whole epoch with its mean losses, at its middle; `per_epoch` is its number of entries.

    Only whole epochs compare, because each visits every block once. The first quarter of the first epoch and the last
    point are kept, so that the curve spans the run. Before the end of the second epoch, rolling means stand in.
    """
    if not points or points[-1].position < 2 * per_epoch:
        return rolling_means(points, per_epoch)
    means: dict[int, Point] = {}
    middles: dict[int, float] = {}
    for point in points:
        epoch = int((point.position - 1) // per_epoch)
        means[epoch] = merge(means[epoch], point) if epoch in means else point
        if point.position <= (epoch + 0.5) * per_epoch or epoch not in middles:
            middles[epoch] = point.t
    whole = [epoch for epoch in means if (epoch + 1) * per_epoch <= points[-1].position]
    if not whole:  # the run was so short that one sample covers all its epochs
        return rolling_means(points, per_epoch)
    start = rolling_means([point for point in points if point.position <= per_epoch / 4], per_epoch)
    middle = [
        replace(means[epoch], t=middles[epoch], position=int((epoch + 0.5) * per_epoch), epoch=epoch) for epoch in whole
    ]
    last = replace(points[-1], loss=middle[-1].loss, bias_only_loss=middle[-1].bias_only_loss)
    return [*start, *middle, last]
