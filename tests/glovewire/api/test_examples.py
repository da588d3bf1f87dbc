"""The examples in the docstrings of the library run as they stand."""

from __future__ import annotations

import doctest
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forked import programs_fork

import glovewire
from glovewire.api import corpora, dense, glove, stream, training
from glovewire.vectors import keyed_vectors

MODULES = [keyed_vectors, corpora, training, glove, dense, stream]
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@pytest.fixture(autouse=True, scope="module")
def _forks() -> Iterator[None]:
    with programs_fork():
        yield


@pytest.fixture
def wv() -> glovewire.KeyedVectors:
    """Three words, two of which are alike."""
    return glovewire.KeyedVectors(["cat", "dog", "car"], np.array([[3, 1], [2, 1], [0, 1]]))


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    """Pairs of words with scores, one of them unknown."""
    path = tmp_path / "pairs.csv"
    path.write_text("Word 1,Word 2,Human (mean)\ncat,dog,9\ncat,car,2\ndog,car,3\ncat,fish,5\n")
    return path


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    """An analogy question that these vectors cannot answer."""
    path = tmp_path / "questions.txt"
    path.write_text(": animals\ncat dog car dog\n")
    return path


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> glovewire.Run:
    """A finished run of two epochs."""
    return glovewire.Run(shutil.copytree(trained, tmp_path / "run"))


@pytest.fixture(scope="module")
def trained(_forks: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of that run."""
    folder = tmp_path_factory.mktemp("trained")
    dataset = glovewire.preprocess(["the cat sits on the mat", "the dog sits on the rug"] * 10, folder / "data")
    return glovewire.train(dataset, folder / "run", dim=8, epochs=2, workers=1).path


def _examples() -> list[Any]:
    finder = doctest.DocTestFinder(exclude_empty=True)
    return [test for module in MODULES for test in finder.find(module, module.__name__) if test.examples]


@pytest.mark.parametrize("test", _examples(), ids=lambda test: test.name)
def test_an_example_runs(test: doctest.DocTest, request: pytest.FixtureRequest, monkeypatch: Any) -> None:
    monkeypatch.chdir(request.getfixturevalue("tmp_path"))
    test.globs |= {"getfixture": request.getfixturevalue, "glovewire": glovewire}
    runner = doctest.DocTestRunner(optionflags=OPTIONS)
    report: list[str] = []
    runner.run(test, out=report.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(report)
