"""One screen of the terminal view, as something rich can print: never higher or wider than asked. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..history import formatting as units
from ..history.history import History, Worker
from .braille import chart

QUIET_AFTER_S = 3.0
LABEL = 7
STATES = {"training": "green", "late": "yellow", "lost": "bold red", "left": "bright_black", "done": "bright_black"}
KINDS = {"failed": "bold red", "lost": "red", "finished": "bold green", "checkpoint": "cyan", "joined": "green"}
CURVES = {0: "bold bright_blue", 1: "yellow"}


@dataclass(frozen=True)
class Room:
    """Lines for each part; headings not counted."""

    chart: int
    workers: int
    shards: int
    events: int


def screen(
    history: History, now: float, width: int, height: int, silent: Sequence[str] = (), *, ascii_only: bool = False
) -> RenderableType:
    """The whole view in `height` lines of `width` cells; `silent` are addresses that have not been heard yet."""
    room = share(height, len(history.workers), len(history.shards), len(history.events))
    parts: list[RenderableType] = [
        _head(history, now, width, silent),
        _bar(history, width, ascii_only),
        _numbers(history),
    ]
    if room.chart and history.overall.last is not None:
        parts += _chart(history, width, room.chart, ascii_only)
    if room.workers:
        parts.append(_workers(history, now, room.workers))
    if room.shards:
        parts.append(_shards(history, room.shards))
    parts += _events(history, room.events)
    return Group(*parts)


def share(height: int, workers: int, shards: int, events: int) -> Room:
    """Share out `height` lines: a little for each part first, then the curve, then whoever still lacks some."""
    left = height - 3
    few = [min(workers, 4), min(shards, 3), min(events, 3)]
    while sum(few) + sum(1 for rows in few[:2] if rows) + 5 > left and any(few):
        most = max(range(3), key=lambda part: few[part])
        few[most] -= 1
    left -= sum(few) + sum(1 for rows in few[:2] if rows)
    lines = max(0, min(10, left - 1))
    left -= lines + 1 if lines else 0
    for part, wanted in ((0, workers), (1, shards), (2, min(events, 8))):
        if few[part]:
            more = max(0, min(left, wanted - few[part]))
            few[part] += more
            left -= more
    return Room(lines, *few)


def _head(history: History, now: float, width: int, silent: Sequence[str]) -> Text:
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append("glovewire", "bold")
    if name := history.name or history.run:
        text.append(f"  {name}", "bright_black")
    text.append("  ")
    text.append(*state(history, now, silent))
    if history.lost:
        text.append(f"  {history.lost} samples missed", "yellow")
    right = _clock(history)
    gap = width - text.cell_len - right.cell_len
    return text.append(" " * gap).append_text(right) if gap > 1 else text


def state(history: History, now: float, silent: Sequence[str] = ()) -> tuple[str, str]:
    """What is going on, and the style to say it in."""
    quiet = history.silence_s(now)
    if history.failed is not None:
        return f"failed: {history.failed}", "bold red"
    if history.finished:
        return "finished", "bold green"
    if quiet is None:
        return f"waiting for {', '.join(silent) or 'the server'}", "yellow"
    if quiet > QUIET_AFTER_S:
        return f"no data for {quiet:.0f} s", "bold yellow"
    if history.loss:
        return "training", "green"
    return "connected, nothing trained yet" if history.active else f"connected, {units.NOBODY_YET}", "green"


def _clock(history: History) -> Text:
    if history.loss is None:
        return Text()
    text = Text(style="bright_black").append(f"{units.duration(history.seconds)} gone")
    eta = history.eta_s
    if eta is not None and not history.finished:
        text.append("  ETA ").append(units.duration(eta), "bold default")
    return text


def _bar(history: History, width: int, ascii_only: bool) -> Text:
    done, sample = history.progress, history.loss
    if sample is None or done is None:
        return Text()
    says = f" {done:4.0%}  {units.amount(sample.entries)} of {units.amount(sample.total)} entries"
    if sample.epochs:
        says += f"  epoch {min(sample.epoch + 1, sample.epochs)}/{sample.epochs}"
    cells = max(8, width - len(says) - 1)
    full = round(done * cells)
    solid, empty = ("#", "-") if ascii_only else ("━", "─")
    return (
        Text(no_wrap=True)
        .append(solid * full, "bright_blue")
        .append(empty * (cells - full), "bright_black")
        .append(says)
    )


def _numbers(history: History) -> Text:
    sample = history.loss
    if sample is None:
        return Text()
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append("loss ").append(units.loss(history.mean.loss), CURVES[0])
    text.append("  vectors at zero ").append(units.loss(history.mean.bias_only_loss), CURVES[1])
    text.append("  norm ").append(f"{sample.norm:.2f}", "bold")
    text.append("  ").append(f"{units.amount(history.entries_per_second)} entries/s", "bold")
    for test, scores in list(history.quality.items())[:2]:
        text.append(f"  {units.plain(test, 12)} ").append(f"{scores[-1].score:.1f}", "bold")
    return text


def _chart(history: History, width: int, height: int, ascii_only: bool) -> list[RenderableType]:
    curve = history.overall.curve()
    curves = [[(p.t, p.mean_loss) for p in curve], [(p.t, p.mean_bias_only_loss) for p in curve]]
    rows, (low, high) = chart(curves, width - LABEL - 2, height, ascii_only=ascii_only)
    labels = {0: units.loss(high)[:6], height - 1: units.loss(low)[:6]} if curve else {}
    edge = "|" if ascii_only else "▕"
    drawn: list[RenderableType] = []
    for number, row in enumerate(rows):
        text = Text(f"{labels.get(number, ''):>{LABEL}}{edge}", style="bright_black", no_wrap=True)
        for character, owner in row:
            text.append(character, CURVES.get(owner, ""))
        drawn.append(text)
    first, last = (*(units.duration(history.since_start(curve[end].t)) for end in (0, -1)),) if curve else ("", "")
    axis = f"{' ' * (LABEL + 1)}{first}{last:>{max(0, width - LABEL - 2 - len(first))}}"
    return [*drawn, Text(axis, style="bright_black", no_wrap=True)]


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, expand=True, header_style="bright_black", padding=(0, 1, 0, 0))
    for number, heading in enumerate(headings):
        table.add_column(
            heading, justify="left" if number < 2 else "right", no_wrap=True, ratio=2 if number == 0 else 1
        )
    return table


def _workers(history: History, now: float, rows: int) -> Table:
    table = _table("worker", "state", "entries", "entries/s", "sends", "stale by", "heard")
    order = sorted(history.workers.values(), key=_worst_first)
    shown = order if len(order) <= rows else order[: rows - 1]
    for worker in shown:
        age, does = worker.age_s(now), history.state(worker)
        table.add_row(
            Text(worker.name),
            Text(does, STATES.get(does, "")),
            units.amount(worker.entries),
            units.amount(worker.entries_per_second),
            f"{units.amount(worker.bytes_per_second, 'B')}/s",
            str(worker.sample.staleness) if worker.sample else "",
            "" if age is None else units.age(age),
        )
    if len(shown) < len(order):
        table.add_row(Text(f"and {len(order) - len(shown)} more", "bright_black"))
    return table


def _worst_first(worker: Worker) -> tuple[int, list[tuple[int, str]]]:
    return {"lost": 0, "late": 1, "left": 3}.get(worker.state, 2), units.natural(worker.name)


def _shards(history: History, rows: int) -> Table:
    table = _table("shard", "rows", "pulls/s", "pushes/s", "traffic", "parked", "refused")
    order = [history.shards[number] for number in sorted(history.shards)]
    shown = order if len(order) <= rows else order[: rows - 1]
    for shard in shown:
        sample = shard.sample
        table.add_row(
            f"{sample.shard}/{sample.shards}",
            f"{sample.rows:,}",
            units.amount(shard.pulls_per_second),
            units.amount(shard.pushes_per_second),
            f"{units.amount(shard.bytes_per_second, 'B')}/s",
            str(sample.waiting),
            str(sample.refused),
        )
    if len(shown) < len(order):
        table.add_row(Text(f"and {len(order) - len(shown)} more", "bright_black"))
    return table


def _events(history: History, rows: int) -> list[RenderableType]:
    lines: list[RenderableType] = []
    for event in list(history.events)[-rows:] if rows else ():
        text = Text(no_wrap=True, overflow="ellipsis")
        text.append(f"{units.duration(history.since_start(event.t)):>{LABEL}} ", "bright_black").append(
            event.kind, KINDS.get(event.kind, "bold")
        )
        lines.append(text.append(f"  {event.subject}  {event.text}".rstrip()))
    return lines
