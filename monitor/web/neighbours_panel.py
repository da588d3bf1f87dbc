"""The dashboard's words on vectors and rows: nearest words, staleness, most pushed rows, as HTML. Pure.

Words and names come off the wire: each goes through `panels.text`. It must never import bokeh.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..history import formatting as units
from ..history.history import History
from .neighbours import TOP, Lookup, Near
from .panels import table, text

OLD_AFTER_S = 1.5


def near(word: str, lookup: Lookup | None, now: float, *, over: bool = False) -> str:
    """The answer to who asked for `word`: what is known, how old it is, what is on its way; `over` when the run is."""
    if lookup is None:
        return _told("nobody to ask here")
    if not word:
        which = (
            "the run: its vectors as they are" if over else "the running server: the vectors as they are at that moment"
        )
        return _told(f"Asks {which}.")
    lines = []
    if lookup.share is not None:
        lines.append(f"<div class=bar><i style='width:{lookup.share:.0%}'></i></div>")
    if lookup.trouble:
        lines.append(_told(lookup.trouble))
    if lookup.known is not None:
        found = lookup.known.nearest(word)
        age = now - lookup.known.now
        old = f" · as of {units.age(age)} ago" if age > OLD_AFTER_S else ""
        lines.append(
            _told(f"nearest to {units.plain(word)}, by cosine{old}" if found is not None else _unknown(word, lookup))
        )
        lines.append(_bars(found or []))
    elif lookup.share is not None:
        lines.append(_told("asking for the vectors"))
    return "".join(lines)


def compared(word: str, histories: Sequence[History], lookups: Sequence[Lookup], colours: Sequence[str]) -> str:
    """The same of several runs, side by side."""
    if not word:
        return _told("Asks every run.")
    columns = []
    for history, lookup, colour in zip(histories, lookups, colours, strict=True):
        found = lookup.known.nearest(word) if lookup.known is not None else None
        why = lookup.trouble if lookup.known is None else _unknown(word, lookup)
        dot = f"<i class=dot style='background:{text(colour)}'></i>"
        body = _bars(found, colour) if found is not None else _told(why)
        columns.append(f"<div><h3>{dot}{text(history.name or history.run)}</h3>{body}</div>")
    return f"<div class=columns>{''.join(columns)}</div>"


def staleness(history: History) -> str:
    """A bar for each bin: how many pushes did not know of how many changes."""
    bins = history.staleness
    pushes = sum(bins.values())
    if not pushes:
        return _told("nothing pushed yet" if history.shards else "no shard has said anything yet")
    rows = [(text(bin), _bar(count / pushes), f"{count / pushes:.1%}") for bin, count in bins.items()]
    exact = "every push knew the newest rows" if bins.get("0") == pushes else "changes that a push did not know of"
    return _list(rows) + _told(f"{exact} · {units.amount(pushes)} pushes")


def hottest(history: History, lookup: Lookup | None) -> str:
    """A bar for each of the rows that are pushed most, with its word where that is known."""
    found = history.hottest
    if not found:
        return _told("nothing pushed yet")
    most = found[0][1]
    return _list([(text(_row_name(rows, lookup)), _bar(count / max(most, 1)), f"{count:,}") for rows, count in found])


def _row_name(rows: str, lookup: Lookup | None) -> str:
    known = lookup.known if lookup is not None else None
    if "-" in rows or known is None or not rows.isdecimal() or int(rows) >= len(known.words):
        return f"rows {rows.replace('-', ' to ')}" if "-" in rows else f"row {rows}"
    return units.plain(known.words[int(rows)])


def _bars(found: Near, colour: str = "") -> str:
    paint = f";background:{text(colour)}" if colour else ""
    return _list([(text(units.plain(word)), _bar(max(0.0, like), paint), f"{like:.2f}") for word, like in found[:TOP]])


def _bar(share: float, paint: str = "") -> str:
    return f"<span class=long><i style='width:{min(share, 1.0):.1%}{paint}'></i></span>"


def _list(rows: Sequence[tuple[str, str, str]]) -> str:
    """Cells are HTML already."""
    return table((), rows) if rows else ""


def _unknown(word: str, lookup: Lookup) -> str:
    return f"{units.plain(word)} is not among the {len(lookup.known.words) if lookup.known else 0:,} words"


def _told(words: str) -> str:
    return f"<p class=none>{text(words)}</p>"
