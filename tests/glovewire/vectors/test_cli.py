"""`glovewire neighbours` and `subwords`: columns and JSON, clear about unknown words, on vectors of any origin."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner

from glovewire.common.storage import run_folder as runs
from glovewire.vectors import cli
from glovewire.vectors.export import export

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


def test_known_words_are_answered_beside_unknown_ones(run: Path) -> None:
    words = [str(run), "cat", "quen", "zzzzzz", "--analogy", "man", "king", "qeen", "--top", "1"]
    outcome = CliRunner().invoke(cli.neighbours, words)
    assert outcome.exit_code == 1
    assert [line.split()[0].strip("-") for line in outcome.stdout.splitlines()] == ["cat", "", "dog"]
    assert re.match(r"error: 'quen' is not .*'queen'\?; 'zzzzzz' is not .*; 'qeen' is not .*'queen'\?$", outcome.stderr)


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


FORMS = ("jumped", "jumper", "jumping", "walked", "walker", "walking")


@pytest.fixture
def places(tmp_path: Path) -> dict[str, Path]:
    """The same vectors as text of two formats and as a run, and with n-grams as a run and a fastText model."""
    table = np.random.default_rng(4).normal(size=(6, 8)).astype(np.float32)
    folder = runs.prepare(tmp_path / "plain")
    runs.write_vectors(folder, FORMS, table)
    found = {"plain": folder, "ngrams": tmp_path / "ngrams"}
    for form in ("glove", "word2vec"):
        found[form] = tmp_path / form
        export(folder, form, found[form])
    outcome = CliRunner().invoke(cli.subwords, [str(folder), "--out", str(found["ngrams"]), "--factor", "0.5"])
    assert outcome.exit_code == 0, outcome.output
    assert re.search(r"wrote .*ngrams: 6 words, \d+ n-grams \(.* kB\) with weight 0.5\n", outcome.stdout)
    found["fasttext"] = tmp_path / "model.bin"
    export(found["ngrams"], "fasttext-bin", found["fasttext"])
    return found


def invoked(command: click.Command, *words: object) -> dict[str, Any]:
    outcome = CliRunner().invoke(command, [*map(str, words), "--json"])
    assert outcome.exit_code == 0, outcome.output
    found: dict[str, Any] = json.loads(outcome.stdout.splitlines()[-1])
    return found


def test_vectors_of_any_origin_have_the_same_neighbours(places: dict[str, Path]) -> None:
    near = {name: invoked(cli.neighbours, path, "jumped", "--top", 3)["neighbours"] for name, path in places.items()}
    assert near["plain"] == near["glove"] == near["word2vec"]
    assert near["ngrams"] == near["fasttext"]
    assert {each["word"] for each in near["ngrams"]["jumped"]} == {"jumper", "jumping", "walker"}
    described = {name: invoked(cli.info, path) for name, path in places.items()}
    for name, found in described.items():
        assert (found["words"], found["dim"]) == (6, 8), name
    assert described["fasttext"]["ngrams"] > 30
    made = places["glove"].with_name("made")
    invoked(cli.subwords, places["glove"], "--out", made, "--factor", 0.5)
    for name in (runs.VECTORS, runs.NGRAMS, runs.BUCKETS):
        assert (made / name).read_bytes() == (places["ngrams"] / name).read_bytes()


def test_an_unseen_word_is_composed_and_called_so(places: dict[str, Path]) -> None:
    command = (places["ngrams"], "Walks", "--analogy", "jumped", "walked", "jumps")
    outcome = CliRunner().invoke(cli.neighbours, list(map(str, command)))
    assert outcome.stdout.splitlines()[0].split("   ")[0] == "Walks (composed)"
    assert "jumped : walked = jumps (composed) : ?" in outcome.stdout
    found = invoked(cli.neighbours, *command)
    assert found["composed"] == ["Walks", "jumps"]
    assert found == invoked(cli.neighbours, places["fasttext"], *(word.lower() for word in command[1:])) | {
        "neighbours": found["neighbours"], "composed": ["Walks", "jumps"],
    }  # fmt: skip
    assert len(found["neighbours"]["Walks"]) == 6
    assert CliRunner().invoke(cli.neighbours, [str(places["ngrams"]), "zzz"]).exit_code == 1


def test_unseen_words_are_scored_beside(places: dict[str, Path], tmp_path: Path) -> None:
    pairs, questions = tmp_path / "pairs", tmp_path / "questions"
    pairs.write_text("jumped jumper 9\nwalked jumping 2\nwalks walking 8\nzzz walking 1\n")
    questions.write_text(": gram1\njumped walked jumper walker\njumped walked jumps walks\njumped walked zzz walks\n")
    how = ("--similarity", pairs, "--analogies", questions)
    plain = invoked(cli.evaluate, places["plain"], *how)
    found = invoked(cli.evaluate, places["ngrams"], *how, "--unseen")
    assert (plain["similarity"][str(pairs)]["covered"], plain["analogies"]["covered"]) == (2, 1)
    for result, covered in ((found["similarity"][str(pairs)], 2), (found["analogies"], 1)):
        assert (result["covered"], result["unseen"]["covered"]) == (covered, covered + 1)
    outcome = CliRunner().invoke(cli.evaluate, [*map(str, (places["ngrams"], *how)), "--unseen"])
    assert re.search(r"\npairs, with unseen words +-?[\d.]+ +3 of 4 pairs\n", outcome.stdout)
    assert re.search(r"\nanalogies, total, with unseen words +[\d.]+ +2 of 3 questions\n", outcome.stdout)
    outcome = CliRunner().invoke(cli.evaluate, [*map(str, (places["plain"], *how)), "--unseen"])
    assert outcome.exit_code == 2
    assert "fit them with `glovewire subwords`" in outcome.stderr


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"", "holds no vectors"),
        (b"2 3\n", "holds no vectors"),
        (b"one 1 2\ntwo 1 x\n", "line 2: expected a word and its numbers"),
        (b"one 1 2\ntwo 1\n", "line 2: expected a word and 2 numbers"),
        (b"one 1 nan\n", "line 1: expected a word and finite numbers"),
        (b"one\n", "line 1: expected a word and its numbers"),
        (b"\xff\xfe\n", "is not UTF-8"),
        (b"\xba\x16\x4f\x2f", "cannot be read as a model of fastText"),
    ],
)
def test_a_file_without_vectors_is_one_line(tmp_path: Path, text: bytes, says: str) -> None:
    (tmp_path / "file").write_bytes(text)
    outcome = CliRunner().invoke(cli.neighbours, [str(tmp_path / "file"), "one"])
    assert outcome.exit_code == 1
    assert says in outcome.stderr
    assert len(outcome.stderr.splitlines()) == 1


def test_ngrams_are_fitted_once_only(places: dict[str, Path], tmp_path: Path) -> None:
    for name in ("ngrams", "fasttext"):
        outcome = CliRunner().invoke(cli.subwords, [str(places[name]), "--out", str(tmp_path / "twice")])
        assert outcome.exit_code == 2
        assert f"{places[name]} has n-grams already" in outcome.stderr
    for words, says in (((places["plain"], "--out", places["plain"]), "exists already"), (("no", "--out", "x"), "no")):
        outcome = CliRunner().invoke(cli.subwords, list(map(str, words)))
        assert outcome.exit_code == 1
        assert says in outcome.stderr
    centred = ("--format", "fasttext-bin", "--out", tmp_path / "c", "--centre")
    outcome = CliRunner().invoke(cli.export, [str(places["ngrams"]), *map(str, centred)])
    assert outcome.exit_code == 2
    assert "--centre" in outcome.stderr


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
