"""Draw one run or several as PNG or SVG: loss against time and against entries or updates, and scores.

For word vectors, the bias-only loss is drawn for comparison. Uses matplotlib's object interface, never its global state
(pyplot), so that any process can draw.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glovewire.common.errors import OutputError, UsageError
from glovewire.common.storage.artifacts import atomic_stream
from glovewire.common.text import amount, printable, shown_loss

from ..history import formatting
from ..history.colours import RUN_COLOURS, worker_colours
from ..history.curve import Point
from ..history.history import RunHistory

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = {".png": "png", ".svg": "svg"}
INK, FAINT, GRID = "#1b1f24", "#6e7781", "#e4e8ec"
OVERALL_COLOUR, BIAS_ONLY_COLOUR = "#0b62d6", "#b3541e"
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


def plot(histories: RunHistory | Sequence[RunHistory], path: Path) -> None:
    """Draw one run, or several in comparison, into `path` (.png or .svg) atomically; OutputError if this fails."""
    check_path(path)
    try:
        figure = draw(histories)
    except OSError as error:
        text = "Matplotlib finds no folder for its cache: name a writable one in MPLCONFIGDIR"
        raise OutputError(f"{path} cannot be drawn: {text}") from error
    with warnings.catch_warnings(), atomic_stream(path) as stream:
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # a worker may have any name
        figure.savefig(stream, format=FORMATS[path.suffix.lower()], dpi=150)


def draw(histories: RunHistory | Sequence[RunHistory]) -> Figure:
    """Return the figure of one run, or of several in comparison: losses and, if there are any, scores."""
    from matplotlib.figure import Figure

    runs = [histories] if isinstance(histories, RunHistory) else list(histories)
    scored = any(history.quality for history in runs)
    figure = Figure(figsize=(15.5 if scored else 11.5, 5.0), facecolor="white")
    figure.set_layout_engine("constrained", w_pad=0.12, h_pad=0.1, wspace=0.02)
    by_time, by_done = (panels := figure.subplots(1, 2 + scored))[:2]
    by_done.sharey(by_time)
    scale, unit = _time_unit(max(history.seconds for history in runs))
    dense = all(history.is_dense for history in runs)
    for history, colour in zip(runs, cycle([OVERALL_COLOUR] if len(runs) == 1 else RUN_COLOURS), strict=False):
        look = _Look(colour, OVERALL) if len(runs) == 1 else _Look(colour, _literal(history.title), alone=False)
        _draw_losses(by_time, by_done, history, scale, look)
        if scored:
            _draw_scores(panels[2], history, look)
    by_time.set_xlabel(f"training time ({unit})", color=INK)
    by_done.set_xlabel("updates" if dense else "million entries", color=INK)
    by_time.set_ylabel("loss per example" if dense else "loss per entry", color=INK)
    by_done.tick_params(labelleft=False)
    every = [point for history in runs for point in history.overall.all_points()]
    if len(runs) == 1 and not dense:
        _mark_epochs(by_done, runs[0])
    _scale_losses(by_time, every, [p.loss for h in runs for name in h.workers for p in h.worker_points(name)])
    _write_headings(figure, runs)
    _add_legend(figure, by_time)
    return figure


@dataclass(frozen=True)
class _Look:
    """Colour and label of a run's curve; `alone`: the figure shows no other run, so it also shows the workers."""

    colour: str
    label: str
    alone: bool = True


def _draw_losses(by_time: Axes, by_done: Axes, history: RunHistory, scale: float, look: _Look) -> None:
    _draw_axes(by_time, history, lambda point: history.since_start(point.t) / scale, look)
    _draw_axes(by_done, history, lambda point: point.epoch if history.is_dense else point.position / 1e6, look)


def _draw_axes(axes: Axes, history: RunHistory, x_of: Callable[[Point], float], look: _Look) -> None:
    style(axes, 9)
    colours = worker_colours(history.workers) if look.alone else {}
    for name, colour in colours.items():
        points = history.worker_points(name)
        label = _literal(name) if len(colours) <= NAMED_WORKERS else f"{len(colours)} workers"
        xs, ys = [x_of(point) for point in points], [point.loss for point in points]
        axes.plot(xs, ys, color=colour, lw=0.8, alpha=0.5, label=label, zorder=2)
    points = history.overall.all_points()
    xs, ys = [x_of(point) for point in points], [point.mean_loss for point in points]
    if not history.is_dense:
        bias_only = [point.mean_bias_only_loss for point in points]
        shown: dict[str, Any] = (
            {"color": BIAS_ONLY_COLOUR, "lw": 1.5} if look.alone else {"color": look.colour, "lw": 1.0}
        )
        axes.plot(xs, bias_only, ls=(0, (5, 2.5)), label=BIAS_ONLY, zorder=3, **shown)
    label = "all workers" if history.is_dense and look.alone else look.label
    axes.plot(xs, ys, color=look.colour, lw=2.6, label=label, solid_capstyle="round", zorder=4)
    if points:
        axes.plot(xs[-1:], ys[-1:], "o", color=look.colour, ms=6, mec="white", mew=1.2, zorder=5, clip_on=False)
    right = max(xs, default=1.0) * 1.04 or 1.0
    axes.set_xlim(0, right if look.alone else max(right, axes.get_xlim()[1] if axes.lines else 0.0))


