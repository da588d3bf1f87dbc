"""Density, sum, symmetry and diagonal of whole corpora, as the seeds give them; large corpora only on request.

`GLOVEWIRE_TEST_CORPORA` lists more corpora to count, with commas: `enwiki-large.txt.xz` (of the shared data) and
`wikitext-103-raw-v1` (over the network), or a folder that holds the same text.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np
import pytest
from handmade import full_matrix
from processes import Flow

from glovewire.common.storage.dataset import Dataset

ASKED = [name for name in os.environ.get("GLOVEWIRE_TEST_CORPORA", "").split(",") if name]
MILLION = 1e6
KNOWN = {
    "wikitext2-valid.txt.xz": (5000, (0.0215, 0.0216), (1.0 * MILLION, 1.03 * MILLION)),
    "enwiki-large.txt.xz": (32_000, (0.05, 0.06), (300 * MILLION, 310 * MILLION)),
    "wikitext-103-raw-v1": (32_000, (0.05, 0.06), (440 * MILLION, 450 * MILLION)),
}
"""Corpus: vocabulary, density, sum. The last is from the seeds; the others are from our first count."""


@pytest.mark.timeout(1800 if ASKED else 400)
@pytest.mark.parametrize("corpus", ["wikitext2-valid.txt.xz", *ASKED])
def test_the_matrix_of_a_corpus(tmp_path: Path, shared_data: Path, corpus: str) -> None:
    size, density, total = KNOWN[Path(corpus).name]
    text = shared_data / "text" / corpus
    with Flow(tmp_path) as flow:
        source = text if text.exists() else corpus
        flow.start("preprocess", source, "--out", "data", "--vocab-size", size).ends(0, seconds=1500 if ASKED else 60)
        facts = flow.run("info", "data", "--json").json
    assert facts["vocabulary"] == size
    assert density[0] <= facts["density"] <= density[1]
    assert total[0] <= facts["sum"] <= total[1]
    matrix = full_matrix(Dataset.open(tmp_path / "data")).tocsr()
    assert matrix.nnz == facts["entries"]
    assert np.count_nonzero(matrix.diagonal()) > size / 50
    assert (matrix != matrix.T).nnz == 0


def test_text_of_new_words_only_keeps_within_its_memory(tmp_path: Path) -> None:
    """Pieces full of quotation marks take the most memory: NLTK itself splits each into six words."""
    draw = random.Random(4)
    lines = (
        " ".join(f"'{draw.randbytes(6).hex()}``a--«{draw.randrange(10)}bc»" for _ in range(20)) for _ in range(6_000)
    )
    (tmp_path / "text.txt").write_text("\n".join(lines), encoding="utf-8")
    with Flow(tmp_path) as flow:
        words = ("--vocab-size", 10_000, "--processes", 1, "--memory", "272MB", "--json")
        made = flow.start("preprocess", "text.txt", "--out", "data", *words).ends(0, seconds=200).json
    assert made["peak_memory_bytes"] <= 272 << 20
