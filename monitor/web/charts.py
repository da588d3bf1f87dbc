"""The dashboard's charts: Bokeh figures over column sources. Colours that depend on light or dark come from page.js."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..history.curve import Point, Series
from ..history.formatting import natural
from ..history.history import History

HEIGHT = 320
PACE_HEIGHT = 260
X_TICKS = 5
ONE_RUN = ("#1f6feb",)
RUNS = ("#2f7bf0", "#e0762f", "#2a9d72", "#b05fd6", "#d64570", "#2ba3b8", "#a5842a", "#7d8794")
FONT = "system-ui, -apple-system, Segoe UI, Roboto, DejaVu Sans, sans-serif"
SECONDS = """
const whole = Math.round(tick), pad = (n) => String(n).padStart(2, "0")
if (whole < 3600) return `${Math.floor(whole / 60)}:${pad(whole % 60)}`
return `${Math.floor(whole / 3600)}:${pad(Math.floor(whole / 60) % 60)}:${pad(whole % 60)}`
"""
MILLIONS = "return !tick ? `0` : tick >= 1000 ? `${+(tick / 1000).toPrecision(6)} G` : `${+tick.toPrecision(6)} M`"
PACE = """
if (tick >= 1e6) return `${+(tick / 1e6).toPrecision(6)} M`
return tick >= 1e3 ? `${+(tick / 1e3).toPrecision(6)} k` : `${+tick.toPrecision(6)}`
"""
LOG_TICKS = [mantissa * 10.0**power for power in range(-6, 4) for mantissa in (1, 2, 5)]
PLAIN = "return `${+tick.toPrecision(4)}`"


@dataclass
class Painted:
    """Everything whose colour or visibility page.js changes."""

    axes: list[Any] = field(default_factory=list)
    grids: list[Any] = field(default_factory=list)
    mains: list[Any] = field(default_factory=list)
    dots: list[Any] = field(default_factory=list)
    areas: list[Any] = field(default_factory=list)
    floors: list[Any] = field(default_factory=list)
    each: list[Any] = field(default_factory=list)
    smoothed: list[Any] = field(default_factory=list)
    linear: list[Any] = field(default_factory=list)
    logarithmic: list[Any] = field(default_factory=list)


class Run:
    """One History on the charts: its sources, and how they are kept up to date."""

    def __init__(self, history: History, colour: str) -> None:
        from bokeh.models import ColumnDataSource

        self.history = history
        self.colour = colour
        self._trace = Trace(history)
        self.curve = ColumnDataSource({name: [] for name in COLUMNS})
        self.head = ColumnDataSource({name: [] for name in (*COLUMNS, "dot")})
        self.each = ColumnDataSource({name: [] for name in WORKER_COLUMNS})
        self._each_shown: tuple[float, int] | None = None
        self._last: Point | None = None

    def update(self, *, workers: bool) -> None:
        """Send what is new; the workers' curves, which are sent whole, only with `workers`."""
        last = self.history.overall.last
        if last is not self._last:
            self._last = last
            self._apply(self._trace.change())
        shown = (self.history.t, len(self.history.workers))
        if workers and shown != self._each_shown:
            self._each_shown, self.each.data = shown, each_worker(self.history)

    def _apply(self, change: Change) -> None:
        if change.replace:
            self.curve.data = change.columns
        elif change.columns["t"]:
            self.curve.stream(change.columns)
        self.head.data = {**change.head, "dot": [0, 10][-len(change.head["t"]) :] if change.head["t"] else []}


