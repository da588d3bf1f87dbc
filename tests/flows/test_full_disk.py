"""A disk that is too full for everything at the end of a run: the vectors come first, and what failed is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from handmade import random_dataset
from processes import Flow
from small_disk import may_mount, small_disk

from glovewire.common.storage import run_folder as runs

WORDS, DIM = 200, 450
"""Rows of 832 kB and vectors of 360 kB for a disk of 512 kB."""


def test_vectors_for_which_there_is_room_are_written(tmp_path: Path) -> None:
    if not may_mount(tmp_path):
        pytest.skip("needs the right to mount a tiny file system")
    random_dataset(tmp_path / "data", size=WORDS)
    with small_disk(tmp_path / "small"), Flow(tmp_path) as flow:
        run = tmp_path / "small" / "run"
        words = ["--out", run, "--workers", 1, "--epochs", 1, "--dim", DIM, "--subwords", 0]
        said = flow.start("train", "data", *words).ends(1).err.splitlines()[-1]
        assert said.startswith("error: ")
        assert "final.shard-0-of-1 cannot be written: no space left on the disk" in said
        assert f"the vectors so far are in {run}" in said
        assert runs.load_vectors(run).vectors.shape == (WORDS, DIM)
