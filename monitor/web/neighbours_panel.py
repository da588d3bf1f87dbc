"""Render the dashboard's panel of nearest words as HTML. No I/O.

Words come from the network: each goes through `panels.escape`.
"""

from collections.abc import Sequence

from glovewire.common.model.neighbours import Found, Neighbours, UnitVectors

from ..history import formatting
from ..history.history import RunHistory
from .neighbours import NeighbourLookup
from .panels import bar, escape, marked, note, table

TOP = 10
OLD_AFTER_S = 1.5


def neighbours(word: str, lookup: NeighbourLookup, now: float, *, finished: bool = False) -> str:
    """Return the words nearest to `word`, the age of the vectors, and the progress of fetching newer vectors."""
    if not word:
        return note("Searches the vectors of the run." if finished else "Searches the current vectors of the servers.")
    lines = []
    if lookup.progress is not None:
        lines.append(f"<div class=bar><i style='width:{lookup.progress:.0%}'></i></div>")
    if lookup.error:
        lines.append(note(lookup.error))
    vectors, fetched_at, reason = lookup.vectors_for(word)
    if vectors is not None:
        found = vectors.look_up(word)
        age = now - fetched_at
        old = f" · {formatting.age(age)} ago" if age > OLD_AFTER_S else ""
        lines.append(note(_title(word, found, vectors, reason) + old * (found is not None)))
        if found is not None:
            lines.append(_list(vectors.nearest(found, TOP)))
    elif lookup.progress is not None:
        lines.append(note("fetching the vectors"))
    return "".join(lines)


def compared_neighbours(
    word: str, histories: Sequence[RunHistory], lookups: Sequence[NeighbourLookup], colours: Sequence[str]
) -> str:
    """Return the words nearest to `word` in several runs, side by side."""
    if not word:
        return note("Searches the vectors of every run.")
    columns = []
    for history, lookup, colour in zip(histories, lookups, colours, strict=True):
        if lookup.vectors is None:
            body = note(lookup.error)
        else:
            found = lookup.vectors.look_up(word)
            body = "" if found is not None and found.row is not None else note(_title(word, found, lookup.vectors))
            if found is not None:
                body += _list(lookup.vectors.nearest(found, TOP), colour)
        columns.append(f"<div><h3>{marked(history.title, colour)}</h3>{body}</div>")
    return f"<div class=columns>{''.join(columns)}</div>"


def _title(word: str, found: Found | None, vectors: UnitVectors, reason: str = "") -> str:
    shown = formatting.sanitize(word)
    if found is None:
        return f"{shown} is not among the {len(vectors.words):,} words" + f": {reason}" * bool(reason)
    return f"nearest to {shown} by cosine" + " · unseen: composed of its n-grams" * (found.row is None)


def _list(found: Neighbours, colour: str = "") -> str:
    rows = [
        (escape(formatting.sanitize(word)), bar(max(0.0, cosine), colour), f"{cosine:.2f}") for word, cosine in found
    ]
    return table((), rows) if rows else ""