class Charts:
    """All figures of one page, for one run or several laid over each other."""

    def __init__(self, histories: list[History]) -> None:
        many = len(histories) > 1
        self.runs = [Run(history, RUNS[number % len(RUNS)]) for number, history in enumerate(histories)]
        self.painted = Painted()
        self.by_time = self._loss("by_time", "t", SECONDS, many)
        self.by_entries = self._loss("by_entries", "entries", MILLIONS, many)
        self.pace = self._pace(many)

    def update(self, *, workers: bool) -> None:
        """Bring every run up to date."""
        for run in self.runs:
            run.update(workers=workers)

    def _loss(self, name: str, x: str, ticks: str, many: bool) -> Any:
        from bokeh.layouts import column

        logarithmic = self._loss_figure(x, ticks, many, "log")
        linear = self._loss_figure(x, ticks, many, "linear")
        linear.visible = False
        self.painted.logarithmic.append(logarithmic)
        self.painted.linear.append(linear)
        return column(logarithmic, linear, sizing_mode="stretch_width", name=name)

    def _loss_figure(self, x: str, ticks: str, many: bool, scale: str) -> Any:
        from bokeh.models import FixedTicker

        plot = self._figure(ticks, PLAIN, y_axis_type=scale)
        if scale == "log":
            plot.yaxis[0].ticker = plot.ygrid[0].ticker = FixedTicker(ticks=LOG_TICKS)
        for run in self.runs:
            self._workers(plot, run, x, shown=not many)
            self._floor(plot, run, x, many)
            main = plot.line(x, "mean", source=run.curve, line_width=3, line_join="round", line_cap="round")
            self._colour(plot, run, x, "mean", main, many)
            self._hover(plot, main, [("run", f"{run.history.name or run.history.run}")] if many else [])
        return plot

    def _floor(self, plot: Any, run: Run, x: str, many: bool) -> None:
        """The loss with the vectors at zero, dashed, to where the run is."""
        for source in (run.curve, run.head):
            line = plot.line(x, "floor", source=source, line_width=1.8, line_dash=[7, 5], line_alpha=0.9)
            if many:
                line.glyph.line_color, line.glyph.line_width = run.colour, 1.2
            else:
                self.painted.floors.append(line.glyph)

    def _workers(self, plot: Any, run: Run, x: str, *, shown: bool) -> None:
        lines = plot.multi_line(x, "loss", source=run.each, line_color="colour", line_width=1.2, line_alpha=0.55)
        lines.visible = shown
        self.painted.each.append(lines)

    def _pace(self, many: bool) -> Any:
        plot = self._figure(SECONDS, PACE)
        plot.height = PACE_HEIGHT
        plot.name = "pace"
        plot.y_range.start = 0
        for run in self.runs:
            if not many:
                area = plot.varea("t", 0, "pace", source=run.curve, fill_alpha=0.12)
                self.painted.areas.append(area.glyph)
            line = plot.line("t", "pace", source=run.curve, line_width=2, line_join="round")
            self._colour(plot, run, "t", "pace", line, many)
            self._hover(plot, line, [])
        return plot

    def _colour(self, plot: Any, run: Run, x: str, y: str, line: Any, many: bool) -> None:
        """A run's curve, its end that moves with every sample, and a dot there."""
        end = plot.line(x, y, source=run.head, line_width=line.glyph.line_width, line_cap="round")
        dot = plot.scatter(x, y, source=run.head, size="dot", line_width=2, fill_color=run.colour, line_color="white")
        if many:
            line.glyph.line_color = end.glyph.line_color = run.colour
        else:
            self.painted.mains += [line.glyph, end.glyph]
            self.painted.dots.append(dot.glyph)
        if y == "mean":
            self.painted.smoothed += [line.glyph, end.glyph, dot.glyph]

    def _hover(self, plot: Any, line: Any, first: list[tuple[str, str]]) -> None:
        from bokeh.models import CustomJSHover, HoverTool

        clock = CustomJSHover(code=SECONDS.replace("tick", "value"))
        rows = [
            ("time", "@t{custom}"),
            ("entries", "@entries{0,0.0} M"),
            ("loss", "@mean{0.0000}"),
            ("of these blocks", "@loss{0.0000}"),
            ("vectors at zero", "@floor{0.0000}"),
            ("entries/s", "@pace{0.00 a}"),
            ("epochs done", "@epoch"),
        ]
        plot.add_tools(HoverTool(renderers=[line], mode="vline", tooltips=first + rows, formatters={"@t": clock}))

    def _figure(self, x_ticks: str, y_ticks: str, **options: Any) -> Any:
        from bokeh.models import AdaptiveTicker, CustomJSTickFormatter
        from bokeh.plotting import figure

        plot = figure(
            height=HEIGHT,
            sizing_mode="stretch_width",
            tools="xpan,xwheel_zoom,box_zoom,reset,save",
            active_drag=None,
            active_scroll=None,
            toolbar_location="above",
            toolbar_inner=True,
            background_fill_color=None,
            border_fill_color=None,
            outline_line_color=None,
            output_backend="canvas",
            **options,
        )
        plot.toolbar.logo = None
        plot.toolbar.autohide = True
        round_numbers = [1, 2, 5, 10, 15, 30] if x_ticks == SECONDS else [1, 2, 5]
        plot.xaxis[0].ticker = AdaptiveTicker(
            base=60 if x_ticks == SECONDS else 10, mantissas=round_numbers, desired_num_ticks=X_TICKS
        )
        for axis, code in ((plot.xaxis[0], x_ticks), (plot.yaxis[0], y_ticks)):
            axis.formatter = CustomJSTickFormatter(code=code)
            axis.update(major_tick_line_color=None, minor_tick_line_color=None, axis_line_color=None)
            axis.update(major_label_text_font=FONT, major_label_text_font_size="12px")
        plot.x_range.update(range_padding=0.02, start=0)
        plot.xgrid[0].grid_line_color = None
        self.painted.axes += [plot.xaxis[0], plot.yaxis[0]]
        self.painted.grids.append(plot.ygrid[0])
        return plot


# ---- A History as columns for charts: what is new is added, the rest stays. Pure; it must never send a curve twice.

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
