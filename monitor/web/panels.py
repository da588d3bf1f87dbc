"""Render the dashboard's tiles, tables and events as HTML from a RunHistory. No I/O.

Names come from the network: `escape` is applied to every value before it becomes part of the markup.
"""

import html
from collections.abc import Iterable, Sequence

from glovewire.common.model.neighbours import UnitVectors
from glovewire.common.text import amount, shown_loss

from ..history import formatting
from ..history.colours import worker_colours
from ..history.history import RunHistory
from ..history.scores import MAX_SCORES, newest_scores
from ..history.tables import shard_cells, worker_cells

MAX_ROWS = 64
MAX_SHOWN_EVENTS = 40
ALIKE = 0.9
"""Rows whose push counts have at least this ratio count as pushed equally often, as all rows are in block training."""
_STATES = ("training", "late", "lost", "left")
_EVENT_CLASSES = {"failed": "bad", "lost": "bad", "finished": "good", "joined": "good"}


def escape(value: object) -> str:
    """Return `value` as text in which HTML markup is escaped."""
    return html.escape(str(value), quote=True)


def note(text: str) -> str:
    """Return `text` as a paragraph of plain text."""
    return f"<p class=none>{escape(text)}</p>"


def marked(name: str, colour: str) -> str:
    """Return the name of a worker or a run after a dot in its colour."""
    return f"<i class=dot style='background:{escape(colour)}'></i>{escape(name)}"


def bar(share: float, colour: str = "") -> str:
    """Return a bar whose length is `share` (0 to 1) of the full width."""
    paint = f";background:{escape(colour)}" if colour else ""
    return f"<span class=long><i style='width:{min(share, 1.0):.1%}{paint}'></i></span>"


def status(history: RunHistory, now: float, silent: Sequence[str] = ()) -> str:
    """Return the line at the top: the run, its status, the elapsed time."""
    level, text = history.status(now, silent)
    clock = f"<span class=clock>elapsed {formatting.duration(history.seconds)}</span>" if history.loss else ""
    eta = history.eta_s
    if eta is not None and not history.finished:
        clock += f"<span class=clock>ETA <b>{formatting.duration(eta)}</b></span>"
    missed = f"<span class=clock>{history.lost:,} samples missed</span>" if history.lost else ""
    return (
        f"<div class=status><b class=run>{escape(history.title)}</b>"
        f"<span class='pill {level}' role=status>{escape(text)}</span>{missed}<span class=space></span>{clock}</div>"
    )


def tiles(history: RunHistory) -> str:
    """Return a tile for each of the main figures of the run."""
    sample, dense = history.loss, history.is_dense
    loss = "training loss" if dense else "loss"
    if sample is None:
        shown = [_tile(loss, "–"), _tile("workers", history.active_workers, _departures(history))]
        return f"<div class=tiles>{''.join(shown)}</div>"
    beside = "" if dense else f"bias-only loss {shown_loss(sample.mean_bias_only_loss)}"
    shown = [_tile(loss, shown_loss(sample.mean_loss), beside, "main"), _progress(history)]
    shown += [_tile(score.test, f"{score.value} %", score.best) for score in newest_scores(history)]
    rates = {"steps": history.updates_per_second} if dense else {}
    rates[history.unit] = history.entries_per_second
    mean = "mean of the run" if history.finished else ""
    shown += [_tile(f"{unit}/s", amount(rate), mean) for unit, rate in rates.items()]
    if not history.finished:
        shown += [_tile("workers", history.active_workers, _departures(history))]
    of, told = ("gradient", "over all tensors, before clipping") if dense else ("mean vector", "grows as vectors learn")
    shown += [*_traffic(history), _tile(f"{of} norm", f"{sample.norm:.3g}", told)]
    return f"<div class=tiles>{''.join(shown)}</div>"


def _progress(history: RunHistory) -> str:
    """Return the tile of epochs, or of a dense model's steps, with a bar while the run trains towards a known end."""
    assert history.loss is not None
    label = "steps" if history.is_dense else "epoch"
    done = f"{amount(history.loss.entries)} {history.unit} trained"
    share, (value, of, most) = history.progress, history.epoch.partition(" of ")
    if share is None or share >= 1 or history.finished:
        return _tile(label, value, f"of {most}, {done}" if of else done)
    markup = f"of {most}" * bool(of) + f"<div class=bar><i style='width:{share:.1%}'></i></div>"
    return _tile(label, value, markup=markup)


