"""A History as columns for charts: what is new is added, the rest stays. Pure; it must never send a curve twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from .history import History
from .series import Point, Rolling, Series, by_epoch, rolled
from .units import natural

COLUMNS = ("t", "entries", "loss", "smooth", "floor", "pace", "epoch")
WORKER_COLUMNS = ("t", "entries", "loss", "worker", "colour")
EACH_POINTS = 150
PALETTE = ("#2a9d8f", "#e9a23b", "#9b5de5", "#ef476f", "#5fa8d3", "#8ab17d", "#c77dff", "#f4845f")

Columns = dict[str, Any]
"""Lists of equal length by name."""


@dataclass(frozen=True)
class Change:
    """Columns to put in place of all that was there, or to add to it; and where the curve now ends."""

    columns: Columns
    replace: bool
    head: Columns


class Trace:
    """Follows the overall curve of one History for one reader; `change` says what the reader has to do."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._known: tuple[Series, int, float, int] | None = None
        self._sent = 0
        self._rolling = Rolling()
        self._end: Point | None = None

    def change(self, epochs: float) -> Change:
        """What is new since the last call; everything, when old points or `epochs`, which means span, have changed.

        With `epochs` 1, the means of whole epochs, as soon as there are two.
        """
        series, span = self._history.overall, _span(self._history, epochs)
        done = _whole_epochs(self._history) if epochs >= 1 else 0
        known = (series, series.generation, span, done)
        anew = known != self._known
        if anew:
            self._known, self._sent, self._rolling, self._end = known, 0, Rolling(), None
        if done:
            points = smooth = by_epoch(series.curve(), span) if anew else []
            smooth, points = smooth[:-1], points[:-1]  # the last one is where the head is
        else:
            points = series.points[self._sent :]
            self._sent += len(points)
            smooth = [self._rolling.add(point, span) for point in points]
        self._end = smooth[-1] if smooth else self._end
        return Change(self._columns(points, smooth), anew, self._head(series, span, done))

    def _head(self, series: Series, span: float, done: int) -> Columns:
        """The last point that was sent and the last one there is: a line between them is the end of the curve."""
        if series.last is None:
            return self._columns([], [])
        if done and self._end is not None:
            last = replace(series.last, loss=self._end.loss, bias_only_loss=self._end.bias_only_loss)
        elif self._end is None or series.last.position > self._end.position:
            last = self._rolling.with_also(series.last, span)
        else:
            last = self._end
        smooth = [last] if self._end is None else [self._end, last]
        return self._columns(smooth, smooth)

    def _columns(self, points: Sequence[Point], smooth: Sequence[Point]) -> Columns:
        return {
            "t": [self._history.since_start(point.t) for point in points],
            "entries": [point.position / 1e6 for point in points],
            "loss": [point.loss for point in points],
            "smooth": [point.loss for point in smooth],
            "floor": [point.bias_only_loss for point in smooth],
            "pace": [point.entries_per_second for point in points],
            "epoch": [point.epoch for point in points],
        }


def _whole_epochs(history: History) -> int:
    """How many there are, from two on."""
    last = history.overall.last
    done = int(last.position // history.per_epoch) if last is not None else 0
    return done if done >= 2 else 0


def _span(history: History, epochs: float) -> float:
    return history.per_epoch * epochs if epochs > 0 else 0.0


def each_worker(history: History, epochs: float) -> Columns:
    """A curve per worker, coarse: `t`, `entries` and `loss` are lists of lists."""
    found: Columns = {name: [] for name in WORKER_COLUMNS}
    for number, worker in enumerate(sorted(history.workers.values(), key=lambda worker: natural(worker.name))):
        curve = worker.series.curve()
        curve = by_epoch(curve, history.per_epoch) if epochs >= 1 else rolled(curve, _span(history, epochs))
        coarse = curve[:: max(1, -(-len(curve) // EACH_POINTS))]
        found["t"].append([history.since_start(point.t) for point in coarse])
        found["entries"].append([point.position / 1e6 for point in coarse])
        found["loss"].append([point.loss for point in coarse])
        found["worker"].append(worker.name)
        found["colour"].append(PALETTE[number % len(PALETTE)])
    return found
