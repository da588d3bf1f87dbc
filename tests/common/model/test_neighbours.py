"""Nearest words and analogies: right, without the words asked about, ties in order."""

from __future__ import annotations

import numpy as np
import pytest

from glovewire.common.model import neighbours as module
from glovewire.common.model.neighbours import Found, UnitVectors, unit_rows
from glovewire.common.model.subwords import fit

WORDS = ("cat", "dog", "king", "man", "queen", "woman")
TABLE = np.array(
    [[3, 0, 0, 0.2], [2.9, 0.3, 0, 0], [0, 0, 1, 1], [0, 0, 0, 1], [0, 1, 1, 0], [0, 1, 0, 0]], dtype=np.float32
)
UNIT = UnitVectors(WORDS, unit_rows(TABLE))


def at(unit: UnitVectors, row: int) -> Found:
    return Found(unit.rows[row], row)


def test_unit_rows_have_length_one_and_zero_stays_zero() -> None:
    rows = unit_rows(np.array([[3.0, 4.0], [0.0, 0.0]]))
    np.testing.assert_allclose(rows, [[0.6, 0.8], [0, 0]], rtol=1e-6)
    assert rows.dtype == np.float32


def test_centring_removes_the_mean_and_leaves_the_input_alone() -> None:
    table = TABLE.copy()
    rows = unit_rows(table, table.mean(axis=0))
    np.testing.assert_array_equal(table, TABLE)
    np.testing.assert_allclose(rows, unit_rows(TABLE - TABLE.mean(axis=0)), rtol=1e-5)


def test_nearest_is_ordered_by_cosine_without_the_word_itself() -> None:
    best = UNIT.nearest(at(UNIT, 0), 10)
    assert [word for word, _ in best][:2] == ["dog", "man"]
    assert "cat" not in dict(best)
    assert len(best) == len(WORDS) - 1
    cosine = TABLE[0] @ TABLE[1] / np.linalg.norm(TABLE[0]) / np.linalg.norm(TABLE[1])
    assert best[0][1] == pytest.approx(cosine, rel=1e-6)
    assert [value for _, value in best] == sorted((value for _, value in best), reverse=True)


def test_ties_go_to_the_earlier_word() -> None:
    same = UnitVectors(WORDS, unit_rows(np.ones((6, 2))))
    assert [word for word, _ in same.nearest(at(same, 1), 3)] == ["cat", "king", "man"]


def test_of_many_ties_at_the_cut_the_earlier_words_come() -> None:
    words = [f"w{n:04}" for n in range(2000)]
    table = np.tile(np.array([[1, 0]], np.float32), (2000, 1))
    table[::3] = [0, 1]
    table[1998] = [0, -1]
    unit = UnitVectors(words, table)
    assert [word for word, _ in unit.nearest(at(unit, 1), 5)] == ["w0002", "w0004", "w0005", "w0007", "w0008"]
    best = unit.nearest(at(unit, 0), 1998)
    assert [word for word, _ in best] == [*words[3:1998:3], *(word for n, word in enumerate(words) if n % 3)]


def test_analogy_excludes_its_three_words() -> None:
    best = UNIT.analogy([at(UNIT, UNIT.index[word]) for word in ("man", "king", "woman")], 10)
    assert best[0][0] == "queen"
    assert {word for word, _ in best} == {"cat", "dog", "queen"}
    assert all(-1 <= value <= 1.000001 for _, value in best)


def test_one_word_has_no_neighbours() -> None:
    alone = UnitVectors(("a",), np.ones((1, 2), np.float32))
    assert alone.nearest(at(alone, 0), 5) == []


def test_a_word_is_found_as_written_or_in_lower_case() -> None:
    unit = UnitVectors(("Queen", "king", "queen"), unit_rows(np.eye(3)))
    assert [unit.find(word) for word in ("Queen", "QUEEN", "KING", "quen")] == [0, 2, 1, None]


@pytest.mark.parametrize("centre", [False, True])
def test_an_unseen_word_is_found_by_its_ngrams(centre: bool) -> None:
    words = ("jumped", "jumping", "walked", "walking")
    table = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32) + 0.5
    subwords = fit(words, table, 0.5)
    unit = UnitVectors.of(words, table, subwords, centre=centre)
    found, known = unit.look_up("Jumper"), unit.look_up("WALKED")
    assert known is not None
    assert known.row == 2
    assert found is not None
    assert found.row is None
    composed = subwords.compose("jumper")
    assert composed is not None
    np.testing.assert_allclose(found.vector, unit_rows((composed - centre * table.mean(axis=0))[None])[0], rtol=1e-5)
    assert len(unit.nearest(found, 9)) == 4
    assert {word for word, _ in unit.analogy([found, known, known], 9)} == {"jumped", "jumping", "walking"}
    assert unit.look_up("zzzz") is None
    assert UnitVectors.of(words, table).look_up("jumper") is None


def test_a_few_results_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RECENT", 2)
    unit = UnitVectors(WORDS, unit_rows(TABLE))
    cat, dog = (Found(unit.rows[row].copy(), row) for row in (0, 1))
    first = unit.nearest(cat, 2)
    unit.rows[:] = 0
    assert unit.nearest(cat, 2) == first
    assert unit.nearest(cat, 3) != first
    unit.nearest(dog, 2)
    assert unit.nearest(cat, 2) != first