def _tile(label: str, value: object, text: str = "", kind: str = "", *, markup: str = "") -> str:
    below = markup or escape(text)
    return f"<div class='tile {kind}'><span>{escape(label)}</span><b>{escape(value)}</b><small>{below}</small></div>"


def _departures(history: RunHistory) -> str:
    states = [worker.state for worker in history.workers.values()]
    counts = [f"{states.count(state)} {state}" for state in ("lost", "left") if state in states]
    return ", ".join(counts) or "none lost"


def _traffic(history: RunHistory) -> list[str]:
    """Return a tile with the servers' traffic: rates, or totals of a finished run; no tile without shard samples."""
    if not history.shards:
        return []
    shards = history.shards.values()
    if history.finished:
        received, sent = sum(each.sample.bytes_in for each in shards), sum(each.sample.bytes_out for each in shards)
        return [_tile("servers received", amount(received, "B"), f"and sent {amount(sent, 'B')}")]
    rates = sum(each.received_per_second for each in shards), sum(each.sent_per_second for each in shards)
    return [_tile("servers receive", f"{amount(rates[0], 'B')}/s", f"and send {amount(rates[1], 'B')}/s")]


def workers(history: RunHistory, now: float) -> str:
    """Return a table with a row for each worker, lost and late workers first."""
    rows, colours = [], worker_colours(history.workers)
    for worker in history.workers_by_urgency():
        state = history.worker_state(worker)
        kind = state if state in _STATES else "other"
        cells = {
            "worker": f"<span class=name>{marked(worker.name, colours[worker.name])}</span>",
            "state": f"<span class='state {kind}'>{escape(state)}</span>",
        }
        rows.append(cells | worker_cells(history, worker, now))
    return table(rows[0] if rows else (), [row.values() for row in rows], "no workers yet")


def shards(history: RunHistory) -> str:
    """Return a table with a row for each shard, with bars that show whether the load is balanced."""
    order = [shard for _, shard in sorted(history.shards.items())]
    most_rows = max(shard.sample.rows for shard in order) if len(order) > 1 else 0
    most_traffic = max(shard.bytes_per_second for shard in order) if len(order) > 1 and not history.finished else 0.0
    rows = []
    for shard in order:
        sample, cells = shard.sample, shard_cells(history, shard)
        checkpoints = f"{sample.checkpoints} · {sample.checkpoint_s:.2f} s" if sample.checkpoints else "none"
        rows.append(
            {
                "shard": str(sample.shard),
                "rows": _meter(sample.rows, most_rows, f"{sample.rows:,}"),
                "memory": amount(sample.table_bytes, "B"),
                **cells,
                "traffic": _meter(shard.bytes_per_second, most_traffic, cells["traffic"]),
                "waiting": str(sample.waiting),
                "repeated": f"{sample.repeated:,}",
                "refused": f"{sample.refused:,}",
                "checkpoints": checkpoints,
            }
        )
    return table(rows[0] if rows else (), [row.values() for row in rows], "no shard has reported yet")


def _meter(value: float, most: float, text: str) -> str:
    """Return `text` after a bar of length `value / most`; the text alone when `most` is 0, as for a single shard."""
    if most <= 0:
        return escape(text)
    return f"<span class=meter><i style='width:{value / most:.0%}'></i></span>{escape(text)}"


def staleness(history: RunHistory) -> str:
    """Return a bar for each bin of the staleness of pushes; "" if there is nothing to compare."""
    bins = history.staleness
    pushes = sum(bins.values())
    if not pushes or bins.get("0") == pushes:
        return ""
    rows = [(escape(bin), bar(count / pushes), f"{count / pushes:.1%}") for bin, count in bins.items()]
    return table((), rows) + note(f"versions between a pull and its push · {amount(pushes)} pushes")


