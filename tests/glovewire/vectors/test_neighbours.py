"""Nearest words and analogies: right, without the words asked about, and clear about unknown ones."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from glovewire.common.errors import UnknownWord
from glovewire.common.storage import run_folder as runs
from glovewire.vectors import cli
from glovewire.vectors import neighbours as near

WORDS = ("cat", "dog", "king", "man", "queen", "woman")
TABLE = np.array(
    [[3, 0, 0, 0.2], [2.9, 0.3, 0, 0], [0, 0, 1, 1], [0, 0, 0, 1], [0, 1, 1, 0], [0, 1, 0, 0]], dtype=np.float32
)
INDEX = {word: row for row, word in enumerate(WORDS)}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = runs.prepare(tmp_path / "run")
    runs.write_vectors(folder, WORDS, TABLE)
    return folder


def test_unit_rows_have_length_one_and_zero_stays_zero() -> None:
    rows = near.unit_rows(np.array([[3.0, 4.0], [0.0, 0.0]]))
    np.testing.assert_allclose(rows, [[0.6, 0.8], [0, 0]], rtol=1e-6)
    assert rows.dtype == np.float32


def test_centring_removes_the_mean_and_leaves_the_input_alone() -> None:
    table = TABLE.copy()
    rows = near.unit_rows(table, centre=True)
    np.testing.assert_array_equal(table, TABLE)
    np.testing.assert_allclose(rows, near.unit_rows(TABLE - TABLE.mean(axis=0)), rtol=1e-5)


def test_nearest_is_ordered_by_cosine_without_the_word_itself() -> None:
    best = near.nearest("cat", WORDS, INDEX, near.unit_rows(TABLE), 10)
    assert [word for word, _ in best][:2] == ["dog", "man"]
    assert "cat" not in dict(best)
    assert len(best) == len(WORDS) - 1
    cosine = TABLE[0] @ TABLE[1] / np.linalg.norm(TABLE[0]) / np.linalg.norm(TABLE[1])
    assert best[0][1] == pytest.approx(cosine, rel=1e-6)
    assert [value for _, value in best] == sorted((value for _, value in best), reverse=True)


def test_ties_go_to_the_earlier_word() -> None:
    same = near.unit_rows(np.ones((6, 2)))
    assert [word for word, _ in near.nearest("dog", WORDS, INDEX, same, 3)] == ["cat", "king", "man"]


def test_of_many_ties_at_the_cut_the_earlier_words_come() -> None:
    words = [f"w{n:04}" for n in range(2000)]
    table = np.tile(np.array([[1, 0]], np.float32), (2000, 1))
    table[::3] = [0, 1]
    table[1998] = [0, -1]
    index = {word: row for row, word in enumerate(words)}
    near_words = [word for word, _ in near.nearest("w0001", words, index, table, 5)]
    assert near_words == ["w0002", "w0004", "w0005", "w0007", "w0008"]
    best = near.nearest("w0000", words, index, table, 1998)
    assert [word for word, _ in best] == [*words[3:1998:3], *(word for n, word in enumerate(words) if n % 3)]


def test_analogy_excludes_its_three_words() -> None:
    best = near.analogy(("man", "king", "woman"), WORDS, INDEX, near.unit_rows(TABLE), 10)
    assert best[0][0] == "queen"
    assert {word for word, _ in best} == {"cat", "dog", "queen"}
    assert all(-1 <= value <= 1.000001 for _, value in best)


def test_one_word_has_no_neighbours() -> None:
    assert near.nearest("a", ("a",), {"a": 0}, np.ones((1, 2), np.float32), 5) == []


def test_a_word_in_capitals_is_found_and_an_unknown_one_gets_a_suggestion() -> None:
    assert near.row_of("KING", INDEX) == INDEX["king"]
    with pytest.raises(UnknownWord, match=r"'quen' is not among the 6 words .*did you mean 'queen'") as error:
        near.row_of("quen", INDEX)
    assert "\n" not in str(error.value)
    with pytest.raises(UnknownWord):
        near.row_of("zzzzzz", INDEX)


def test_command_prints_columns_and_json(run: Path) -> None:
    arguments = [str(run), "cat", "Queen", "--analogy", "man", "king", "woman", "--top", "2", "--json"]
    outcome = CliRunner().invoke(cli.neighbours, arguments)
    assert outcome.exit_code == 0, outcome.output
    lines = outcome.stdout.splitlines()
    assert lines[0].split()[:2] == ["cat", "Queen"]
    assert lines[2].startswith("dog")
    found = json.loads(lines[-1])
    assert found["neighbours"]["cat"][0] == {"word": "dog", "cosine": pytest.approx(0.99, abs=0.01)}
    assert found["analogies"][0]["answers"][0]["word"] == "queen"


def test_a_word_from_somewhere_cannot_steer_the_terminal(tmp_path: Path) -> None:
    folder = runs.prepare(tmp_path / "run")
    runs.write_vectors(folder, ["cat", "\x1b]0;title\x07"], TABLE[:2])
    outcome = CliRunner().invoke(cli.neighbours, [str(folder), "cat"])
    assert outcome.stdout.splitlines()[-1].startswith("\\x1b]0;title\\x07")
    assert CliRunner().invoke(cli.neighbours, [str(folder), "c\x1bt"]).stderr.startswith("error: ")


def test_columns_wrap_at_the_width(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    outcome = CliRunner().invoke(cli.neighbours, [str(run), *WORDS])
    assert outcome.exit_code == 0
    assert max(map(len, outcome.stdout.splitlines())) <= 30
    assert outcome.stdout.count("---") > 0


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["cta"], 1, "did you mean 'cat'"),
        ([], 2, "name a word"),
        (["--analogy", "man", "king", "x1"], 1, "'x1'"),
    ],
)
def test_faults_are_one_line(run: Path, arguments: list[str], status: int, says: str) -> None:
    outcome = CliRunner().invoke(cli.neighbours, [str(run), *arguments])
    assert outcome.exit_code == status
    assert says in outcome.stderr
    assert len(outcome.stderr.splitlines()) == 1
    assert outcome.stdout == ""


def test_a_damaged_run_is_one_line(run: Path) -> None:
    (run / runs.VECTORS).write_bytes(b"short")
    outcome = CliRunner().invoke(cli.neighbours, [str(run), "cat"])
    assert outcome.exit_code == 1
    assert "truncated or altered" in outcome.stderr
    assert len(outcome.stderr.splitlines()) == 1
