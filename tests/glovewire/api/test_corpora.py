"""Corpora in memory become a file of texts for the command; what is no text is one clear error."""

from __future__ import annotations

from pathlib import Path

import pytest

import glovewire
from glovewire import errors


@pytest.mark.parametrize("times", [20, 10_000])
def test_a_text_that_is_taken_for_a_name_is_refused_with_the_remedy(tmp_path: Path, times: int) -> None:
    with pytest.raises(errors.CorpusError, match=r"^corpus It was .{90,100} has too long a name: .* pass a list"):
        glovewire.preprocess("It was a dark and stormy night. " * times, tmp_path / "data")
    assert list(tmp_path.iterdir()) == []
