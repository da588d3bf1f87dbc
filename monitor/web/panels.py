"""The dashboard's words: tiles, tables and events as HTML. Pure.

Names come off the wire: each goes through `text`, nothing else makes markup of a value. It must never import bokeh.
"""

from __future__ import annotations

import html
from collections.abc import Sequence

from glovewire.common.protocol.messages import ServerSample

from ..history import formatting as units
from ..history.history import History

QUIET_AFTER_S = 3.0
MAX_ROWS = 64
MAX_SHOWN_EVENTS = 40
_WORST_FIRST = {"lost": 0, "late": 1, "training": 2, "left": 3}


def text(value: object) -> str:
    """`value` as text that no browser takes for markup."""
    return html.escape(str(value), quote=True)


def status(history: History, now: float, silent: Sequence[str] = ()) -> str:
    """The line at the top: which run, what it is doing, how long."""
    kind, says = state(history, now, silent)
    name = history.name or history.run
    clock = f"<span class=clock>{units.duration(history.seconds)} gone</span>" if history.loss else ""
    eta = history.eta_s
    if eta is not None and not history.finished:
        clock += f"<span class=clock>ETA <b>{units.duration(eta)}</b></span>"
    missed = f"<span class=clock>{history.lost:,} samples missed</span>" if history.lost else ""
    return (
        f"<div class=status><b class=run>{text(name)}</b><span class='pill {kind}' role=status>{text(says)}</span>"
        f"{missed}<span class=space></span>{clock}</div>"
    )


def state(history: History, now: float, silent: Sequence[str] = ()) -> tuple[str, str]:
    """A class (good, warn, bad, calm) and the words for what is going on."""
    quiet = history.silence_s(now)
    if history.failed is not None:
        return "bad", f"failed: {history.failed}"
    if history.finished:
        return "calm", "finished"
    if quiet is None:
        return "warn", f"waiting for {', '.join(silent) or 'the server'}"
    if quiet > QUIET_AFTER_S:
        return "warn", f"no data for {quiet:.0f} s"
    if history.loss:
        return "good", "training"
    return "good", "connected" if history.active else f"connected, {units.NOBODY_YET}"


def tiles(history: History) -> str:
    """The figures that one looks at first."""
    sample = history.loss
    if sample is None:
        empty = (_tile("loss", "–"), _tile("entries per second", "–"), _tile("workers", history.active))
        return f"<div class=tiles>{''.join(empty)}</div>"
    mean = history.mean
    shown = [
        _tile(
            "loss",
            units.loss(mean.loss),
            f"vectors at zero: {units.loss(mean.bias_only_loss)}",
            "main",
        ),
        _tile("epoch", _epoch(history), _bar(history), ""),
        _tile("entries per second", units.amount(history.entries_per_second), f"{units.amount(sample.entries)} done"),
        _tile("workers", history.active, _gone(history)),
        *_traffic(history),
        _tile("mean vector norm", f"{sample.norm:.2f}", "grows as vectors learn"),
    ]
    shown += [
        _tile(test, f"{scores[-1].score:.1f} %", "similarity") for test, scores in list(history.quality.items())[:2]
    ]
    return f"<div class=tiles>{''.join(shown)}</div>"


def _traffic(history: History) -> list[str]:
    """What servers receive and send now, or did until the end; nothing where nobody has said, as in a replay."""
    if not history.shards:
        return []
    if history.finished:
        received, sent = (units.amount(moved, "B") for moved in history.moved)
        return [_tile("servers received", received, f"and sent {sent}")]
    received, sent = (f"{units.amount(rate, 'B')}/s" for rate in history.traffic)
    return [_tile("servers receive", received, f"and send {sent}")]


def workers(history: History, now: float) -> str:
    """A row for each worker, the troubled first."""
    order = sorted(history.workers.values(), key=lambda w: (_WORST_FIRST.get(w.state, 2), units.natural(w.name)))
    rows = [
        (
            f"<span class=name>{text(worker.name)}</span>",
            _state(history.state(worker)),
            units.amount(worker.entries),
            units.amount(worker.entries_per_second),
            f"{units.amount(worker.bytes_per_second, 'B')}/s",
            str(worker.sample.staleness) if worker.sample else "",
            "" if (age := worker.age_s(now)) is None else units.age(age),
        )
        for worker in order[:MAX_ROWS]
    ]
    headings = ("worker", "state", "entries", "entries/s", "sends", "stale by", "heard")
    return table(headings, rows, len(order) - len(rows), "no workers yet")


