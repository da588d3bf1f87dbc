"""Scores of vectors: equal to gensim's and to a naive reference, coverage counted, bad files named."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from glovewire.common.errors import MalformedFile
from glovewire.common.model.neighbours import unit_rows
from glovewire.common.storage import run_folder as runs
from glovewire.vectors import cli, evaluate, testsets

EVAL = Path(__file__).resolve().parents[4] / "shared" / "data" / "eval"
WORDS = [f"w{n:03}" for n in range(300)]
PAIRS = [(f"w{n:03}", f"w{(7 * n + 1) % 330:03}", float(n % 11)) for n in range(80)]


@pytest.fixture
def table() -> np.ndarray:
    return np.random.default_rng(5).normal(size=(300, 12)).astype(np.float32)


@pytest.fixture
def questions(tmp_path: Path, table: np.ndarray) -> Path:
    """Questions of which about a third have the right answer, some with a word outside the vocabulary."""
    random, unit = np.random.default_rng(6), unit_rows(table)
    lines = []
    for name in ("family", "gram1-x", "capital"):
        lines.append(f": {name}")
        for n in range(60):
            a, b, c, d = random.choice(300, 4, replace=False)
            if n % 3 == 0:
                d = naive(unit, a, b, c)
            lines.append(f"W{a:03} w{b:03} w{c:03} {'zebra' if n % 20 == 1 else f'w{d:03}'}")
    path = tmp_path / "questions.txt"
    path.write_text("\n".join(lines) + "\n")
    return path


def naive(unit: np.ndarray, a: int, b: int, c: int) -> int:
    scores = unit @ (unit[b] - unit[a] + unit[c])
    return max((row for row in range(len(unit)) if row not in (a, b, c)), key=lambda row: (scores[row], -row))


def write_pairs(path: Path) -> Path:
    path.write_text("".join(f"{a.upper()}\t{b}\t{score}\n" for a, b, score in PAIRS))
    return path


def test_answers_equal_the_naive_reference_for_any_chunking(table: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    unit, random = unit_rows(table), np.random.default_rng(8)
    asked = np.array([random.choice(300, 3, replace=False) for _ in range(50)])
    expected = [naive(unit, *question) for question in asked]
    for words, batch in ((2048, 128), (7, 3), (300, 50), (1, 1)):
        monkeypatch.setattr(evaluate, "_WORDS_AT_ONCE", words)
        monkeypatch.setattr(evaluate, "_QUESTIONS_AT_ONCE", batch)
        np.testing.assert_array_equal(evaluate.answer_analogies(asked, unit, asked), expected)


def test_scores_equal_gensims(table: np.ndarray, questions: Path, tmp_path: Path) -> None:
    from gensim.models import KeyedVectors

    peer = KeyedVectors(12)
    peer.add_vectors(WORDS, table)
    pairs = write_pairs(tmp_path / "pairs.txt")
    result = evaluate.score(WORDS, table, [pairs], questions)

    accuracy, sections = peer.evaluate_word_analogies(str(questions), restrict_vocab=None)
    ours = result["analogies"]
    assert ours["total"] == pytest.approx(100 * accuracy, abs=0.01)
    total = sections[-1]
    assert ours["covered"] == len(total["correct"]) + len(total["incorrect"])
    assert 20 < ours["total"] < 60
    _, spearman, uncovered = peer.evaluate_word_pairs(str(pairs))
    shown = result["similarity"][str(pairs)]
    assert shown["spearman"] == pytest.approx(100 * spearman.statistic, abs=0.01)
    assert shown["pairs"] == 80
    assert shown["covered"] == round(80 * (1 - uncovered / 100)) < 80


def test_sections_are_counted_by_kind(table: np.ndarray, questions: Path) -> None:
    result = evaluate.score(WORDS, table, analogy_file=questions)["analogies"]
    sections = result["sections"]
    assert [sections[name]["kind"] for name in ("family", "gram1-x", "capital")] == [
        "semantic",
        "syntactic",
        "semantic",
    ]
    assert result["questions"] == 180
    assert result["covered"] == 171
    assert result["syntactic"] == sections["gram1-x"]["accuracy"]
    assert result["semantic"] == pytest.approx(
        (sections["family"]["accuracy"] + sections["capital"]["accuracy"]) / 2, abs=0.01
    )


def test_nothing_covered_is_null_and_not_nan(tmp_path: Path) -> None:
    pairs, questions = tmp_path / "p.txt", tmp_path / "q.txt"
    pairs.write_text("\ufeff# comment\n\nx y 1\na b 2\n", encoding="utf-8")
    questions.write_text("p q r s\n")
    result = evaluate.score(["a", "b"], np.eye(2), [pairs], questions)
    assert result["similarity"][str(pairs)] == {"spearman": None, "pairs": 2, "covered": 1}
    assert result["analogies"]["total"] is None
    assert result["analogies"]["covered"] == 0
    json.dumps(result, allow_nan=False)


def test_cased_words_are_found_as_they_are_or_in_lower_case(tmp_path: Path) -> None:
    pairs, questions = tmp_path / "p.txt", tmp_path / "q.txt"
    pairs.write_text("Greece Berlin 3\nGREECE berlin 9\nPolish polish 1\n")
    questions.write_text(": Gram1\nAthens Greece Berlin Germany\n: capital\nathens greece berlin germany\n")
    words = ["Athens", "Berlin", "Germany", "Greece", "Polish", "berlin", "greece", "polish"]
    table = np.array([[1, 0, 0], [0, 1, 0], [0, 1, 1], [1, 0, 1], [1, 0, 0], [1, 1, 1], [1, 1, 0], [-1, 0, 0]])
    result = evaluate.score(words, table, [pairs], questions)
    assert result["similarity"][str(pairs)] == {"spearman": 100.0, "pairs": 3, "covered": 3}
    sections = result["analogies"]["sections"]
    assert sections["gram1"] == {"kind": "syntactic", "accuracy": 100.0, "covered": 1, "questions": 1}
    assert sections["capital"]["covered"] == 0  # "Athens" is not asked for


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a b 1\na b\n", "line 2: expected two words and a score"),
        ("a b 1\n\na b c\n", "line 3: expected two words and a score"),
        ("a b nan\n", "line 1: the score is nan"),
        ("\n# only a comment\n", "no word pairs"),
        ("a\tb\t1\ra\tb\tc\r", "line 2: expected two words and a score"),
        ("a,b,1\n" + 140_000 * "x" + ",b,1\n", "line 2: field larger than field limit"),
    ],
)
def test_wrong_pair_files_are_refused_by_line(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "pairs.txt"
    path.write_text(text)
    with pytest.raises(MalformedFile, match=says) as error:
        testsets.read_pairs(path)
    assert str(error.value).startswith(str(path))


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_may_end_as_on_any_system(tmp_path: Path, end: str) -> None:
    pairs, questions = tmp_path / "pairs.csv", tmp_path / "questions.txt"
    pairs.write_bytes(end.join(["word1,word2,score", "a,b,1", "c,d,2", ""]).encode())
    questions.write_bytes(end.join([": s", "a b c d", "e f g h", ""]).encode())
    assert testsets.read_pairs(pairs) == (("a", "b", 1), ("c", "d", 2))
    assert len(testsets.read_questions(questions)[0].questions) == 2


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b": s\na b c d\na b c\n", "line 3: expected four words, found 3"),
        (b": s\n", "no analogy questions"),
        (b"\xff\xfe", "not UTF-8"),
    ],
)
def test_wrong_question_files_are_refused_by_line(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "questions.txt"
    path.write_bytes(content)
    with pytest.raises(MalformedFile, match=says):
        testsets.read_questions(path)


@pytest.fixture
def run(tmp_path: Path, table: np.ndarray) -> Path:
    folder = runs.prepare(tmp_path / "run")
    runs.write_vectors(folder, WORDS, table)
    return folder


@pytest.mark.parametrize("order", ["{run} -s {one} {two} -a", "-s {one} -s {two} {run} -a", "-s {one} {two} {run} -a"])
def test_command_takes_several_pair_files_in_any_order(run: Path, questions: Path, tmp_path: Path, order: str) -> None:
    one, two = (str(write_pairs(tmp_path / name)) for name in ("one.txt", "two.txt"))
    arguments = order.replace("-s", "--similarity").replace("-a", "--analogies {questions} --json").split()
    arguments = [part.format(run=run, one=one, two=two, questions=questions) for part in arguments]
    outcome = CliRunner().invoke(cli.evaluate, arguments)
    assert outcome.exit_code == 0, outcome.output
    *lines, last = outcome.stdout.splitlines()
    result = json.loads(last)
    assert list(result["similarity"]) == [one, two]
    assert set(result["similarity"][one]) == {"spearman", "pairs", "covered"}
    assert {"semantic", "syntactic", "total", "covered"} <= set(result["analogies"])
    assert any("171 of 180 questions" in line for line in lines)


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        ([], 2, "name something to score against"),
        (["x.txt"], 2, "did you mean --similarity x.txt"),
        (["--similarity", "nowhere.txt"], 1, "nowhere.txt cannot be read"),
    ],
)
def test_faults_are_one_line(run: Path, arguments: list[str], status: int, says: str) -> None:
    outcome = CliRunner().invoke(cli.evaluate, [str(run), *arguments])
    assert outcome.exit_code == status
    assert says in outcome.stderr
    assert len(outcome.stderr.splitlines()) == 1


@pytest.mark.data
@pytest.mark.skipif(not EVAL.is_dir(), reason="no shared data beside the checkout")
def test_the_real_sets_are_read_whole_and_scored_over_a_large_vocabulary() -> None:
    sections = testsets.read_questions(EVAL / "questions-words.txt")
    files = [EVAL / f"{name}.txt" for name in ("wordsim353", "men3000", "simlex999")]
    assert sum(len(section.questions) for section in sections) == 19_544
    assert sum(section.kind == "syntactic" for section in sections) == 9
    asked = {word for section in sections for question in section.questions for word in question}
    asked |= {word for file in files for pair in testsets.read_pairs(file) for word in pair[:2]}
    words = sorted(asked | {f"filler{n}" for n in range(8_000)})
    table = np.random.default_rng(1).normal(size=(len(words), 32))
    result = evaluate.score(words, table, files, EVAL / "questions-words.txt")
    assert result["analogies"]["covered"] == 19_544
    assert [each["covered"] for each in result["similarity"].values()] == [353, 3000, 999]
    assert all(abs(each["spearman"]) < 25 for each in result["similarity"].values())
