"""Render one screen of the terminal view for rich, never larger than the given size. No I/O."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Group, JustifyMethod, RenderableType
from rich.table import Table
from rich.text import Text

from glovewire.common.text import amount, shown_loss

from ..history import formatting, tables
from ..history.history import RunHistory
from ..history.scores import newest_scores
from .braille import braille_plot

LABEL_WIDTH = 7
MAX_PLOT = 24
STATUS_STYLES = {"good": "green", "warn": "bold yellow", "bad": "bold red", "calm": "bold green"}
FAINT = "bright_black"
STATE_STYLES = {"training": "green", "late": "yellow", "lost": "bold red", "left": FAINT, "done": FAINT}
EVENT_STYLES = {"failed": "bold red", "lost": "red", "finished": "bold green", "checkpoint": "cyan", "joined": "green"}
CURVE_STYLES = {0: "bold bright_blue", 1: "yellow"}


@dataclass(frozen=True)
class ScreenLayout:
    """Number of lines of each part of the screen, without headings."""

    plot: int
    workers: int
    shards: int
    events: int


def render_screen(
    history: RunHistory, now: float, width: int, height: int, silent: Sequence[str] = (), *, ascii_only: bool = False
) -> RenderableType:
    """Render `height` lines of `width` cells; `silent` are the addresses from which nothing has arrived yet."""
    layout = plan_layout(height, len(history.workers), len(history.shards), len(history.events))
    bar = _progress_bar(history, width, ascii_only)
    parts: list[RenderableType] = [_header(history, now, width, silent), bar, _figures(history)]
    if layout.plot and history.overall.last is not None:
        parts += _plot(history, width, layout.plot, ascii_only)
    if layout.workers:
        parts.append(_workers(history, now, layout.workers))
    if layout.shards:
        parts.append(_shards(history, layout.shards))
    parts += _events(history, layout.events)
    return Group(*parts)


def plan_layout(height: int, workers: int, shards: int, events: int) -> ScreenLayout:
    """Divide `height` lines: first a few for each list, then a plot, then longer lists and a taller plot."""
    left = height - 3
    lines = [min(workers, 4), min(shards, 3), min(events, 3)]
    while sum(lines) + sum(1 for rows in lines[:2] if rows) + 5 > left and any(lines):
        lines[lines.index(max(lines))] -= 1
    left -= sum(lines) + sum(1 for rows in lines[:2] if rows)
    plot = max(0, min(10, left - 1))
    left -= plot + 1 if plot else 0
    for part, wanted in enumerate((workers, shards, min(events, 8))):
        if lines[part]:
            more = max(0, min(left, wanted - lines[part]))
            lines[part] += more
            left -= more
    plot += max(0, min(left, MAX_PLOT - plot)) if plot else 0
    return ScreenLayout(plot, *lines)


def _header(history: RunHistory, now: float, width: int, silent: Sequence[str]) -> Text:
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append("glovewire", "bold")
    if history.title:
        text.append(f"  {history.title}", FAINT)
    status = history.status(now, silent)
    text.append("  ").append(status.text, STATUS_STYLES[status.level])
    if history.lost:
        text.append(f"  {history.lost} samples missed", "yellow")
    right = _clock(history)
    gap = width - text.cell_len - right.cell_len
    return text.append(" " * gap).append_text(right) if gap > 1 else text


def _clock(history: RunHistory) -> Text:
    if history.loss is None:
        return Text()
    text = Text(style=FAINT).append(f"elapsed {formatting.duration(history.seconds)}")
    eta = history.eta_s
    if eta is not None and not history.finished:
        text.append("  ETA ").append(formatting.duration(eta), "bold default")
    return text


def _progress_bar(history: RunHistory, width: int, ascii_only: bool) -> Text:
    done, sample = history.progress, history.loss
    if sample is None or done is None:
        return Text()
    if history.is_dense:
        label = f" {done:4.0%}  {history.epoch} steps"
    else:
        label = f" {done:4.0%}  {amount(sample.entries)} of {amount(sample.total)} entries"
        label += f"  epoch {history.epoch}" if sample.epochs else ""
    cells = max(8, width - len(label) - 1)
    full = round(done * cells)
    solid, empty = ("#", "-") if ascii_only else ("━", "─")
    bar = Text(no_wrap=True).append(solid * full, "bright_blue").append(empty * (cells - full), FAINT)
    return bar.append(label)


def _figures(history: RunHistory) -> Text:
    """Return one line of figures: loss, scores, then less important ones, which a narrow screen cuts off first."""
    sample = history.loss
    if sample is None:
        return Text()
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append("training loss " if history.is_dense else "loss ")
    text.append(shown_loss(sample.mean_loss), CURVE_STYLES[0])
    if not history.is_dense:
        text.append("  bias-only loss ").append(shown_loss(sample.mean_bias_only_loss), CURVE_STYLES[1])
    if history.is_dense and not sample.epochs:
        text.append("  steps ").append(history.epoch, "bold")
    for score in newest_scores(history):
        text.append(f"  {formatting.sanitize(score.test, 14)} ").append(score.value, "bold")
    if history.is_dense:
        text.append("  ").append(f"{amount(history.updates_per_second)} steps/s", "bold")
        text.append(f"  {amount(history.entries_per_second)} examples/s")
        return text.append("  gradient norm ").append(f"{sample.norm:.3g}", "bold")
    text.append("  ").append(f"{amount(history.entries_per_second)} entries/s", "bold")
    return text.append("  norm ").append(f"{sample.norm:.2f}", "bold")


def _plot(history: RunHistory, width: int, height: int, ascii_only: bool) -> list[RenderableType]:
    points = history.overall.all_points()
    curves = [[(p.t, p.mean_loss) for p in points]]
    if not history.is_dense:
        curves.append([(p.t, p.mean_bias_only_loss) for p in points])
    rows, (low, high) = braille_plot(curves, width - LABEL_WIDTH - 2, height, ascii_only=ascii_only)
    labels = {0: _axis_label(high), height - 1: _axis_label(low)}
    edge = "|" if ascii_only else "▕"
    lines: list[RenderableType] = []
    for number, row in enumerate(rows):
        text = Text(f"{labels.get(number, ''):>{LABEL_WIDTH}}{edge}", style=FAINT, no_wrap=True)
        for character, owner in row:
            text.append(character, CURVE_STYLES.get(owner, ""))
        lines.append(text)
    first, last = (formatting.duration(history.since_start(points[end].t)) for end in (0, -1))
    axis = f"{' ' * (LABEL_WIDTH + 1)}{first}{last:>{max(0, width - LABEL_WIDTH - 2 - len(first))}}"
    return [*lines, Text(axis, style=FAINT, no_wrap=True)]


def _axis_label(value: float) -> str:
    """Return a loss in at most six characters."""
    return f"{value:.0e}" if 0 < value < 1e-3 else shown_loss(value)[:6]


def _table(rows: Sequence[Mapping[str, str | Text]], room: int) -> Table:
    """Return a table of at most `room` lines below the headings, which are the keys of the rows."""
    table = Table(box=None, pad_edge=False, expand=True, header_style=FAINT, padding=(0, 1, 0, 0))
    for number, heading in enumerate(rows[0]):
        justify: JustifyMethod = "left" if number < 2 else "right"
        table.add_column(heading, justify=justify, no_wrap=True, ratio=1 if number else 2)
    shown = rows if len(rows) <= room else rows[: room - 1]
    for row in shown:
        table.add_row(*row.values())
    if len(shown) < len(rows):
        table.add_row(Text(f"and {len(rows) - len(shown)} more", FAINT))
    return table


def _workers(history: RunHistory, now: float, room: int) -> Table:
    rows = []
    for worker in history.workers_by_urgency():
        state = history.worker_state(worker)
        styled = {"worker": Text(worker.name), "state": Text(state, STATE_STYLES.get(state, ""))}
        rows.append(styled | tables.worker_cells(history, worker, now))
    return _table(rows, room)


def _shards(history: RunHistory, room: int) -> Table:
    rows = [
        {
            "shard": f"{shard.sample.shard}/{shard.sample.shards}",
            "rows": f"{shard.sample.rows:,}",
            **tables.shard_cells(history, shard),
            "waiting": str(shard.sample.waiting),
            "refused": str(shard.sample.refused),
        }
        for _, shard in sorted(history.shards.items())
    ]
    return _table(rows, room)


def _events(history: RunHistory, room: int) -> list[RenderableType]:
    lines: list[RenderableType] = []
    for event in list(history.events)[-room:] if room else ():
        when = formatting.duration(history.since_start(event.t))
        text = Text(no_wrap=True, overflow="ellipsis").append(f"{when:>{LABEL_WIDTH}} ", FAINT)
        text.append(event.kind, EVENT_STYLES.get(event.kind, "bold"))
        lines.append(text.append(f"  {event.subject}  {event.text}".rstrip()))
    return lines
