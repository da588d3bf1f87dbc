"""Draw a run as PNG or SVG: loss against time and against entries, with the bias-only loss for comparison.

Uses matplotlib's object interface, never its global state (pyplot), so that any process can draw.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from itertools import cycle, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glovewire.common.errors import OutputError, UsageError
from glovewire.common.storage.artifacts import atomic_stream
from glovewire.common.text import printable

from ..history import formatting
from ..history.curve import Point
from ..history.history import RunHistory

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = {".png": "png", ".svg": "svg"}
INK, FAINT, GRID = "#1b1f24", "#6e7781", "#e4e8ec"
OVERALL_COLOUR, BIAS_ONLY_COLOUR = "#0b62d6", "#b3541e"
WORKER_COLOURS = ("#2a9d8f", "#e9a23b", "#9b5de5", "#ef476f", "#5fa8d3", "#8ab17d", "#c77dff", "#f4845f")
OVERALL, BIAS_ONLY = "all workers, over the whole matrix", "bias-only loss"
NAMED_WORKERS = 8
MARKED_EPOCHS = 20
LOG_FROM_RATIO = 4.0


def check_path(path: Path) -> None:
    """Raise UsageError or OutputError unless a picture can be written to `path`."""
    if path.suffix.lower() not in FORMATS:
        raise UsageError(f"{path} must end in .png or .svg")
    folder = path.absolute().parent
    if not folder.is_dir():
        raise OutputError(f"{path} cannot be written: there is no such folder")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OutputError(f"{path} cannot be written: no permission in {folder}")


def plot(history: RunHistory, path: Path, title: str = "") -> None:
    """Draw `history` into `path` (.png or .svg) atomically; OutputError when `path` cannot be written."""
    check_path(path)
    try:
        figure = draw(history, title)
    except OSError as error:
        text = "Matplotlib finds no folder for its cache: name a writable one in MPLCONFIGDIR"
        raise OutputError(f"{path} cannot be drawn: {text}") from error
    with warnings.catch_warnings(), atomic_stream(path) as stream:
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # a worker may have any name
        figure.savefig(stream, format=FORMATS[path.suffix.lower()], dpi=150)


def draw(history: RunHistory, title: str = "") -> Figure:
    """Return the figure of `history`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11.5, 5.0), facecolor="white")
    figure.set_layout_engine("constrained", w_pad=0.12, h_pad=0.1, wspace=0.02)
    FigureCanvasAgg(figure)
    by_time, by_entries = figure.subplots(1, 2, sharey=True)
    points = history.overall.all_points()
    scale, unit = _time_unit(history.seconds)
    _draw_axes(by_time, history, lambda point: history.since_start(point.t) / scale)
    _draw_axes(by_entries, history, lambda point: point.position / 1e6)
    by_time.set_xlabel(f"training time ({unit})", color=INK)
    by_entries.set_xlabel("million entries", color=INK)
    by_time.set_ylabel("loss per entry", color=INK)
    _mark_epochs(by_entries, points)
    _scale_losses(by_time, points, [p.loss for w in history.workers.values() for p in w.curve.all_points()])
    _write_headings(figure, history, title)
    _add_legend(figure, by_time)
    return figure


def _draw_axes(axes: Axes, history: RunHistory, x_of: Callable[[Point], float]) -> None:
    style(axes, 9)
    workers = sorted(history.workers.values(), key=lambda worker: formatting.natural_key(worker.name))
    for worker, colour in zip(workers, cycle(WORKER_COLOURS), strict=False):
        points = worker.curve.all_points()
        label = _literal(worker.name) if len(workers) <= NAMED_WORKERS else f"{len(workers)} workers"
        xs, ys = [x_of(point) for point in points], [point.loss for point in points]
        axes.plot(xs, ys, color=colour, lw=0.8, alpha=0.5, label=label, zorder=2)
    points = history.overall.all_points()
    xs, ys = [x_of(point) for point in points], [point.mean_loss for point in points]
    bias_only = [point.mean_bias_only_loss for point in points]
    axes.plot(xs, bias_only, color=BIAS_ONLY_COLOUR, lw=1.5, ls=(0, (5, 2.5)), label=BIAS_ONLY, zorder=3)
    axes.plot(xs, ys, color=OVERALL_COLOUR, lw=2.6, label=OVERALL, solid_capstyle="round", zorder=4)
    if points:
        axes.plot(xs[-1:], ys[-1:], "o", color=OVERALL_COLOUR, ms=6, mec="white", mew=1.2, zorder=5, clip_on=False)
    axes.set_xlim(0, max(xs, default=1.0) * 1.04 or 1.0)