def _draw_scores(axes: Axes, history: RunHistory, look: _Look) -> None:
    """Draw each test's scores against time; one run has a colour per test, several have a colour per run."""
    from matplotlib.ticker import MaxNLocator

    style(axes, 9)
    scale, unit = _time_unit(history.seconds)
    names = list(history.quality)[:NAMED_WORKERS]
    for (name, colour), line in zip(worker_colours(names).items(), cycle(("-", "--", ":", "-.")), strict=False):
        scores = history.quality[name]
        xs, ys = [history.since_start(each.t) / scale for each in scores], [each.score for each in scores]
        shown: dict[str, Any] = (
            {"color": colour, "label": _literal(name)} if look.alone else {"color": look.colour, "ls": line}
        )
        axes.plot(xs, ys, marker="o", lw=1.8, ms=4, **shown)
        told = f"{ys[-1]:.1f}" if look.alone else f"{_literal(name)} {ys[-1]:.1f}"
        side: dict[str, Any] = {"xytext": (4, 4)} if look.alone else {"xytext": (0, 6), "ha": "right"}
        axes.annotate(
            told, (xs[-1], ys[-1]), textcoords="offset points", fontsize=9, color=FAINT, parse_math=False, **side
        )
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.set_xlabel(f"training time ({unit})", color=INK)
    axes.set_ylabel("score (%)", color=INK)
    if look.alone:
        axes.legend(frameon=False, fontsize=9, labelcolor=INK).set_zorder(6)


def style(axes: Axes, label_size: float) -> None:
    """Add a grid, remove the frame except its bottom line, and set tick labels to `label_size` points."""
    axes.grid(visible=True, which="major", color=GRID, lw=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)
    axes.tick_params(which="both", length=0, colors=FAINT, labelsize=label_size)


def _mark_epochs(axes: Axes, history: RunHistory) -> None:
    """Draw a thin line at the end of every sweep whose entries are known, at most MARKED_EPOCHS lines."""
    epochs, entries = history.sweep
    ends = (history.loss.entries - 1) // entries if history.loss and entries > 0 else 0
    if not 0 < ends <= MARKED_EPOCHS:
        return
    for number in range(1, ends + 1):
        axes.axvline(number * entries / 1e6, color=FAINT, lw=0.7, ls=(0, (1, 3)), zorder=1)
    label = "dotted: ends of epochs" if epochs == 1 else f"dotted: every {epochs} epochs"
    axes.text(1.0, 1.01, label, transform=axes.transAxes, ha="right", va="bottom", fontsize=8, color=FAINT)


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


def _write_headings(figure: Figure, runs: Sequence[RunHistory]) -> None:
    names = ", ".join(filter(None, (history.title for history in runs)))
    heading = printable(f"Training {names}".rstrip())
    figure.suptitle(heading, x=0.012, ha="left", fontsize=15, fontweight="bold", color=INK, parse_math=False)
    if len(runs) > 1:
        text = "   ·   ".join(
            f"{history.title}: loss {shown_loss(last.mean_loss)}"
            for history in runs
            if (last := history.overall.last) is not None
        )
    else:
        text = _summary(runs[0])
    figure.axes[0].set_title(printable(text), loc="left", fontsize=10, color=FAINT, pad=14, parse_math=False)


def _summary(history: RunHistory) -> str:
    last = history.overall.last
    if last is None:
        return "no losses yet"
    workers = f"{len(history.workers)} workers"
    took = formatting.duration(history.since_start(last.t))
    if history.is_dense:
        done = f"{last.epoch:,} updates, {amount(last.position)} examples in {took}"
        parts = [f"training loss {shown_loss(last.mean_loss)}", done, workers, f"gradient norm {last.norm:.3g}"]
    else:
        loss = f"loss {shown_loss(last.mean_loss)}, bias-only loss {shown_loss(last.mean_bias_only_loss)}"
        done = f"{last.position / 1e6:,.1f} million entries in {took}"
        parts = [loss, done, workers, f"mean vector norm {last.norm:.2f}"]
    return "   ·   ".join(parts)


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
