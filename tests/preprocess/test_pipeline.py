"""The dataset equals that of the seeds' own algorithm, with the same bytes for every way of making it."""

import itertools
import json
import lzma
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from handmade import full_matrix

from glovewire.common.storage.artifacts import file_sha256
from glovewire.common.storage.dataset import Dataset
from glovewire.preprocess import jobs, pipeline
from glovewire.preprocess.cli import preprocess
from glovewire.preprocess.config import PreprocessConfig
from glovewire.preprocess.pipeline import Pipeline
from glovewire.preprocess.tokens.tokenizers import make_tokenizer

MEMORY = 1 << 30


def naive(
    texts: list[str], size: int, window: int, *, symmetric: bool = True, uniform: bool = False, tokenizer: str = "nltk"
) -> tuple[list[str], list[int], dict[tuple[int, int], float]]:
    """Compute vocabulary, counts and matrix as the seeds do, with counters over tokenised lines."""
    line = make_tokenizer(tokenizer).line
    sentences = [line(text.lower()) for text in texts]
    counts = dict(Counter(token for sentence in sentences for token in sentence).most_common(size))
    words = sorted(counts)
    index = {word: n for n, word in enumerate(words)}
    matrix: Counter[tuple[int, int]] = Counter()
    for sentence in sentences:
        known = [index[token] for token in sentence if token in index]
        for i in range(len(known)):
            for j in range(max(i - window, 0), min(i + window + 1, len(known)) if symmetric else i):
                if i != j:
                    matrix[known[i], known[j]] += 1 if uniform else 1 / abs(i - j)  # type: ignore[assignment]
    return words, [counts[word] for word in words], dict(matrix)


def made(tmp_path: Path, corpus: Path, name: str = "dataset", **options: Any) -> Dataset:
    defaults = {"memory": MEMORY, "sentences": "off"}
    config = PreprocessConfig(corpus=(str(corpus),), out=tmp_path / name, **{**defaults, **options})
    Pipeline(config).run()
    return Dataset.open(tmp_path / name)


def assert_is(dataset: Dataset, reference: tuple[list[str], list[int], dict[tuple[int, int], float]]) -> None:
    words, counts, matrix = reference
    assert list(dataset.words) == words
    assert dataset.counts.tolist() == counts
    found = full_matrix(dataset)
    assert len(matrix) == dataset.total_entries == len(found.data)
    order, cells = np.lexsort((found.col, found.row)), sorted(matrix)
    np.testing.assert_array_equal(np.stack([found.row, found.col], 1)[order], np.array(cells).reshape(-1, 2))
    np.testing.assert_allclose(found.data[order], [matrix[cell] for cell in cells], rtol=1e-7)
    assert dataset.manifest.facts["sum"] == pytest.approx(sum(matrix.values()))


def prose(lines: int, seed: int = 0) -> list[str]:
    """Return lines of words with a long tail, quotation marks and other marks."""
    rng = random.Random(seed)
    words = [f"w{int(1.15**n)}{'s' * (n % 3)}" for n in range(60)] + ["don't", '"so', 'said,"', "(b).", "Ünïcode", "—"]
    return [" ".join(rng.choices(words, k=rng.randrange(0, 30))) + rng.choice([".", "", " ?"]) for _ in range(lines)]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    texts = prose(400)
    path = tmp_path_factory.mktemp("corpus") / "prose.txt"
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return path, texts


@pytest.mark.parametrize(
    ("size", "window", "symmetric", "uniform"),
    [(40, 5, True, False), (1000, 1, True, False), (50, 15, True, False), (30, 4, False, False), (40, 3, True, True),
     (25, 10, False, True)],
)  # fmt: skip
def test_counts_are_the_seeds_counts(
    tmp_path: Path, corpus: tuple[Path, list[str]], size: int, window: int, symmetric: bool, uniform: bool
) -> None:
    weighting = "uniform" if uniform else "distance"
    dataset = made(
        tmp_path, corpus[0], vocab_size=size, window=window, symmetric=symmetric, weighting=weighting, processes=2
    )
    assert_is(dataset, naive(corpus[1], size, window, symmetric=symmetric, uniform=uniform))


