"""Draw the plot of `glovewire study speedup`: loss against time and against entries, one line per variant."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from glovewire.monitor.history.curve import Point
from glovewire.monitor.sinks.plot import INK

from ..figures import dress, legend, save_both, slide

COLOURS = {"baseline": "#8c959f", "local": "#e9a23b", "shared": "#2a9d8f"}
SERVER = ("#9cc7f5", "#0b62d6", "#08458f", "#052b5c")
CONTRAST = 30.0


Curve = tuple[dict[str, Any], list[Point]]
"""The figures of a variant, as in the report, and its losses; times of the points are seconds since training began."""


def draw(curves: Sequence[Curve], heading: tuple[str, str], path: Path) -> None:
    """Write the plot to `path` with .png and with .svg appended, each atomically."""
    figure = slide(*heading)
    by_time, by_entries = figure.subplots(1, 2, sharey=True)
    _panel(by_time, curves, lambda point: point.t, "seconds of training")
    _panel(by_entries, curves, lambda point: point.position / 1e6, "million entries trained")
    by_time.set_ylabel("loss: weighted squared error per entry", color=INK, fontsize=11)
    legend(figure, by_time, columns=2)
    save_both(figure, path)


def _panel(axes: Axes, curves: Sequence[Curve], place: Callable[[Point], float], label: str) -> None:
    for number, (row, curve) in enumerate(curves):
        kind = row["run"].partition("-")[0]
        colour = SERVER[min(row["workers"], len(SERVER)) - 1] if kind == "server" else COLOURS[kind]
        points = [point for point in curve if place(point) > 0]
        xs, losses = [place(point) for point in points], [point.loss for point in points]
        name = f"{row['variant']}: {row['entries_per_second'] / 1e6:.2f} M entries/s"
        axes.plot(xs, losses, color=colour, lw=2.6, label=name, solid_capstyle="round", zorder=3 + number)
        axes.plot(xs[-1:], losses[-1:], "o", color=colour, ms=8, mec="white", mew=1.4, zorder=20)
    every = [place(point) for _, curve in curves for point in curve if place(point) > 0]
    if every and max(every) / min(every) > CONTRAST:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter("")
    else:
        axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    dress(axes, label)
