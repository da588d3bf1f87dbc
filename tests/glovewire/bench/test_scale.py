"""`glovewire bench scale` on a tiny text: what it measures, keeps, leaves out and refuses; no figure is judged."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from forked import programs_fork
from handmade import random_dataset

from glovewire.bench import scale as bench_scale
from glovewire.bench import vocabularies
from glovewire.bench.cli import bench
from glovewire.bench.config import ScaleBenchConfig
from glovewire.bench.vocabularies import make_datasets
from glovewire.common.model.options import TrainingOptions
from glovewire.common.storage.dataset import Dataset
from glovewire.vectors.matrix import entries

GLOVE = (
    "#!/bin/sh\ntest -s cooccurrence.bin && test -s vocab.txt || exit 1\n"
    'wc -l < vocab.txt >&2; echo "Initializing parameters...done." >&2; sleep 0.1\necho "x, iter: 001" >&2\n'
)


def run(*words: object) -> Result:
    return CliRunner().invoke(bench, ["scale", *map(str, words), "--processes", "1"])


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """30 words, of which word n occurs in every nth line."""
    lines = (" ".join(f"w{n}" for n in range(1, 31) if line % n == 0) for line in range(1, 200))
    (tmp_path / "text.txt").write_text("\n".join(lines))
    return tmp_path / "text.txt"


@pytest.fixture
def peer(tmp_path: Path) -> Path:
    """A folder with a stand-in for Stanford's `glove`."""
    (tmp_path / "peer" / "build").mkdir(parents=True)
    (tmp_path / "peer" / "build" / "glove").write_text(GLOVE)
    (tmp_path / "peer" / "build" / "glove").chmod(0o755)
    return tmp_path / "peer"


@pytest.mark.usefixtures("fonts_are_closed")
def test_every_vocabulary_is_measured_beside_shared_memory_and_the_peer(text: Path, peer: Path) -> None:
    picture = text.with_name("scale.PNG")
    sizes = ("--vocab-size", 20, "--vocab-size", 10, "--vocab-size", 99)
    with programs_fork():
        done = run(text, *sizes, "--dim", 8, "--epochs", 40, "--shared", "--peer", peer, "--plot", picture, "--json")
    assert done.exit_code == 0, done.output
    *table, last = done.stdout.splitlines()
    result = json.loads(last)
    assert f"{text} has 30 words: left out 99" in done.stderr.splitlines()
    assert [one["words"] for one in result["sizes"]] == [10, 20]
    assert (result["relative_to"], result["success"]) == (20, 1)
    assert result["options"]["epochs"] == 40
    small, large = result["sizes"]
    assert small["dataset"]["entries"] < large["dataset"]["entries"]
    assert large["times_as_costly"]["median"] == 1
    ratio = large["entries_per_second"]["median"] / small["entries_per_second"]["median"]
    assert small["times_as_costly"]["median"] == pytest.approx(ratio, rel=0.01)
    for one in result["sizes"]:
        assert one["ns_per_entry"]["median"] == pytest.approx(1e9 / one["entries_per_second"]["median"], rel=0.01)
        assert one["bytes_pushed_per_entry"]["min"] > 0
        assert min(one[role]["peak_private_mb"]["min"] for role in ("server", "worker")) > 0
        assert one["beside"]["shared"]["bytes_pushed_per_entry"]["max"] == 0
        assert one["peer"]["threads"] == 2
        assert one["times_as_fast_as_peer"]["median"] > 0
    assert [line.split()[0] for line in table] == ["words", "10", "20", "8"]
    assert {"shared", "peer"} <= set(table[0].split())
    assert picture.read_bytes().startswith(b"\x89PNG")


def config(corpus: Path, *sizes: int, **others: Any) -> ScaleBenchConfig:
    return ScaleBenchConfig(corpus=str(corpus), sizes=sizes, processes=1, options=TrainingOptions(dim=8), **others)


def test_datasets_in_the_work_folder_are_used_again(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    (tmp_path / "work").mkdir()
    make_datasets(config(text, 10, work=tmp_path / "work"), tmp_path, said.append)
    assert said == ["preprocessing 10 words"]
    both = make_datasets(config(text, 20, 10, work=tmp_path / "work"), tmp_path, said.append)
    assert said == ["preprocessing 10 words", "preprocessing 20 words"]
    monkeypatch.setattr(vocabularies, "preprocess", None)
    assert make_datasets(config(text, 10, 20, work=tmp_path / "work"), tmp_path, said.append) == both
    refused = run(text, "--vocab-size", 10, "--window", 3, "--work", tmp_path / "work")
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1), refused.output
    assert "name another --work" in refused.stderr
    (tmp_path / "work" / vocabularies.MADE_OF).unlink()
    assert "name another --work" in run(text, "--vocab-size", 10, "--work", tmp_path / "work").stderr


def test_a_dataset_is_reduced_to_its_most_frequent_words(tmp_path: Path) -> None:
    full, _ = random_dataset(tmp_path / "data", size=40)
    ranked = sorted(range(40), key=lambda word: (-full.counts[word], full.words[word]))
    dense = to_dense(full)
    for size, path in make_datasets(config(tmp_path / "data", 15, 40, 41), tmp_path, lambda _: None).items():
        reduced = Dataset.open(path)
        kept = sorted(ranked[:size])
        assert reduced.words == tuple(full.words[word] for word in kept)
        found = to_dense(reduced)
        for (i, left), (j, right) in itertools.product(enumerate(kept), enumerate(kept)):
            assert found.get((i, j), 0) == dense.get((left, right), 0)


def to_dense(dataset: Dataset) -> dict[tuple[int, int], float]:
    return {(i, j): x for piece in entries(dataset) for i, j, x in zip(*(part.tolist() for part in piece), strict=True)}


@pytest.mark.parametrize(
    ("words", "status", "complaint"),
    [
        (("TEXT", "--vocab-size", 31), 1, "has 30 words: name a smaller --vocab-size or a larger text"),
        (("TEXT", "--vocab-size", 0), 2, "vocab-size must be between 1 and 4,000,000, not 0"),
        (("TEXT", "--peer", "nowhere"), 2, "build Stanford's GloVe there first"),
        (("TEXT", "--peer", ".", "--objective", "sgns"), 2, "--peer trains GloVe, not --objective sgns"),
        (("TEXT", "--plot", "scale.gif"), 2, "must end in .png or .svg"),
        (("TEXT", "--repeats", 0), 2, "repeats must be at least 1"),
        (("-",), 2, "name a file"),
        (("nowhere.txt",), 1, "nowhere.txt does not exist"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_one_line(
    text: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[object, ...], status: int, complaint: str
) -> None:
    monkeypatch.setattr(bench_scale, "_trainings", None)
    done = run(*(text if word == "TEXT" else word for word in words))
    lines = [line for line in done.stderr.splitlines() if not line.startswith("preprocessing")]
    assert (done.exit_code, len(lines)) == (status, 1), done.output
    assert complaint in lines[0]