def test_ties_go_to_the_word_that_occurs_first(tmp_path: Path) -> None:
    path = tmp_path / "ties.txt"
    texts = ["z y x z y x", "b a b a", "q z", "r r"]
    path.write_text("\n".join(texts), encoding="utf-8")
    for size in range(1, 8):
        assert_is_words(made(tmp_path, path, f"d{size}", vocab_size=size, window=2, processes=1), texts, size)


def assert_is_words(dataset: Dataset, texts: list[str], size: int) -> None:
    words, counts, _ = naive(texts, size, 2)
    assert (list(dataset.words), dataset.counts.tolist()) == (words, counts)


def test_entries_are_sorted_by_block_tile_and_cell(tmp_path: Path, corpus: tuple[Path, list[str]]) -> None:
    dataset = made(tmp_path, corpus[0], vocab_size=60, partitions=3, tile=7)
    layout = dataset.layout
    for a, b in layout.blocks:
        entries, starts = dataset.block(a, b)
        in_stripe = layout.tile_rows(a)
        for tile, (start, stop) in enumerate(itertools.pairwise(starts.tolist())):
            i, j = entries["i"][start:stop].astype(int), entries["j"][start:stop].astype(int)
            assert (i // layout.tile == tile % in_stripe).all()
            assert (j // layout.columns == tile // in_stripe).all()
            assert (np.diff(i * 65536 + j) > 0).all()
            assert a != b or (i >= j).all()


def checksums(dataset: Dataset) -> dict[str, str]:
    return {path.name: file_sha256(path) for path in sorted(dataset.path.iterdir())}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"sentences": "punkt", "phrases": 1, "digits": "zero", "lowercase": False},
    ],
)
def test_bytes_do_not_depend_on_how_the_work_is_shared(
    tmp_path: Path, corpus: tuple[Path, list[str]], monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    options = {"vocab_size": 50, **options}
    usual = checksums(made(tmp_path, corpus[0], "usual", processes=1, **options))
    assert usual == checksums(made(tmp_path, corpus[0], "three", processes=3, **options))
    # many splits, divided in the middle of lines
    monkeypatch.setattr("glovewire.preprocess.corpus.splits.SPLIT_BYTES", 700)
    monkeypatch.setattr("glovewire.preprocess.corpus.readers.BATCH_BYTES", 90)
    monkeypatch.setattr(pipeline.Pipeline, "_groups", lambda *_: 3)
    assert usual == checksums(made(tmp_path, corpus[0], "splits", processes=2, **options))
    monkeypatch.setattr(pipeline, "MAX_SQUARE_SIDE", 3)  # nearly every pair is spilled,
    monkeypatch.setattr(pipeline, "MAX_RECORDS", 200)  # in many small runs,
    monkeypatch.setattr(jobs, "COMMIT_EVERY_S", -1.0)  # in a piece for every split
    assert usual == checksums(made(tmp_path, corpus[0], "spilled", processes=2, **options))


def test_a_small_memo_is_emptied_and_changes_nothing(
    tmp_path: Path, corpus: tuple[Path, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = checksums(made(tmp_path, corpus[0], "usual", vocab_size=50))
    monkeypatch.setattr("glovewire.preprocess.corpus.splits.SPLIT_BYTES", 2000)
    monkeypatch.setattr(jobs.Encoder, "nbytes", property(lambda _: 1 << 60))
    monkeypatch.setattr(pipeline.Pipeline, "_groups", lambda *_: 5)
    assert usual == checksums(made(tmp_path, corpus[0], "small", vocab_size=50, processes=2))


@pytest.mark.parametrize(("size", "partitions"), [(1, None), (3, None), (50, 50), (64, 7)])
def test_odd_sizes(tmp_path: Path, corpus: tuple[Path, list[str]], size: int, partitions: int | None) -> None:
    dataset = made(tmp_path, corpus[0], vocab_size=size, partitions=partitions, tile=5)
    assert_is(dataset, naive(corpus[1], size, 5))


def test_wide_keys_are_sorted_instead_of_added_up_in_place(
    tmp_path: Path, corpus: tuple[Path, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = checksums(made(tmp_path, corpus[0], "usual", vocab_size=50))
    monkeypatch.setattr("glovewire.preprocess.counts.reduce.DENSE_BITS", -1)
    assert usual == checksums(made(tmp_path, corpus[0], "sorted", vocab_size=50))
    monkeypatch.setattr("glovewire.preprocess.counts.cooccurrence.NARROW_RANGE_BITS", -1)  # records of 64 bits
    assert usual == checksums(made(tmp_path, corpus[0], "wide", vocab_size=50))


def test_the_command_reports_what_it_made(tmp_path: Path, corpus: tuple[Path, list[str]]) -> None:
    out = tmp_path / "d"
    words = [str(corpus[0]), "--out", str(out), "--processes", "2", "--sentences", "off", "--json"]
    result = CliRunner().invoke(preprocess, words)
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout.splitlines()[-1])
    words, _, matrix = naive(corpus[1], 32_000, 5)
    assert (facts["words"], facts["lines"], facts["entries"]) == (len(words), 400, len(matrix))
    assert "words, fewer than the 32,000 requested" in result.stdout
    assert facts["outside_vocabulary"] == 0
    assert facts["most_frequent_left_out"] == {}
    assert set(facts["seconds"]) == {"tokenise", "vocabulary", "count", "add up", "write"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d"]
    assert str(tmp_path) not in (out / "manifest.json").read_text(encoding="utf-8")


def test_a_vocabulary_that_is_small_by_choice_is_not_called_the_whole_corpus(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("a b a b a c\n" * 4 + "d e\n", encoding="utf-8")
    result = CliRunner().invoke(preprocess, [str(path), "--out", str(tmp_path / "d"), "--min-count", "4"])
    assert "the corpus has 3 words that occur 4 times or more, fewer than the 32,000 requested" in result.stdout


def test_what_was_left_out_is_reported(tmp_path: Path) -> None:
    path, out = tmp_path / "text.txt", tmp_path / "d"
    path.write_text("a b a b a c\n" * 4 + "d e\n", encoding="utf-8")
    result = CliRunner().invoke(preprocess, [str(path), "--out", str(out), "--vocab-size", "3", "--json"])
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout.splitlines()[-1])
    assert facts["rarest_count"] == 4
    assert facts["most_frequent_left_out"] == {"d": 1, "e": 1}
    assert facts["outside_vocabulary"] == pytest.approx(2 / 26)
    assert "7.7% of the tokens are outside the vocabulary" in result.stdout
    assert "occurs 4 times, too few to learn much of it; --min-count 5 leaves such words out" in result.stdout
    known = Dataset.open(out).manifest.facts
    assert {name: known[name] for name in ("sentences", "lowercase", "digits", "phrases", "rarest_count")} == {
        "sentences": "punkt", "lowercase": True, "digits": "keep", "phrases": 0, "rarest_count": 4,
    }  # fmt: skip


def test_words_of_the_corpus_cannot_steer_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "te\x1b[2Jxt.txt"
    path.write_text("a b a b \x1b]0;title\x07\n" * 4, encoding="utf-8")
    words = [str(path), "--out", str(tmp_path / "d"), "--tokenizer", "whitespace", "--vocab-size", "2"]
    result = CliRunner().invoke(preprocess, words)
    assert r"most frequent left out: \x1b]0;title\x07 4" in result.stdout, result.output
    assert "\x1b" not in result.stdout


def test_wikitext_2_is_counted_as_the_seeds_count(tmp_path: Path, shared_data: Path) -> None:
    path = shared_data / "text" / "wikitext2-valid.txt.xz"
    texts = lzma.decompress(path.read_bytes()).decode().split("\n")
    dataset = made(tmp_path, path, vocab_size=5000, window=5, processes=2, sentences="punkt")
    assert_is(dataset, naive(texts, 5000, 5))
