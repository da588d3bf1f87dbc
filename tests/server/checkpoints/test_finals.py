"""How a generation ends: with a final checkpoint that takes nothing away before it is whole on every shard."""

from __future__ import annotations

import dataclasses
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from shards import MINIBATCH, in_memory, shard

from glovewire.common.model.options import TrainingOptions
from glovewire.common.storage.dataset import Dataset
from glovewire.server.checkpoints import files as checkpoint
from glovewire.server.checkpoints import generations
from glovewire.server.config import ServerConfig


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return in_memory(tmp_path / "d")


def end(
    dataset: Dataset,
    run: Path,
    generation: int,
    round: int,
    *,
    only: int | None = None,
    apart: bool = False,
    ending: str = "complete",
) -> str:
    """The final checkpoint of a generation, of both shards or only of one, with rows cut apart if so; its label."""
    for number in range(2) if only is None else [only]:
        one = shard(dataset, number=number, shards=2, generation=generation)
        one.state.consistency.rounds[:] = round
        one.state.consistency.begun[:] = round - 1
        one.state.consistency.begun[-1] += apart
        last = one.core.final()
        folder = checkpoint.write(run, dataclasses.replace(last, facts={**last.facts, "summary": {"ending": ending}}))
    return folder.name.partition(".")[0]


def finals(run: Path) -> set[str]:
    return {path.name for path in (run / "checkpoints").glob("final*")}


def test_a_resumed_run_that_ends_with_rows_apart_leaves_what_it_went_on_from(dataset: Dataset, tmp_path: Path) -> None:
    """That is a signal while blocks take longer than a server waits for them."""
    first = end(dataset, tmp_path, 0, 2)
    for generation in (1, 2):
        label = end(dataset, tmp_path, generation, 4, apart=True)
        assert checkpoint.newest(tmp_path) == (first, 2)
        checkpoint.assemble(tmp_path, dataset, TrainingOptions(dim=4, epochs=2), 2, {}, label)
        checkpoint.remove_old_finals(tmp_path, label)
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
    checkpoint.remove_old_finals(tmp_path, last)
    assert finals(tmp_path) == {f"{last}.shard-{number}-of-2" for number in range(2)}


def test_a_final_checkpoint_goes_only_when_the_new_one_is_undamaged(dataset: Dataset, tmp_path: Path) -> None:
    first, last = end(dataset, tmp_path, 0, 2), end(dataset, tmp_path, 1, 4)
    file = checkpoint.part_folder(tmp_path, last, 1, 2) / "rows.npy"
    file.write_bytes(file.read_bytes()[:-9] + b"damaged!!")
    checkpoint.remove_old_finals(tmp_path, last)
    assert checkpoint.newest(tmp_path) == (first, 2)


@pytest.mark.parametrize(("options", "fit"), [({"consistency": "async"}, False), (MINIBATCH, False), ({}, True)])
def test_parts_of_different_generations_are_a_checkpoint_only_where_every_generation_comes_to_the_same_rows(
    dataset: Dataset, tmp_path: Path, options: dict[str, Any], fit: bool
) -> None:
    def save(label: str, number: int, generation: int) -> None:
        state = shard(dataset, number=number, shards=2, generation=generation, **options).state
        checkpoint.write(tmp_path, state.cuts.snapshot(label, state.table.values, *state.cuts.reached))

    for label, generation in (("round-1", 0), ("round-2", 1)):
        save(label, 0, 0)
        save(label, 1, generation)
    assert checkpoint.newest(tmp_path) == ("round-2" if fit else "round-1", 2)
    save("round-2", 0, 1)
    assert checkpoint.newest(tmp_path) == ("round-2", 2)


# ---- a shard that was killed at the very end


OPTIONS = TrainingOptions(dim=4, epochs=2, tied=True, bfloat16=False)


def config(dataset: Dataset, run: Path, number: int = 0, **how: Any) -> ServerConfig:
    return ServerConfig(
        dataset=dataset.path, out=run, options=OPTIONS, shard=number, shards=2, **(how or {"recover": True})
    )


