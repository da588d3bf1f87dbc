"""What a life of a run ends with: a final checkpoint that takes nothing away before it is whole on every shard."""

from __future__ import annotations

from pathlib import Path

import pytest
from shards import in_memory, shard

from common.dataset import Dataset
from common.options import TrainingOptions
from server import checkpoint


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return in_memory(tmp_path / "d")


def end(dataset: Dataset, run: Path, life: int, round: int, *, only: int | None = None, apart: bool = False) -> str:
    """The final checkpoint of a life, of both shards or only of one, with rows cut apart if so; its label."""
    for number in range(2) if only is None else [only]:
        core = shard(dataset, number=number, shards=2, life=life).core
        core.consistency.rounds[:] = round
        core.consistency.rounds[-1] += apart
        folder = checkpoint.write(run, core.final())
    return folder.name.partition(".")[0]


def finals(run: Path) -> set[str]:
    return {path.name for path in (run / "checkpoints").glob("final*")}


def test_a_resumed_run_that_ends_with_rows_apart_leaves_what_it_went_on_from(dataset: Dataset, tmp_path: Path) -> None:
    """That is a signal while blocks take longer than a server waits for them."""
    first = end(dataset, tmp_path, 0, 2)
    for life in (1, 2):
        label = end(dataset, tmp_path, life, 4, apart=True)
        assert checkpoint.newest(tmp_path) == (first, 2)
        checkpoint.assemble(tmp_path, dataset, TrainingOptions(dim=4, epochs=2), 2, {}, label)
        checkpoint.drop_old_finals(tmp_path, label)
        assert checkpoint.newest(tmp_path) == (first, 2)
        assert finals(tmp_path) == {f"{one}.shard-{number}-of-2" for one in (first, label) for number in range(2)}


def test_shards_that_are_killed_between_their_last_checkpoints_leave_the_one_before(
    dataset: Dataset, tmp_path: Path
) -> None:
    first = end(dataset, tmp_path, 0, 2)
    end(dataset, tmp_path, 1, 4, only=0)
    assert checkpoint.newest(tmp_path) == (first, 2)
    last = end(dataset, tmp_path, 2, 5)
    assert checkpoint.newest(tmp_path) == (last, 2)
    checkpoint.drop_old_finals(tmp_path, last)
    assert finals(tmp_path) == {f"{last}.shard-{number}-of-2" for number in range(2)}


def test_a_final_checkpoint_goes_only_when_the_new_one_is_undamaged(dataset: Dataset, tmp_path: Path) -> None:
    first, last = end(dataset, tmp_path, 0, 2), end(dataset, tmp_path, 1, 4)
    file = checkpoint.place(tmp_path, last, 1, 2) / "rows.npy"
    file.write_bytes(file.read_bytes()[:-9] + b"damaged!!")
    checkpoint.drop_old_finals(tmp_path, last)
    assert checkpoint.newest(tmp_path) == (first, 2)