def shards(history: History) -> str:
    """A row for each shard, with bars that show whether the load is balanced."""
    order = [history.shards[number] for number in sorted(history.shards)]
    several = len(order) > 1
    most_rows = max((shard.sample.rows for shard in order), default=0) if several else 0
    most_traffic = max((shard.bytes_per_second for shard in order), default=0.0) if several else 0.0
    rows = [
        (
            str(shard.sample.shard),
            _meter(shard.sample.rows, most_rows, f"{shard.sample.rows:,}"),
            units.amount(shard.sample.table_bytes, "B"),
            _meter(shard.bytes_per_second, most_traffic, f"{units.amount(shard.bytes_per_second, 'B')}/s"),
            units.amount(shard.pulls_per_second),
            units.amount(shard.pushes_per_second),
            str(shard.sample.waiting),
            f"{shard.sample.repeated:,}",
            f"{shard.sample.refused:,}",
            _checkpoints(shard.sample),
        )
        for shard in order[:MAX_ROWS]
    ]
    headings = (
        "shard",
        "rows",
        "memory",
        "traffic",
        "pulls/s",
        "pushes/s",
        "waiting",
        "again",
        "refused",
        "saved",
    )
    return table(headings, rows, len(order) - len(rows), "no shard has said anything yet")


def events(history: History) -> str:
    """What happened, the newest first."""
    newest = list(history.events)[: -MAX_SHOWN_EVENTS - 1 : -1]
    items = [
        f"<li><time>{units.duration(history.since_start(event.t))}</time>"
        f"<b class={_tone(event.kind)}>{text(event.kind)}</b>"
        f"<span>{text(event.subject)}</span><span class=told>{text(event.text)}</span></li>"
        for event in newest
    ]
    return f"<ol class=events>{''.join(items)}</ol>" if items else "<p class=none>nothing yet</p>"


def comparison(histories: Sequence[History], colours: Sequence[str]) -> str:
    """A row for each run, to compare them."""
    rows = []
    for history, colour in zip(histories, colours, strict=True):
        last = history.overall.last
        if last is None:
            continue
        dot = f"<i class=dot style='background:{text(colour)}'></i>"
        rows.append(
            (
                f"<span class=name>{dot}{text(history.name or history.run)}</span>",
                units.loss(history.mean.loss),
                units.loss(history.mean.bias_only_loss),
                f"{last.norm:.2f}",
                units.amount(last.position),
                units.duration(history.seconds),
                units.amount(last.position / history.seconds) if history.seconds > 0 else "",
                str(len(history.workers)),
            )
        )
    headings = ("run", "loss", "vectors at zero", "norm", "entries", "time", "entries/s", "workers")
    return table(headings, rows, 0, "nothing to compare")


def compared(count: int) -> str:
    """The line at the top of a comparison."""
    return f"<div class=status><b class=run>{count} runs</b><span class=clock>laid over each other</span></div>"


def _tile(label: str, value: object, note: str = "", kind: str = "") -> str:
    shown = note if note.startswith("<div class=bar>") else text(note)
    return f"<div class='tile {kind}'><span>{text(label)}</span><b>{text(value)}</b><small>{shown}</small></div>"


def _epoch(history: History) -> str:
    sample = history.loss
    if sample is None:
        return "–"
    return f"{min(sample.epoch + 1, sample.epochs)} of {sample.epochs}" if sample.epochs else str(sample.epoch)


def _bar(history: History) -> str:
    done = history.progress
    return "" if done is None else f"<div class=bar><i style='width:{done:.1%}'></i></div>"


def _gone(history: History) -> str:
    lost = sum(worker.state == "lost" for worker in history.workers.values())
    left = sum(worker.state == "left" for worker in history.workers.values())
    return ", ".join([f"{lost} lost"] * bool(lost) + [f"{left} left"] * bool(left)) or "all well"


def _checkpoints(sample: ServerSample) -> str:
    return f"{sample.checkpoints} · {sample.checkpoint_s:.2f} s" if sample.checkpoints else "none"


def _state(state: str) -> str:
    kind = state if state in _WORST_FIRST else "other"
    return f"<span class='state {kind}'>{text(state)}</span>"


def _tone(kind: str) -> str:
    return {"failed": "bad", "lost": "bad", "finished": "good", "joined": "good"}.get(kind, "calm")


def _meter(value: float, most: float, says: str) -> str:
    """A bar that compares with the largest; just the figure when there is nothing to compare with."""
    if most <= 0:
        return text(says)
    share = value / most
    return f"<span class=meter><i style='width:{share:.0%}'></i></span>{text(says)}"


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], more: int = 0, none: str = "") -> str:
    """An HTML table; cells are HTML already. `none` stands there when there are no rows."""
    if not rows:
        return f"<p class=none>{text(none)}</p>"
    head = "".join(f"<th scope=col>{text(heading)}</th>" for heading in headings)
    head = f"<thead><tr>{head}</tr></thead>" if head else ""
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    rest = f"<p class=none>and {more} more</p>" if more > 0 else ""
    return f"<table>{head}<tbody>{body}</tbody></table>{rest}"
