"""Counts made by Stanford's GloVe give the same dataset as the text itself; damaged files are refused."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest
from handmade import full_matrix

from glovewire.common.errors import CorpusError, ProcessDied
from glovewire.common.storage.artifacts import file_sha256
from glovewire.common.storage.dataset import ENTRIES, PERMUTATION, TILES, VOCABULARY, Dataset
from glovewire.preprocess import jobs
from glovewire.preprocess.config import PreprocessConfig
from glovewire.preprocess.counts.stanford import RECORD
from glovewire.preprocess.pipeline import run

MEMORY = 1 << 30


def from_text(tmp_path: Path, symmetric: bool) -> Dataset:
    corpus = tmp_path / "text.txt"
    rng = np.random.default_rng(3)
    words = [f"w{n}" for n in range(40)]
    corpus.write_text("\n".join(" ".join(rng.choice(words, 15)) for _ in range(80)), encoding="utf-8")
    run(PreprocessConfig(corpus=(str(corpus),), out=tmp_path / "own", processes=1, memory=MEMORY, symmetric=symmetric))
    return Dataset.open(tmp_path / "own")


def as_stanford(dataset: Dataset, folder: Path) -> tuple[Path, Path]:
    """Write the dataset as Stanford's files, with words numbered from 1 from the most frequent down."""
    order = np.argsort(-dataset.counts, kind="stable")
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(1, len(order) + 1)
    matrix = full_matrix(dataset)
    records = np.empty(matrix.nnz, RECORD)
    records["i"], records["j"], records["x"] = rank[matrix.row], rank[matrix.col], matrix.data
    np.random.default_rng(0).shuffle(records)
    records.tofile(folder / "cooc.bin")
    vocabulary = "".join(f"{dataset.words[n]} {dataset.counts[n]}\n" for n in order)
    (folder / "vocab.txt").write_text(vocabulary, encoding="utf-8")
    return folder / "cooc.bin", folder / "vocab.txt"


def imported(tmp_path: Path, files: tuple[Path, Path], **options: bool) -> Dataset:
    out = tmp_path / "imported"
    run(PreprocessConfig(out=out, processes=2, memory=MEMORY, from_stanford=files, **options))
    return Dataset.open(out)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("at_once", [7, 1 << 20])
def test_the_same_counts_give_the_same_entries(
    tmp_path: Path, symmetric: bool, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = from_text(tmp_path, symmetric)
    monkeypatch.setattr("glovewire.preprocess.counts.stanford.MAX_RECORDS", at_once)
    other = imported(tmp_path, as_stanford(own, tmp_path), symmetric=symmetric)
    for name in (VOCABULARY, ENTRIES, TILES, PERMUTATION):
        assert file_sha256(own.path / name) == file_sha256(other.path / name), name
    assert other.counts.tolist() == own.counts.tolist()
    assert other.total_entries == own.total_entries
    assert other.manifest.facts["sum"] == pytest.approx(own.manifest.facts["sum"])
    assert other.manifest.facts["lines"] is None


def test_resume_with_other_counts_starts_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = from_text(tmp_path, symmetric=True)
    files = as_stanford(own, tmp_path)
    with monkeypatch.context() as hurt:
        hurt.setattr(jobs.ReduceJob, "finish", lambda _: os.kill(os.getpid(), signal.SIGKILL))
        with pytest.raises(ProcessDied):
            imported(tmp_path, files)
    records = np.fromfile(files[0], RECORD)
    records["x"] *= 2
    records.tofile(files[0])
    assert imported(tmp_path, files, resume=True).manifest.facts["sum"] == pytest.approx(2 * own.manifest.facts["sum"])


def test_one_sided_counts_are_not_taken_for_symmetric_ones(tmp_path: Path) -> None:
    files = as_stanford(from_text(tmp_path, symmetric=False), tmp_path)
    with pytest.raises(CorpusError, match="not symmetric: give --left-only"):
        imported(tmp_path, files)
    assert not (tmp_path / "imported").exists()


@pytest.mark.parametrize(
    ("records", "vocabulary", "message"),
    [
        ([(1, 3, 1.0), (3, 1, 1.0)], "a 3\nb 2\n", "name a word that the vocabulary of 2 words lacks"),
        ([(1, 0, 1.0)], "a 3\nb 2\n", "name a word"),
        ([(1, 2, float("nan"))], "a 3\nb 2\n", "not a positive float32"),
        ([(1, 2, -1.0)], "a 3\nb 2\n", "not a positive float32"),
        ([(1, 2, 1e-50)], "a 3\nb 2\n", "not a positive float32"),
        ([(1, 2, 1e40)], "a 3\nb 2\n", "not a positive float32"),
        ([(1, 1, 3e38), (1, 1, 3e38)], "a 3\nb 2\n", "cooc.bin: a pair's weights add up to more than float32 holds"),
        ([], "a 3\nb 2\n", "have 0 bytes"),
        ([(1, 2, 1.0)], "a 3\nb\n", "line 2 is not a word and its count"),
        ([(1, 2, 1.0)], "a 99999999999999999999\nb 2\n", "line 1 is not a word and its count"),
        ([(1, 2, 1.0)], f"a 3\nb {'9' * 5000}\n", "line 2 is not a word and its count"),
        ([(1, 2, 1.0)], "a 3\na 2\n", "names a word twice"),
        ([(1, 2, 1.0)], "", "is empty"),
    ],
)
def test_damaged_files(tmp_path: Path, records: list[tuple[int, int, float]], vocabulary: str, message: str) -> None:
    np.array(records, RECORD).tofile(tmp_path / "cooc.bin")
    (tmp_path / "vocab.txt").write_text(vocabulary, encoding="utf-8")
    with pytest.raises(CorpusError, match=message) as raised:
        imported(tmp_path, (tmp_path / "cooc.bin", tmp_path / "vocab.txt"))
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "imported").exists()


def test_missing_and_cut_files(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("a 3\nb 2\n", encoding="utf-8")
    (tmp_path / "cooc.bin").write_bytes(b"\0" * 17)
    with pytest.raises(CorpusError, match="have 17 bytes"):
        imported(tmp_path, (tmp_path / "cooc.bin", tmp_path / "vocab.txt"))
    with pytest.raises(CorpusError, match="cannot be read"):
        imported(tmp_path, (tmp_path / "none.bin", tmp_path / "vocab.txt"))
    with pytest.raises(CorpusError, match="cannot be read: File name too long"):
        imported(tmp_path, (tmp_path / ("x" * 300), tmp_path / "vocab.txt"))
    (tmp_path / "folder").mkdir()
    with pytest.raises(CorpusError, match=r"counts .*folder cannot be read: Is a directory"):
        imported(tmp_path, (tmp_path / "folder", tmp_path / "vocab.txt"))
    with pytest.raises(CorpusError, match="cannot be read"):
        imported(tmp_path, (tmp_path / "cooc.bin", tmp_path / "none.txt"))