def hot_rows(history: RunHistory, vectors: UnitVectors | None) -> str:
    """Return a bar for each of the most-pushed rows, with its word if known; "" for equal counts or a dense model."""
    found = history.hot_rows
    most = max((count for _, count in found), default=0)
    if history.is_dense or most * ALIKE <= min((count for _, count in found), default=0):
        return ""
    return table((), [(escape(_row_name(rows, vectors)), bar(count / most), f"{count:,}") for rows, count in found])


def settings(history: RunHistory) -> str:
    """Return a table of the options of the run; "" if they are unknown."""
    about = {"dataset": history.dataset} if history.dataset else {}
    rows = [(escape(name), f"<b>{escape(value)}</b>") for name, value in (about | history.settings).items()]
    return f"<div class=settings>{table((), rows)}</div>" if rows else ""


def _row_name(rows: str, vectors: UnitVectors | None) -> str:
    if "-" in rows:
        return f"rows {rows.replace('-', ' to ')}"
    if vectors is None or not rows.isdecimal() or int(rows) >= len(vectors.words):
        return f"row {rows}"
    return formatting.sanitize(vectors.words[int(rows)])


def events(history: RunHistory) -> str:
    """Return a list of the last MAX_SHOWN_EVENTS events, newest first."""
    items = [
        f"<li><time>{formatting.duration(history.since_start(event.t))}</time>"
        f"<b class={_EVENT_CLASSES.get(event.kind, 'calm')}>{escape(event.kind)}</b>"
        f"<span>{escape(event.subject)}</span><span class=detail>{escape(event.text)}</span></li>"
        for event in list(history.events)[: -MAX_SHOWN_EVENTS - 1 : -1]
    ]
    return f"<ol class=events>{''.join(items)}</ol>" if items else note("no events yet")


def compared_settings(histories: Sequence[RunHistory], colours: Sequence[str]) -> str:
    """Return a table of the options in which several runs differ; "" if they are unknown or do not differ."""
    each = [{"dataset": history.dataset, **history.settings} for history in histories]
    names = list(dict.fromkeys(name for one in each for name in one))
    differing = [name for name in names if len({one.get(name, "") for one in each}) > 1]
    if not differing:
        return ""
    heads = [f"<span class=name>{marked(h.title, colour)}</span>" for h, colour in zip(histories, colours, strict=True)]
    rows = [(head, *(escape(one.get(name, "")) for name in differing)) for head, one in zip(heads, each, strict=True)]
    return table(("run", *differing), rows)


def comparison(histories: Sequence[RunHistory], colours: Sequence[str]) -> str:
    """Return a table with a row for each run that has losses."""
    rows = []
    dense = all(history.is_dense for history in histories)
    tests = list(dict.fromkeys(test for history in histories for test in history.quality))[:MAX_SCORES]
    for history, colour in zip(histories, colours, strict=True):
        last = history.overall.last
        if last is None:
            continue
        beside = [] if dense else [shown_loss(last.mean_bias_only_loss)]
        scores = [f"{history.quality[test][-1].score:.1f}" if test in history.quality else "" for test in tests]
        rows.append(
            (
                f"<span class=name>{marked(history.title, colour)}</span>",
                shown_loss(last.mean_loss),
                *beside,
                *scores,
                f"{last.norm:.3g}",
                amount(last.position),
                formatting.duration(history.seconds),
                amount(last.position / history.seconds) if history.seconds > 0 else "",
                str(len(history.workers)),
            )
        )
    headings = ["training loss" if dense else "loss", *([] if dense else ["bias-only loss"]), *tests]
    norm, unit = ("gradient norm", "examples") if dense else ("norm", "entries")
    return table(("run", *headings, norm, unit, "time", f"{unit}/s", "workers"), rows, "nothing to compare")


def table(headings: Iterable[str], rows: Sequence[Iterable[str]], none: str = "") -> str:
    """Return an HTML table of the first MAX_ROWS rows; `rows` hold HTML. Without rows, return the text `none`."""
    if not rows:
        return note(none)
    head = "".join(f"<th scope=col>{escape(heading)}</th>" for heading in headings)
    head = f"<thead><tr>{head}</tr></thead>" if head else ""
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows[:MAX_ROWS])
    more = note(f"and {len(rows) - MAX_ROWS} more") if len(rows) > MAX_ROWS else ""
    return f"<table>{head}<tbody>{body}</tbody></table>{more}"
