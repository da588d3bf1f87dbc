"""Style the plots of studies and benchmarks: title and caption at the top, legend at the bottom."""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from glovewire.common.storage.artifacts import atomic_stream
from glovewire.monitor.sinks.plot import FAINT, FORMATS, INK, style

LEFT = 0.012


def slide(title: str, caption: str) -> Figure:
    """Return an empty figure with a title and a `caption`, one or two lines that say what was measured."""
    figure = Figure(figsize=(13.33, 6.2), facecolor="white")
    figure.set_layout_engine("constrained", w_pad=0.15, h_pad=0.12, wspace=0.04)
    below = "\n" * (1 + caption.count("\n"))
    figure.suptitle(title + below, x=LEFT, ha="left", fontsize=18, fontweight="bold", color=INK)
    figure.text(
        LEFT + 0.001, 0.925, caption, ha="left", va="top", fontsize=11, color=FAINT, linespacing=1.5, parse_math=False
    )  # fmt: skip
    return figure


def dress(axes: Axes, label: str) -> None:
    """Add a grid, remove the frame except its bottom line, and label the horizontal axis."""
    axes.set_xlabel(label, color=INK, fontsize=11)
    style(axes, 10)


def legend(figure: Figure, axes: Axes, columns: int = 4, size: int = 11) -> None:
    """Put the legend of `axes` below all panels of the figure."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=size, labelcolor=INK
    )  # fmt: skip


def save_both(figure: Figure, path: Path) -> None:
    """Write the figure to `path` with .png and with .svg appended, each atomically."""
    for suffix in (".png", ".svg"):
        save(figure, path.with_name(path.name + suffix))


def save(figure: Figure, path: Path) -> None:
    """Write the figure to `path` (.png or .svg) atomically."""
    with atomic_stream(path) as stream:
        figure.savefig(stream, format=FORMATS[path.suffix.lower()], dpi=120)