def begin_generation(dataset: Dataset, run: Path, number: int = 0) -> None:
    of = config(dataset, run, number)
    generations.claim(of)
    assert generations.enter(of, generations.next_generation(of))


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize(
    ("ending", "how", "over"),
    [("complete", "recover", True), ("complete", "resume", True), ("asked", "recover", True),
     ("asked", "resume", False), ("stopped", "recover", False)],
)  # fmt: skip
def test_a_life_lacks_nothing_but_the_vectors_when_it_ended_for_good_and_every_part_is_there(
    dataset: Dataset, tmp_path: Path, apart: bool, ending: str, how: str, over: bool
) -> None:
    for number in range(2):
        begin_generation(dataset, tmp_path, number)
    of = [config(dataset, tmp_path, number, **{how: True}) for number in range(2)]
    end(dataset, tmp_path, 0, 4, only=0, ending=ending, apart=apart)
    generation = generations.newest(tmp_path)
    assert generation is not None
    assert [generations.outcome(each, generation, dataset.checksum) for each in of] == ["", ""]
    end(dataset, tmp_path, 0, 4, only=1, ending=ending, apart=apart)
    expected = ending if over else ""
    assert [generations.outcome(each, generation, dataset.checksum) for each in of] == [expected, expected]
    begin_generation(dataset, tmp_path)  # the shard goes on all the same
    assert [generations.end_of_run(each, None, dataset.checksum) for each in of] == [None, None]


def test_parts_that_are_damaged_or_not_of_this_training_are_not_put_together(dataset: Dataset, tmp_path: Path) -> None:
    begin_generation(dataset, tmp_path)
    of, label = config(dataset, tmp_path), end(dataset, tmp_path, 0, 6)
    generation = generations.newest(tmp_path)
    assert generation is not None
    assert generations.outcome(of, generation, dataset.checksum) == "complete"
    assert generations.outcome(of, generation, "another") == ""
    other = dataclasses.replace(of, options=dataclasses.replace(OPTIONS, seed=9))
    assert generations.outcome(other, generation, dataset.checksum) == ""
    assert generations.outcome(dataclasses.replace(of, shards=3), generation, dataset.checksum) == ""
    file = checkpoint.part_folder(tmp_path, label, 1, 2) / "rows.npy"
    file.write_bytes(file.read_bytes()[:-9] + b"damaged!!")
    assert generations.outcome(of, generation, dataset.checksum) == ""


# ---- what a killed process leaves


def leftover(run: Path, name: str) -> Path:
    """A folder in which a process was writing, or that was giving way to another one."""
    path = run / "checkpoints" / name
    path.mkdir(parents=True)
    (path / "rows.npy").write_bytes(b"rows")
    return path


def test_a_shard_removes_what_its_killed_processes_were_writing(dataset: Dataset, tmp_path: Path) -> None:
    begin_generation(dataset, tmp_path)
    ended = subprocess.Popen(["true"])
    ended.wait()
    ours = [
        leftover(tmp_path, f".{label}.shard-0-of-2.{pid}.partial")
        for label, pid in (("round-00000008", ended.pid), ("final", os.getpid()), ("round-00000009", 1 << 70))
    ]
    mark = tmp_path / "checkpoints" / f"..shard-0-of-2.{ended.pid}.partial"
    names = ("vectors.npy", "ngrams.npy", "tensors.npz", "vocabulary.txt", "manifest.json")
    ours += [mark, *(tmp_path / f".{name}.{ended.pid}.partial" for name in names)]
    for file in ours[3:]:
        file.write_text("{}")
    others = [
        leftover(tmp_path, f".round-00000008.shard-{shard}.{pid}.partial")
        for shard, pid in (("1-of-2", ended.pid), ("0-of-3", ended.pid), ("0-of-2", os.getppid()))
    ]
    begin_generation(dataset, tmp_path)
    assert [path for path in ours if path.exists()] == []
    assert [path.exists() for path in others] == [True] * 3


def test_what_was_giving_way_when_a_shard_was_killed_is_put_back(dataset: Dataset, tmp_path: Path) -> None:
    begin_generation(dataset, tmp_path)
    label = end(dataset, tmp_path, 0, 4)
    place = checkpoint.part_folder(tmp_path, label, 0, 2)
    place.rename(aside := place.with_name(f".{place.name}.{os.getpid()}.replaced"))
    assert not place.exists()
    generations.claim(config(dataset, tmp_path))
    assert checkpoint.newest(tmp_path) == (label, 2)
    leftover(tmp_path, aside.name)  # the new one had its place already
    generations.claim(config(dataset, tmp_path))
    assert checkpoint.newest(tmp_path) == (label, 2)
    assert not aside.exists()
