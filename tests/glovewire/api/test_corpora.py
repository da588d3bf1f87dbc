"""Corpora in memory become a file of texts for the command; what is no text is one clear error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from forked import programs_fork

import glovewire
from glovewire import errors


@pytest.mark.parametrize("times", [20, 10_000])
def test_a_text_that_is_taken_for_a_name_is_refused_with_the_remedy(tmp_path: Path, times: int) -> None:
    with pytest.raises(errors.CorpusError, match=r"^corpus It was .{90,100} has too long a name: .* pass a list"):
        glovewire.preprocess("It was a dark and stormy night. " * times, tmp_path / "data")
    assert list(tmp_path.iterdir()) == []


def test_rows_without_a_text_are_empty_texts(tmp_path: Path) -> None:
    rows = [{"text": None}, {"text": "a b"}, {"text": None}, {"text": "a c"}]
    with programs_fork():
        made = glovewire.preprocess(rows, tmp_path / "data", processes=1)
    assert made.words == ("a", "b", "c")
    assert made.manifest.facts["lines"] == 4


@pytest.mark.parametrize("corpus", [[None], [None, "a b"], ["a b", None], [["a", "b"], None]])
def test_none_is_not_a_text(tmp_path: Path, corpus: list[Any]) -> None:
    with pytest.raises(errors.CorpusError, match=rf"^text {corpus.index(None) + 1} is None: give texts"):
        glovewire.preprocess(corpus, tmp_path / "data")
    assert list(tmp_path.iterdir()) == []
