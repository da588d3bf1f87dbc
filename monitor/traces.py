"""A History as columns for charts: what is new is added, the rest stays. Pure; it must never send a curve twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .history import History
from .series import Point, Series
from .units import natural

COLUMNS = ("t", "entries", "loss", "mean", "floor", "pace", "epoch")
WORKER_COLUMNS = ("t", "entries", "loss", "worker", "colour")
EACH_POINTS = 150
ALL_POINTS = 3_000
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
        self._known: tuple[Series, int] | None = None
        self._sent = 0

    def change(self) -> Change:
        """What is new since the last call; everything, when old points have changed."""
        series = self._history.overall
        known = (series, series.generation)
        anew = known != self._known
        if anew:
            self._known, self._sent = known, 0
        points = series.points[self._sent :]
        self._sent += len(points)
        head = series.points[-1:] + ([series.last] if series.last is not None else [])
        return Change(self._columns(points), anew, self._columns(head))

    def _columns(self, points: Sequence[Point]) -> Columns:
        return {
            "t": [round(self._history.since_start(point.t), 2) for point in points],
            "entries": [point.position / 1e6 for point in points],
            "loss": [_short(point.loss) for point in points],
            "mean": [_short(point.mean_loss) for point in points],
            "floor": [_short(point.mean_bias_only_loss) for point in points],
            "pace": [round(point.entries_per_second) for point in points],
            "epoch": [point.epoch for point in points],
        }


def each_worker(history: History) -> Columns:
    """A curve per worker, the coarser the more there are: `t`, `entries` and `loss` are lists of lists."""
    found: Columns = {name: [] for name in WORKER_COLUMNS}
    most = max(12, min(EACH_POINTS, ALL_POINTS // max(1, len(history.workers))))
    for number, worker in enumerate(sorted(history.workers.values(), key=lambda worker: natural(worker.name))):
        curve = worker.series.curve()
        coarse = curve[:: max(1, -(-len(curve) // most))]
        found["t"].append([round(history.since_start(point.t), 2) for point in coarse])
        found["entries"].append([point.position / 1e6 for point in coarse])
        found["loss"].append([_short(point.loss) for point in coarse])
        found["worker"].append(worker.name)
        found["colour"].append(PALETTE[number % len(PALETTE)])
    return found


def _short(value: float) -> float:
    """Six digits: more than a screen shows, fewer bytes than all of them."""
    return float(f"{value:.6g}")
