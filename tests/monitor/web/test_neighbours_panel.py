"""The dashboard's panel of nearest words: words are text, and what is on its way or went wrong is shown."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from glovewire.common.model.neighbours import UnitVectors, unit_rows
from glovewire.common.model.subwords import fit
from glovewire.monitor.history.history import RunHistory
from glovewire.monitor.web import neighbours_panel
from glovewire.monitor.web.unseen import FITTING

MARKUP = "<img src=x>"


@dataclass
class Fixed:
    """A lookup whose vectors are given."""

    vectors: UnitVectors | None = None
    error: str = ""
    progress: float | None = None
    fetched_at: float = 0.0
    reason: str = ""

    def vectors_for(self, word: str) -> tuple[UnitVectors | None, float, str]:
        return self.vectors, self.fetched_at, self.reason


def known(*words: str) -> UnitVectors:
    return UnitVectors(words, unit_rows(np.eye(len(words)) + 1))


@pytest.mark.parametrize(
    ("word", "lookup", "says"),
    [
        ("", Fixed(), "Searches the current vectors"),
        ("one", Fixed(progress=0.0), "fetching the vectors"),
        ("one", Fixed(known("one", MARKUP), progress=0.4), "width:40%"),
        ("one", Fixed(known("one", MARKUP)), "&lt;img src=x&gt;"),
        ("ONE", Fixed(known("one", "two")), "0.80"),
        (MARKUP, Fixed(known("one", "two")), "&lt;img src=x&gt; is not among the 2 words</p>"),
        ("three", Fixed(known("one", "two"), reason=FITTING), f"three is not among the 2 words: {FITTING}</p>"),
        ("one", Fixed(error=MARKUP), "&lt;img src=x&gt;"),
    ],
)
def test_nearest_words_are_shown_as_text(word: str, lookup: Fixed, says: str) -> None:
    shown = neighbours_panel.neighbours(word, lookup, 0.5)
    assert says in shown
    assert "<img" not in shown
    assert "ago" not in shown
    if lookup.vectors is not None:
        assert "30 s ago" in neighbours_panel.neighbours(word, lookup, 30.0) or "not among" in shown


def test_a_composed_vector_is_called_so() -> None:
    words = ("jumped", "jumping")
    table = np.eye(2, 4, dtype=np.float32)
    lookup = Fixed(UnitVectors.of(words, table, fit(words, table, 0.5)))
    for shown in (
        neighbours_panel.neighbours("jumps", lookup, 0.5),
        neighbours_panel.compared_neighbours("jumps", [RunHistory("a")], [lookup], ["red"]),
    ):
        assert "nearest to jumps by cosine · unseen: composed of its n-grams" in shown
        assert "jumping" in shown
    assert "composed" not in neighbours_panel.neighbours("jumped", lookup, 0.5)


def test_runs_are_searched_side_by_side() -> None:
    first, second = RunHistory("a <b>"), RunHistory("b")
    lookups = [Fixed(known("one", "two")), Fixed(error="no vectors")]
    shown = neighbours_panel.compared_neighbours("one", [first, second], lookups, ["red", "blue"])
    assert "a &lt;b&gt;" in shown
    assert "two" in shown
    assert "no vectors" in shown
