"""Build the dashboard's charts: Bokeh figures of a RunHistory. page.js sets their colours, light or dark."""

import html
from collections.abc import Sequence
from itertools import cycle
from typing import Any

from ..history.colours import RUN_COLOURS, worker_colours
from ..history.curve import LossCurve, Point
from ..history.history import RunHistory

HEIGHT = 320
RATE_HEIGHT = 260
X_TICKS = 5
FONT = "system-ui, -apple-system, Segoe UI, Roboto, DejaVu Sans, sans-serif"
SECONDS = """
const isFine = ticks.some((each) => each < 10 && Math.abs(each - Math.round(each)) > 0.005)
if (isFine && tick < 60) return `${+tick.toFixed(2)} s`
const whole = Math.round(tick), pad = (n) => String(n).padStart(2, "0")
if (whole < 3600) return `${Math.floor(whole / 60)}:${pad(whole % 60)}`
return `${Math.floor(whole / 3600)}:${pad(Math.floor(whole / 60) % 60)}:${pad(whole % 60)}`
"""
AMOUNT = """
for (const [size, prefix] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]])
  if (tick >= size) return `${+(tick / size).toPrecision(DIGITS)} ${prefix}`
return `${+tick.toPrecision(DIGITS)}`
"""
AXIS_AMOUNT, SHORT_AMOUNT = AMOUNT.replace("DIGITS", "6"), AMOUNT.replace("DIGITS", "3")
TOOLBAR = ":host(.bk-inner) { background-color: var(--card); --icon-color: var(--ink); }"
PLAIN = "return tick && Math.abs(tick) < 1e-3 ? tick.toExponential(0) : `${+tick.toPrecision(4)}`"
LOG_TICKS = """
const {start, end} = cb_data
if (!(start > 0 && end > start)) return []
const decades = Math.log10(end / start), every = Math.max(1, Math.ceil(decades / 7))
const mantissas = decades > 3 ? [1] : decades > 1.5 ? [1, 3] : decades > 0.8 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 7]
const ticks = []
for (let power = Math.floor(Math.log10(start)); power <= Math.log10(end); power++)
  if (power % every == 0) for (const mantissa of mantissas) ticks.push(mantissa * 10 ** power)
return ticks.filter((tick) => tick >= start && tick <= end)
"""

WORKER_COLUMNS = ("t", "done", "loss", "worker", "colour")
MAX_WORKER_POINTS = 150
MAX_POINTS_OF_ALL_WORKERS = 3_000

THEMED = (
    "axes", "grids", "mains", "dots", "areas", "bias_only", "workers", "smoothed", "linear", "logarithmic",
    "hovers", "bias_only_lines",
)  # fmt: skip
"""Keys of `Charts.themed`: lists of Bokeh models whose colour or visibility page.js changes."""

Columns = dict[str, Any]
"""Column names and values: lists of equal length."""


def overall_columns(history: RunHistory, points: Sequence[Point]) -> Columns:
    """Return points of the overall curve."""
    return {
        **_curve(history, points),
        "mean": [_six_digits(point.mean_loss) for point in points],
        "bias_only": [_six_digits(point.mean_bias_only_loss) for point in points],
        "rate": [round(point.entries_per_second) for point in points],
        "epoch": [point.epoch for point in points],
    }


