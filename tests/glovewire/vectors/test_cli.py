"""`glovewire neighbours`: columns and JSON, and clear about unknown words."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from glovewire.common.storage import run_folder as runs
from glovewire.vectors import cli

WORDS = ("cat", "dog", "king", "man", "queen", "woman")
TABLE = np.array(
    [[3, 0, 0, 0.2], [2.9, 0.3, 0, 0], [0, 0, 1, 1], [0, 0, 0, 1], [0, 1, 1, 0], [0, 1, 0, 0]], dtype=np.float32
)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = runs.prepare(tmp_path / "run")
    runs.write_vectors(folder, WORDS, TABLE)
    return folder


def test_a_word_in_capitals_is_found_and_an_unknown_one_gets_a_suggestion(run: Path) -> None:
    assert CliRunner().invoke(cli.neighbours, [str(run), "KING"]).exit_code == 0
    for word, says in (
        ("quen", "'quen' is not among the 6 words .*did you mean 'queen'"),
        ("zzzzzz", "'zzzzzz' is not"),
    ):
        outcome = CliRunner().invoke(cli.neighbours, [str(run), word])
        assert outcome.exit_code == 1
        assert re.search(says, outcome.stderr)
        assert outcome.stderr.count("\n") == 1


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
