"""The pictures of `glovewire study staleness`: learning curves with bands over seeds, and how stale gradients were."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from common.artifacts import replacing
from monitor.plot import FAINT, FORMATS, GRID, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KNOWN = {"one worker": "#8c959f", "sync": "#2a9d8f", "async": "#d1495b", "gap": "#0b62d6", "inverse": "#e9a23b"}
OTHERS = ("#9b5de5", "#5fa8d3", "#6a994e", "#b08968", "#c77dff")
POINTS = 200


def curves(setting: dict[str, Any], heading: str, path: Path) -> None:
    """Loss against seconds and against entries: the median over seeds, a band from least to most."""
    figure = _figure("Learning curves, each method at its best rate", heading)
    by_time, by_entries = figure.subplots(1, 2, sharey=True)
    _panel(by_time, setting, lambda run: run["t"], "seconds")
    scale = setting["batch_size"] / 1e6
    _panel(by_entries, setting, lambda run: [n * scale for n in run["gradients"]], "million entries")
    by_time.set_ylabel("loss on a fixed sample of entries", color=INK, fontsize=11)
    handles, labels = by_time.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=11, labelcolor=INK)
    _save(figure, path)


def ages(setting: dict[str, Any], heading: str, path: Path) -> None:
    """How many changes gradients knew nothing of: all changes of the shard, and those of their rows."""
    figure = _figure("How stale gradients were when they were carried out", heading)
    panels = figure.subplots(1, 2, sharey=True)
    told = (("staleness", "changes to the table since the pull"), ("row_ages", "changes to the row since the pull"))
    methods = [method for method in setting["methods"] if method["method"] != "one worker"]
    for axes, (key, label) in zip(panels, told, strict=True):
        names = max((list(run[key]) for method in methods for run in method["runs"]), key=len)
        for number, method in enumerate(methods):
            counts = np.array([sum(run[key].get(name, 0) for run in method["runs"]) for name in names], float)
            axes.plot(
                range(len(names)), 100 * counts / max(counts.sum(), 1), "o-", ms=5, lw=2,
                color=_colour(number, method["method"]), label=method["method"],
            )  # fmt: skip
        axes.set_xticks(range(len(names)), names, rotation=35, ha="right")
        _dress(axes, label)
    panels[0].set_ylabel("share in percent", color=INK, fontsize=11)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=11, labelcolor=INK)
    _save(figure, path)


def _panel(axes: Axes, setting: dict[str, Any], place: Any, label: str) -> None:
    start = max(run["loss"][0] for method in setting["methods"] for run in method["runs"])
    lowest = min(min(run["loss"]) for method in setting["methods"] for run in method["runs"])
    for number, method in enumerate(setting["methods"]):
        kept = [run for run in method["runs"] if run["ended"] != "diverged"]
        colour, name = _colour(number, method["method"]), f"{method['method']} (rate {method['rate']:g})"
        if not kept:
            axes.plot([], [], color=colour, lw=2.4, ls=":", label=f"{name}: diverged")
            continue
        grid, losses = _together([place(run) for run in kept], [run["loss"] for run in kept])
        low, middle, high = losses.min(axis=0), np.median(losses, axis=0), losses.max(axis=0)
        axes.fill_between(grid, low, high, color=colour, alpha=0.16, lw=0)
        style = "--" if "/" in method["method"] else "-"
        axes.plot(grid, middle, color=colour, lw=2.4, ls=style, label=name, solid_capstyle="round", zorder=3 + number)
    axes.axhline(setting["goal"], color=FAINT, lw=1, ls=(0, (4, 4)), zorder=1)
    axes.annotate(
        f"goal {setting['goal']:g}", (1, setting["goal"]), xycoords=("axes fraction", "data"), xytext=(0, 4),
        textcoords="offset points", ha="right", fontsize=9, color=FAINT,
    )  # fmt: skip
    axes.set_ylim(lowest * 0.92, min(start, setting["goal"] * 2.2))
    axes.set_xlim(left=0)
    _dress(axes, label)


def _together(places: Sequence[Sequence[float]], losses: Sequence[Sequence[float]]) -> tuple[Any, Any]:
    """Every run's loss at the same places, up to where the shortest ends."""
    grid = np.linspace(0, min(each[-1] for each in places), POINTS)
    return grid, np.array([np.interp(grid, at, loss) for at, loss in zip(places, losses, strict=True)])


def _figure(title: str, told: str) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13.33, 6.2), facecolor="white")
    figure.set_layout_engine("constrained", w_pad=0.15, h_pad=0.12, wspace=0.04)
    FigureCanvasAgg(figure)
    figure.suptitle(f"{title}\n", x=0.012, ha="left", fontsize=18, fontweight="bold", color=INK)
    figure.text(0.0135, 0.925, told, ha="left", va="top", fontsize=11, color=FAINT)
    return figure


def _dress(axes: Axes, label: str) -> None:
    axes.set_xlabel(label, color=INK, fontsize=11)
    axes.grid(visible=True, which="major", color=GRID, lw=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)
    axes.tick_params(which="both", length=0, colors=FAINT, labelsize=10)


def _colour(number: int, title: str) -> str:
    return KNOWN.get(title, KNOWN["async"] if "/" in title else OTHERS[number % len(OTHERS)])


def _save(figure: Figure, path: Path) -> None:
    with replacing(path) as stream:
        figure.savefig(stream, format=FORMATS[path.suffix], dpi=110)