def worker_columns(history: RunHistory) -> Columns:
    """Return one curve per worker, coarser for many workers; `t`, `done` and `loss` are lists of one list each."""
    found: Columns = {name: [] for name in WORKER_COLUMNS}
    most = max(12, min(MAX_WORKER_POINTS, MAX_POINTS_OF_ALL_WORKERS // max(1, len(history.workers))))
    for name, colour in worker_colours(history.workers).items():
        points = history.worker_points(name, most)
        for column, values in (_curve(history, points) | {"worker": name, "colour": colour}).items():
            found[column].append(values)
    return found


def _curve(history: RunHistory, points: Sequence[Point]) -> Columns:
    """Return the losses of points, their times, and what was done: entries, or updates of a dense model."""
    return {
        "t": [round(history.since_start(point.t), 2) for point in points],
        "done": [point.epoch if history.is_dense else point.position for point in points],
        "loss": [_six_digits(point.loss) for point in points],
    }


def _tooltip(rows: Sequence[tuple[str, str]]) -> str:
    """Return Bokeh's template of a tooltip with these labels and values, in the colours of the page.

    Bokeh's own tooltips stay white in dark mode.
    """
    cells = "".join(
        f"<span style='color:var(--faint)'>{label}</span><span style='text-align:right'>{value}</span>"
        for label, value in rows
    )
    look = "margin:-5px;padding:8px 11px;background:var(--card);color:var(--ink);font-size:12.5px;line-height:1.5"
    return f"<div style='{look};display:grid;grid-template-columns:auto auto;column-gap:14px'>{cells}</div>"


def _literal(name: str) -> str:
    """Return a name from the network as a tooltip's template shows it: without markup and fields."""
    return html.escape(name).translate({ord(each): f"&#{ord(each)};" for each in "@${}"})


def _six_digits(value: float) -> float:
    """Round to six significant digits, more than a chart can show, to send fewer bytes."""
    return float(f"{value:.6g}")


class RunSources:
    """Bokeh column sources of one RunHistory."""

    def __init__(self, history: RunHistory, colour: str) -> None:
        from bokeh.models import ColumnDataSource

        self.history = history
        self.colour = colour
        self.curve = ColumnDataSource(overall_columns(history, []))
        self.head = ColumnDataSource(overall_columns(history, []) | {"dot": []})
        self.workers = ColumnDataSource({name: [] for name in WORKER_COLUMNS})
        self._sent_of: tuple[LossCurve, int, bool] | None = None
        self._sent = 0
        self._workers_shown: tuple[float, int] | None = None
        self._last: Point | None = None

    def update(self, *, workers: bool) -> None:
        """Send new points of the overall curve, all if earlier ones have changed; with `workers`, all of theirs."""
        curve = self.history.overall
        if curve.last is not self._last:
            self._last = curve.last
            version = (curve, curve.generation, self.history.is_dense)
            if version != self._sent_of:
                self._sent_of, self._sent = version, len(curve.points)
                self.curve.data = overall_columns(self.history, curve.points)
            elif points := curve.points[self._sent :]:
                self._sent += len(points)
                self.curve.stream(overall_columns(self.history, points))
            head = curve.points[-1:] + ([curve.last] if curve.last is not None else [])
            self.head.data = overall_columns(self.history, head) | {"dot": [0, 10][2 - len(head) :]}
        shown = (self.history.t, len(self.history.workers))
        if workers and shown != self._workers_shown:
            self._workers_shown, self.workers.data = shown, worker_columns(self.history)


class Charts:
    """Figures of one page, for one run or for several in comparison."""

    def __init__(self, histories: list[RunHistory]) -> None:
        self._compare = len(histories) > 1
        self.runs = [
            RunSources(history, colour) for history, colour in zip(histories, cycle(RUN_COLOURS), strict=False)
        ]
        self.themed: dict[str, list[Any]] = {name: [] for name in THEMED}
        self.by_time = self._loss("by_time", "t", SECONDS)
        self.by_done = self._loss("by_done", "done", AXIS_AMOUNT)
        self.rate = self._rate()

    def _loss(self, name: str, x: str, ticks: str) -> Any:
        from bokeh.layouts import column

        logarithmic = self._loss_figure(x, ticks, "log")
        linear = self._loss_figure(x, ticks, "linear")
        linear.visible = False
        self.themed["logarithmic"].append(logarithmic)
        self.themed["linear"].append(linear)
        return column(logarithmic, linear, sizing_mode="stretch_width", name=name)

    def _loss_figure(self, x: str, ticks: str, scale: str) -> Any:
        from bokeh.models import CustomJSTicker

        plot = self._figure(ticks, PLAIN, y_axis_type=scale)
        if scale == "log":
            plot.yaxis[0].ticker = plot.ygrid[0].ticker = CustomJSTicker(major_code=LOG_TICKS)
        for run in self.runs:
            lines = plot.multi_line(x, "loss", source=run.workers, line_color="colour", line_width=1.2, line_alpha=0.55)
            lines.visible = not self._compare
            self.themed["workers"].append(lines)
            self._add_bias_only(plot, run, x)
            main = plot.line(x, "mean", source=run.curve, line_width=3, line_join="round", line_cap="round")
            self._add_head(plot, run, x, "mean", main)
            self._add_hover(plot, main, [("run", _literal(run.history.title))] if self._compare else [])
        return plot

    def _add_bias_only(self, plot: Any, run: RunSources, x: str) -> None:
        for source in (run.curve, run.head):
            line = plot.line(x, "bias_only", source=source, line_width=1.8, line_dash=[7, 5], line_alpha=0.9)
            self.themed["bias_only_lines"].append(line)
            if self._compare:
                line.glyph.line_color, line.glyph.line_width = run.colour, 1.2
            else:
                self.themed["bias_only"].append(line.glyph)

    def _rate(self) -> Any:
        plot = self._figure(SECONDS, AXIS_AMOUNT)
        plot.update(height=RATE_HEIGHT, name="rate")
        plot.y_range.start = 0
        for run in self.runs:
            if not self._compare:
                area = plot.varea("t", 0, "rate", source=run.curve, fill_alpha=0.12)
                self.themed["areas"].append(area.glyph)
            line = plot.line("t", "rate", source=run.curve, line_width=2, line_join="round")
            self._add_head(plot, run, "t", "rate", line)
            self._add_hover(plot, line, [])
        return plot

    def _add_head(self, plot: Any, run: RunSources, x: str, y: str, line: Any) -> None:
        """Add the end of the curve `line`, which moves with every sample, and a dot; set the colours of all three."""
        end = plot.line(x, y, source=run.head, line_width=line.glyph.line_width, line_cap="round")
        dot = plot.scatter(x, y, source=run.head, size="dot", line_width=2, fill_color=run.colour, line_color="white")
        if self._compare:
            line.glyph.line_color = end.glyph.line_color = run.colour
        else:
            self.themed["mains"] += [line.glyph, end.glyph]
            self.themed["dots"].append(dot.glyph)
        if y == "mean":
            self.themed["smoothed"] += [line.glyph, end.glyph, dot.glyph]

    def _add_hover(self, plot: Any, line: Any, first: Sequence[tuple[str, str]]) -> None:
        from bokeh.models import CustomJSHover, HoverTool

        clock = CustomJSHover(code="const tick = value, ticks = [value]" + SECONDS)
        amount = CustomJSHover(code=SHORT_AMOUNT.replace("tick", "value"))
        formatters: Any = {"@t": clock, "@done": amount, "@rate": amount}
        rows = {
            "time": "@t{custom}",
            "entries": "@done{custom}",
            "epochs done": "@epoch",
            "loss": "@mean{0.0000}",
            "loss since the last sample": "@loss{0.0000}",
            "bias-only loss": "@bias_only{0.0000}",
            "entries per second": "@rate{custom}",
        }
        dense = {
            "time": "@t{custom}",
            "steps": "@done{custom}",
            "training loss": "@mean{0.0000}",
            "examples per second": "@rate{custom}",
        }
        words, of_dense = (_tooltip([*first, *shown.items()]) for shown in (rows, dense))
        tool = HoverTool(renderers=[line], mode="vline", tooltips=words, formatters=formatters, tags=[words, of_dense])
        self.themed["hovers"].append(tool)
        plot.add_tools(tool)

    def _figure(self, x_ticks: str, y_ticks: str, **options: Any) -> Any:
        from bokeh.models import AdaptiveTicker, CustomJSTickFormatter, InlineStyleSheet
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
        plot.toolbar.update(logo=None, autohide=True, stylesheets=[InlineStyleSheet(css=TOOLBAR)])
        base, mantissas = (60, [1, 2, 5, 10, 15, 30]) if x_ticks == SECONDS else (10, [1, 2, 5])
        plot.xaxis[0].ticker = AdaptiveTicker(base=base, mantissas=mantissas, desired_num_ticks=X_TICKS)
        for axis, code in ((plot.xaxis[0], x_ticks), (plot.yaxis[0], y_ticks)):
            axis.formatter = CustomJSTickFormatter(code=code)
            axis.update(major_tick_line_color=None, minor_tick_line_color=None, axis_line_color=None)
            axis.update(major_label_text_font=FONT, major_label_text_font_size="12px")
        plot.x_range.update(range_padding=0.02, start=0)
        plot.xgrid[0].grid_line_color = None
        self.themed["axes"] += [plot.xaxis[0], plot.yaxis[0]]
        self.themed["grids"].append(plot.ygrid[0])
        return plot