def style(axes: Axes, label_size: float) -> None:
    """Add a grid, remove the frame except its bottom line, and set tick labels to `label_size` points."""
    axes.grid(visible=True, which="major", color=GRID, lw=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)
    axes.tick_params(which="both", length=0, colors=FAINT, labelsize=label_size)


def _mark_epochs(axes: Axes, points: Sequence[Point]) -> None:
    """Draw a thin line at the end of every epoch, unless there are more than MARKED_EPOCHS."""
    ends = [before.position / 1e6 for before, after in pairwise(points) if after.epoch > before.epoch]
    if len(ends) > MARKED_EPOCHS:
        return
    for end in ends:
        axes.axvline(end, color=FAINT, lw=0.7, ls=(0, (1, 3)), zorder=1)
    if ends:
        style: dict[str, Any] = {"ha": "right", "va": "top", "fontsize": 8, "color": FAINT, "backgroundcolor": "white"}
        axes.text(0.995, 0.985, "dotted: ends of epochs", transform=axes.transAxes, **style)


def _scale_losses(axes: Axes, points: Sequence[Point], worker_losses: Sequence[float]) -> None:
    """Make the loss axis logarithmic if the losses span a ratio of LOG_FROM_RATIO or more and none is negative."""
    from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

    values = [value for point in points for value in (point.mean_loss, point.mean_bias_only_loss) if value > 0]
    if not values or any(point.mean_loss < 0 for point in points):
        return
    if max(values) / min(values) < LOG_FROM_RATIO:
        axes.set_ylim(bottom=0)
        return
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    plain = ScalarFormatter(useOffset=False)
    plain.set_scientific(False)
    axes.yaxis.set_major_formatter(plain)
    axes.yaxis.set_minor_formatter(NullFormatter())
    lowest = min([value for value in worker_losses if value > 0], default=min(values))
    axes.set_ylim(max(lowest, min(values) / 4) * 0.8, max(values) * 1.3)


def _write_headings(figure: Figure, history: RunHistory, title: str) -> None:
    last = history.overall.last
    heading = printable(title or " ".join(filter(None, ["Training", history.title])))
    figure.suptitle(heading, x=0.012, ha="left", fontsize=15, fontweight="bold", color=INK, parse_math=False)
    summary = "no losses yet"
    if last is not None:
        summary = (
            f"loss {formatting.loss(last.mean_loss)}, bias-only loss {formatting.loss(last.mean_bias_only_loss)}   ·   "
            f"{last.position / 1e6:,.1f} million entries in {formatting.duration(history.seconds)}   ·   "
            f"{len(history.workers)} workers   ·   mean vector norm {last.norm:.2f}"
        )
    figure.axes[0].set_title(summary, loc="left", fontsize=10, color=FAINT, pad=14)


def _add_legend(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    order = sorted(unique, key=lambda label: (label != OVERALL, label != BIAS_ONLY))
    style: dict[str, Any] = {"ncols": min(len(order), 6), "frameon": False, "fontsize": 9.5, "labelcolor": INK}
    legend = figure.legend([unique[label] for label in order], order, loc="outside lower center", **style)
    for text in legend.get_texts():
        text.set_parse_math(False)


def _literal(name: str) -> str:
    """Return `name` as a label that matplotlib shows; matplotlib hides labels that begin with an underscore."""
    return f"\u200b{name}" if name.startswith("_") else name


def _time_unit(seconds: float) -> tuple[float, str]:
    if seconds < 600:
        return 1.0, "s"
    return (60.0, "min") if seconds < 10_800 else (3600.0, "h")
