"""Draw the plots of `glovewire study staleness`: learning curves with bands over seeds, and staleness histograms.

Each is written to `path` with .png and .svg appended, atomically.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from glovewire.monitor.sinks.plot import FAINT, INK

from ..figures import dress, legend, save_both, slide

KNOWN = {"one worker": "#8c959f", "sync": "#2a9d8f", "async": "#d1495b", "gap": "#0b62d6", "inverse": "#e9a23b"}
OTHERS = ("#9b5de5", "#5fa8d3", "#6a994e", "#b08968", "#c77dff")
POINTS = 200
CONTRAST = 20.0
"""The loss axis is logarithmic if the initial loss is more than this multiple of the goal."""
LOSS = "loss on the fixed sample"


def three(
    methods: Sequence[dict[str, Any]], goal: float, reached: Sequence[float | None], caption: str, path: Path
) -> None:
    """Plot the loss of a few methods against time in one panel, and mark each median time to the goal (`reached`)."""
    figure = slide("Loss against time, each method at its best rate", caption)
    axes = figure.subplots()
    _panel(axes, methods, goal, lambda run: run["t"], "seconds of training")
    for number, (method, seconds) in enumerate(zip(methods, reached, strict=True)):
        if seconds is None:
            continue
        colour = _colour(number, method["method"])
        axes.plot([seconds], [goal], "o", color=colour, ms=11, mec="white", mew=1.6, zorder=20)
        axes.annotate(
            f"{seconds:.1f} s", (seconds, goal), xytext=(0, 14 if number % 2 else -14), textcoords="offset points",
            ha="center", va="bottom" if number % 2 else "top", fontsize=14, fontweight="bold", color=colour, zorder=21,
        )  # fmt: skip
    axes.set_ylabel(LOSS, color=INK, fontsize=12)
    legend(figure, axes, size=13)
    save_both(figure, path)


def curves(setting: dict[str, Any], caption: str, unit: str, path: Path) -> None:
    """Plot loss against seconds and against examples: the median over seeds, in a band from minimum to maximum."""
    figure = slide("Every method at its best rate, against time and against examples", caption)
    by_time, by_entries = figure.subplots(1, 2, sharey=True)
    methods, goal = setting["methods"], setting["goal"]
    _panel(by_time, methods, goal, lambda run: run["t"], "seconds of training")
    most = max(run["gradients"][-1] for method in methods for run in method["runs"]) * setting["batch_size"]
    size, word = (1e6, "million") if most > 1e6 else (1e3, "thousand")
    scale = setting["batch_size"] / size
    _panel(by_entries, methods, goal, lambda run: [n * scale for n in run["gradients"]], f"{word} {unit} trained")
    by_time.set_ylabel(LOSS, color=INK, fontsize=11)
    legend(figure, by_time)
    save_both(figure, path)


def ages(setting: dict[str, Any], caption: str, path: Path) -> None:
    """Plot two histograms of staleness per mode: changes to the table, and to the row, between pull and push."""
    figure = slide("Staleness of gradients when they were applied", caption)
    panels = figure.subplots(1, 2, sharey=True)
    by_mode: dict[str, list[dict[str, Any]]] = {}
    for method in setting["methods"]:
        if method["method"] != "one worker":
            by_mode.setdefault(method["mode"], []).extend(method["runs"])
    sides = (("staleness", "changes to the table since the pull"), ("row_ages", "changes to the row since the pull"))
    for axes, (key, label) in zip(panels, sides, strict=True):
        names = max((list(run[key]) for runs in by_mode.values() for run in runs), key=len)
        width = 0.8 / len(by_mode)
        for number, (mode, runs) in enumerate(by_mode.items()):
            counts = np.array([sum(run[key].get(name, 0) for run in runs) for name in names], float)
            places = np.arange(len(names)) + (number - (len(by_mode) - 1) / 2) * width
            name = "async, with and without policies" if mode == "async" else mode
            axes.bar(places, 100 * counts / max(counts.sum(), 1), width, color=_colour(number, mode), label=name)
        axes.set_xticks(range(len(names)), names, rotation=35, ha="right")
        dress(axes, label)
    panels[0].set_ylabel("percent of gradients, and of rows in gradients", color=INK, fontsize=11)
    legend(figure, panels[0])
    save_both(figure, path)


def _panel(axes: Axes, methods: Sequence[dict[str, Any]], goal: float, place: Any, label: str) -> None:
    start = max(run["loss"][0] for method in methods for run in method["runs"])
    lowest = min(min(run["loss"]) for method in methods for run in method["runs"])
    for number, method in enumerate(methods):
        kept = [run for run in method["runs"] if run["ended"] != "diverged"]
        colour, name = _colour(number, method["method"]), f"{method['method']} (rate {method['rate']:g})"
        if not kept:
            axes.plot([], [], color=colour, lw=2.4, ls=":", label=f"{name}: diverged")
            continue
        grid = np.linspace(0, min(place(run)[-1] for run in kept), POINTS)  # up to the end of the shortest run
        losses = np.array([np.interp(grid, place(run), run["loss"]) for run in kept])
        low, middle, high = losses.min(axis=0), np.median(losses, axis=0), losses.max(axis=0)
        axes.fill_between(grid, low, high, color=colour, alpha=0.16, lw=0)
        style = "--" if "/" in method["method"] else "-"
        axes.plot(grid, middle, color=colour, lw=2.6, ls=style, label=name, solid_capstyle="round", zorder=3 + number)
        axes.plot(grid[-1:], middle[-1:], "o", color=colour, ms=6, mec="white", mew=1.2, zorder=19)
    if goal < start:
        axes.axhline(goal, color=FAINT, lw=1, ls=(0, (4, 4)), zorder=1)
        axes.annotate(
            f"goal {goal:g}", (0, goal), xycoords=("axes fraction", "data"), xytext=(5, -4), va="top",
            textcoords="offset points", fontsize=10, color=FAINT,
        )  # fmt: skip
    if start > CONTRAST * goal:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.set_ylim(lowest * 0.8, start * 1.1)
    else:
        axes.set_ylim(max(lowest - 0.08 * goal, 0), min(start, goal * 2.2))
    axes.set_xlim(left=0)
    dress(axes, label)


def _colour(number: int, title: str) -> str:
    return KNOWN.get(title, KNOWN["async"] if "/" in title else OTHERS[number % len(OTHERS)])
