"""Checkpoints on disk: parts of one shard and of three, put together as they were, and refused when they do not fit."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from failing_disk import unreadable, untold
from shards import in_memory, shard

from glovewire.common.errors import ArtifactError, UsageError
from glovewire.common.model.options import TrainingOptions
from glovewire.common.model.postprocess import flatten_spectrum
from glovewire.common.model.row_layout import RowLayout
from glovewire.common.storage.artifacts import MANIFEST, seal
from glovewire.common.storage.dataset import Dataset
from glovewire.common.storage.run_folder import load_vectors
from glovewire.server.checkpoints import files as checkpoint
from glovewire.server.checkpoints import initial_state


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return in_memory(tmp_path / "d")


def write(dataset: Dataset, run: Path, shards: int, **options: Any) -> np.ndarray:
    """The final checkpoint of a training that has not begun; its rows."""
    parts = []
    for number in range(shards):
        one = shard(dataset, number=number, shards=shards, **options)
        parts.append(one.state.table.values)
        folder = checkpoint.write(run, one.core.final())
        assert folder == checkpoint.part_folder(run, "final", number, shards)
    return np.concatenate(parts)


@pytest.mark.parametrize("shards", [1, 3])
def test_rows_come_back_as_they_were(dataset: Dataset, tmp_path: Path, shards: int) -> None:
    expected = write(dataset, tmp_path / "run", shards)
    assert checkpoint.missing(tmp_path / "run", "final", shards) == []
    rows, facts = checkpoint.read(tmp_path / "run", "final", shards)
    np.testing.assert_array_equal(rows, expected)
    assert facts["dataset"] == dataset.checksum
    assert TrainingOptions.from_message(facts["options"]).dim == 4


@pytest.mark.parametrize(("tied", "spectrum"), [(True, 1.0), (False, 0.5)])
def test_vectors_are_the_same_bytes_for_any_number_of_shards(
    dataset: Dataset, tmp_path: Path, tied: bool, spectrum: float
) -> None:
    options = TrainingOptions(dim=4, epochs=2, tied=tied, spectrum=spectrum, subwords=0.0)
    found = []
    for shards in (1, 3):
        run = tmp_path / str(shards)
        rows = write(dataset, run, shards, tied=tied)
        checkpoint.assemble(run, dataset, options, shards, {"loss": 1.0})
        found.append((run / "vectors.npy").read_bytes())
        vectors = load_vectors(run)
        assert vectors.words == dataset.words
        expected = np.empty((len(rows), 4), np.float32)
        expected[dataset.permutation] = RowLayout.of(options).vectors(rows)
        np.testing.assert_array_equal(vectors.vectors, flatten_spectrum(expected, spectrum))
        assert vectors.facts["loss"] == 1.0
    assert found[0] == found[1]


def test_parts_that_are_missing_are_named(dataset: Dataset, tmp_path: Path) -> None:
    write(dataset, tmp_path, 3)
    part = checkpoint.part_folder(tmp_path, "final", 1, 3)
    part.rename(tmp_path / "elsewhere")
    assert checkpoint.missing(tmp_path, "final", 3) == [1]
    with pytest.raises(ArtifactError, match="shard-1-of-3 does not exist"):
        checkpoint.read(tmp_path, "final", 3)


def resealed(part: Path, **facts: Any) -> None:
    old = json.loads((part / MANIFEST).read_text())
    seal(part, old["kind"], old["schema"], {**old["facts"], **facts})


def saved(part: Path, array: np.ndarray) -> None:
    np.save(part / checkpoint.ROWS, array)
    resealed(part)


def without(part: Path, fact: str) -> None:
    old = json.loads((part / MANIFEST).read_text())
    del old["facts"][fact]
    seal(part, old["kind"], old["schema"], old["facts"])


def archive(part: Path) -> None:
    np.savez(part / "a.npz", a=np.zeros(3))
    (part / "a.npz").replace(part / checkpoint.ROWS)
    resealed(part)


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "a byte changed": lambda p: (p / "rows.npy").write_bytes((p / "rows.npy").read_bytes()[:-1] + b"\x01"),
    "cut": lambda p: (p / "rows.npy").write_bytes((p / "rows.npy").read_bytes()[:-1]),
    "no manifest": lambda p: (p / MANIFEST).unlink(),
    "another dataset": lambda p: resealed(p, dataset="0" * 64),
    "other options": lambda p: resealed(p, options={"dim": 5}),
    "another round": lambda p: resealed(p, round=99),
    "another shard": lambda p: resealed(p, shard=2),
    "another number of shards": lambda p: resealed(p, shards=4),
    "other rows": lambda p: resealed(p, rows=[3, 9]),
    "rows without numbers": lambda p: resealed(p, rows="8 to 16"),
    "no dataset": lambda p: without(p, "dataset"),
    "no options": lambda p: without(p, "options"),
    "no shard": lambda p: without(p, "shard"),
    "no rows": lambda p: without(p, "rows"),
    "fewer rows": lambda p: saved(p, np.zeros((3, 16), np.float32)),
    "narrower rows": lambda p: saved(p, np.zeros((8, 8), np.float32)),
    "rows of doubles": lambda p: saved(p, np.zeros((8, 16))),
    "flat rows": lambda p: saved(p, np.zeros(8, np.float32)),
    "a pickle": lambda p: ((p / "rows.npy").write_bytes(b"\x80\x04N."), resealed(p)),
    "an empty file": lambda p: ((p / "rows.npy").write_bytes(b""), resealed(p)),
    "an archive": archive,
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
@pytest.mark.parametrize("number", [0, 1])
def test_a_part_that_does_not_fit_is_refused_in_one_line(
    dataset: Dataset, tmp_path: Path, damage: Callable[[Path], Any], number: int
) -> None:
    write(dataset, tmp_path, 3)
    damage(checkpoint.part_folder(tmp_path, "final", number, 3))
    with pytest.raises(ArtifactError) as caught:
        checkpoint.read(tmp_path, "final", 3)
    assert "\n" not in str(caught.value)


def test_shards_that_stopped_rounds_apart_leave_vectors_but_nothing_to_resume(dataset: Dataset, tmp_path: Path) -> None:
    write(dataset, tmp_path, 3)
    checkpoint.assemble(tmp_path, dataset, TrainingOptions(dim=4, epochs=2), 3, {})
    expected = (tmp_path / "vectors.npy").read_bytes()
    assert checkpoint.newest(tmp_path) == ("final", 3)
    resealed(checkpoint.part_folder(tmp_path, "final", 2, 3), round=5)
    checkpoint.assemble(tmp_path, dataset, TrainingOptions(dim=4, epochs=2), 3, {})
    assert (tmp_path / "vectors.npy").read_bytes() == expected
    with pytest.raises(ArtifactError, match="no checkpoint to resume from"):
        checkpoint.newest(tmp_path)


@pytest.mark.parametrize(("number", "tensors"), [(0, None), (1, None), (1, "[]")])
def test_parts_without_the_tensors_of_one_model_are_passed_over(
    dataset: Dataset, tmp_path: Path, number: int, tensors: str | None
) -> None:
    """Shards of a dense model that were stopped before the first worker came once left such parts."""
    write(dataset, tmp_path, 2)
    for part in range(2):
        resealed(checkpoint.part_folder(tmp_path, "final", part, 2), tensors='[["w", [3], "<f4", true]]')
    assert checkpoint.newest(tmp_path) == ("final", 2)
    resealed(checkpoint.part_folder(tmp_path, "final", number, 2), tensors=tensors)
    with pytest.raises(ArtifactError, match="no checkpoint to resume from"):
        checkpoint.newest(tmp_path)
    for part in range(2):
        resealed(checkpoint.part_folder(tmp_path, "final", part, 2), tensors=None)
    with pytest.raises(ArtifactError, match="no checkpoint to resume from"):
        checkpoint.newest(tmp_path)


# ---- which one to go on from, and which may go


def cut(dataset: Dataset, run: Path, round: int, *, only: int | None = None, asked: bool = False) -> None:
    """A checkpoint of `round` from both shards, or only from one."""
    for number in range(2) if only is None else [only]:
        state = shard(dataset, number=number, shards=2).state
        snapshot = state.cuts.snapshot(f"round-{round:08d}", state.table.values, round)
        checkpoint.write(run, dataclasses.replace(snapshot, facts={**snapshot.facts, "asked": asked}))


def rounds(run: Path, number: int) -> list[int]:
    return sorted(int(path.name[6:14]) for path in (run / "checkpoints").glob(f"round-*.shard-{number}-of-2"))


def test_the_last_few_are_kept(dataset: Dataset, tmp_path: Path) -> None:
    for round in (3, 6, 9, 12):
        cut(dataset, tmp_path, round)
    checkpoint.prune(tmp_path, 0, 2, 2)
    assert rounds(tmp_path, 0) == [9, 12]
    assert rounds(tmp_path, 1) == [3, 6, 9, 12]  # each shard removes its own
    checkpoint.prune(tmp_path, 1, 2, 0)
    assert rounds(tmp_path, 1) == [3, 6, 9, 12]
    checkpoint.prune(tmp_path, 1, 2, 2)
    assert rounds(tmp_path, 1) == [9, 12]


def test_the_last_one_is_kept_though_shard_0_alone_counts_the_entries(dataset: Dataset, tmp_path: Path) -> None:
    """Seen to fail: the other shards removed their parts of it, so that `--keep-checkpoints 1` left no checkpoint."""
    for round in (3, 6):
        cut(dataset, tmp_path, round)
        resealed(checkpoint.part_folder(tmp_path, f"round-{round:08d}", 0, 2), entries=100 * round)
    for number in range(2):
        assert checkpoint.prune(tmp_path, number, 2, 1) == ["round-00000003"]
    assert checkpoint.newest(tmp_path) == ("round-00000006", 2)


def test_one_that_others_have_not_written_yet_is_kept_though_this_shard_counts_fewer_gradients(
    dataset: Dataset, tmp_path: Path
) -> None:
    """Seen to fail: a shard removed its part of the newest as soon as it had written it (simulation, seed 69487)."""
    for label, counted in (("update-00000006", (60, 45)), ("update-00000007", (70, 50))):
        for number in range(2):
            state = shard(dataset, number=number, shards=2, schedule="minibatch", consistency="sync").state
            snapshot = state.cuts.snapshot(label, state.table.values)
            facts = {**snapshot.facts, "gradients": counted[number]}
            if (label, number) != ("update-00000007", 0):
                checkpoint.write(tmp_path, dataclasses.replace(snapshot, facts=facts))
    assert checkpoint.prune(tmp_path, 1, 2, 1) == []


def test_minibatches_are_counted_in_gradients_even_if_there_are_none() -> None:
    """Seed 30102: without gradients the examples counted, and a checkpoint before the first update was the newest."""
    facts = {"options": {"schedule": "minibatch"}, "round": -1, "entries": 16}
    assert checkpoint.reached({**facts, "gradients": 0}) < checkpoint.reached({**facts, "gradients": 1})
    assert checkpoint.reached({**facts, "options": {"schedule": "blocks"}, "gradients": 0}) == (-1, 16)


def test_what_other_shards_have_not_written_yet_does_not_count(dataset: Dataset, tmp_path: Path) -> None:
    cut(dataset, tmp_path, 3)
    for round in (6, 9, 12, 15):
        cut(dataset, tmp_path, round, only=0)
    checkpoint.prune(tmp_path, 0, 2, 1)
    assert rounds(tmp_path, 0) == [3, 6, 9, 12, 15]
    assert checkpoint.newest(tmp_path) == ("round-00000003", 2)


def test_the_last_few_that_clients_have_requested_are_kept_too(dataset: Dataset, tmp_path: Path) -> None:
    """They were never removed, so that requests could fill the disk."""
    write(dataset, tmp_path, 2)
    for round in (3, 6, 9):
        cut(dataset, tmp_path, round, asked=round == 3)
    checkpoint.prune(tmp_path, 0, 2, 1)
    assert rounds(tmp_path, 0) == [3, 9]
    for round in range(4, 8):
        cut(dataset, tmp_path, round, asked=True)
    checkpoint.prune(tmp_path, 0, 2, 2)
    assert rounds(tmp_path, 0) == [6, 7, 9]
    checkpoint.prune(tmp_path, 0, 2, 0)
    assert rounds(tmp_path, 0) == [6, 7, 9]
    assert checkpoint.missing(tmp_path, "final", 2) == []


@pytest.mark.parametrize("damage", ["rows.npy", MANIFEST])
def test_a_damaged_one_is_passed_over_for_the_one_before(
    dataset: Dataset, tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    for round in (3, 6):
        cut(dataset, tmp_path, round)
    file = checkpoint.part_folder(tmp_path, "round-00000006", 1, 2) / damage
    file.write_bytes(file.read_bytes()[:-9] + b"damaged!!")
    assert checkpoint.newest(tmp_path) == ("round-00000003", 2)
    assert "event=checkpoint_skipped label=round-00000006" in caplog.text


@pytest.mark.parametrize("file", ["rows.npy", MANIFEST])
def test_one_that_a_disk_does_not_read_is_not_passed_over(dataset: Dataset, tmp_path: Path, file: str) -> None:
    """It may be readable later. Seen to fail: the training began anew (simulation, seed 5939)."""
    for round in (3, 6):
        cut(dataset, tmp_path, round)
    text = "Input/output error; to resume from an earlier checkpoint, remove this one's folder"
    part = checkpoint.part_folder(tmp_path, "round-00000006", 1, 2)
    with unreadable(part / file), pytest.raises(ArtifactError, match=text):
        checkpoint.newest(tmp_path)
    assert checkpoint.newest(tmp_path) == ("round-00000006", 2)


def test_one_of_which_a_disk_does_not_tell_whether_it_is_there_is_not_passed_over(
    dataset: Dataset, tmp_path: Path
) -> None:
    for round in (3, 6):
        cut(dataset, tmp_path, round)
    part = checkpoint.part_folder(tmp_path, "round-00000006", 1, 2)
    text = f"{part} cannot be read: Input/output error; to resume from an earlier"
    with untold(part), pytest.raises(ArtifactError, match=text):
        checkpoint.newest(tmp_path)
    assert checkpoint.newest(tmp_path) == ("round-00000006", 2)


def test_no_training_begins_anew_because_the_folder_of_checkpoints_cannot_be_listed(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut(dataset, tmp_path, 3)

    def fail(path: Any) -> list[str]:
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    monkeypatch.setattr(os, "listdir", fail)
    with pytest.raises(ArtifactError, match=r"/checkpoints cannot be read: Input/output error"):
        checkpoint.newest(tmp_path)


@pytest.mark.parametrize("tail", ["0", "257", "99999999999999", "²", "-1", "1x", ""])
def test_a_folder_whose_name_says_something_impossible_is_no_checkpoint(
    dataset: Dataset, tmp_path: Path, tail: str
) -> None:
    write(dataset, tmp_path, 1)
    checkpoint.part_folder(tmp_path, "final", 0, 1).rename(
        tmp_path / checkpoint.CHECKPOINTS / f"final.shard-0-of-{tail}"
    )
    with pytest.raises(ArtifactError, match="no checkpoint to resume from"):
        checkpoint.newest(tmp_path)


def rows_of(change: Callable[[Any], Any]) -> Callable[[Path], None]:
    return lambda part: saved(part, change(np.load(part / checkpoint.ROWS)))


UNREACHABLE: dict[str, Callable[[Path], Any]] = {
    "rows of NaN": rows_of(lambda rows: rows * np.nan),
    "wider rows": rows_of(lambda rows: np.hstack([rows, rows])),
    "rows of doubles": rows_of(lambda rows: rows.astype(np.float64)),
    "a round after the last": lambda part: resealed(part, round=1 << 60, last_round=1 << 60),
}


def test_blocks_in_any_order_go_on_after_the_rounds_that_shard_0_knows_to_be_whole(
    dataset: Dataset, tmp_path: Path
) -> None:
    """The other shards hear of it later, and what is in the rows of later rounds does not count."""
    for number, low_water in enumerate((2, 1)):
        one = shard(dataset, number=number, shards=2, consistency="async")
        one.state.pull_push.rounds_complete(low_water)
        checkpoint.write(tmp_path, one.core.final())
    options = TrainingOptions(dim=4, epochs=2, tied=True, bfloat16=False, consistency="async")
    assert checkpoint.newest(tmp_path) == ("final", 2)
    begin = initial_state.restore_state(tmp_path, "final", 2, options, dataset, 0, dataset.layout.rows)
    assert begin.reached.round == 2
    assert 0 < begin.entries == initial_state.entries_before(dataset, options, 2) < dataset.total_entries


def test_the_entries_before_a_round_are_those_of_all_its_local_epochs(dataset: Dataset) -> None:
    partitions = dataset.layout.partitions
    before, found = (
        [initial_state.entries_before(dataset, options, round) for round in range(2 * partitions)]
        for options in (TrainingOptions(epochs=6), TrainingOptions(epochs=6, local_epochs=3))
    )
    assert found == [3 * entries for entries in before]
    assert found[partitions] == 3 * dataset.total_entries


@pytest.mark.parametrize("change", UNREACHABLE.values(), ids=UNREACHABLE.keys())
def test_a_checkpoint_that_training_cannot_have_left_is_not_resumed(
    dataset: Dataset, tmp_path: Path, change: Callable[[Path], Any]
) -> None:
    write(dataset, tmp_path, 1)
    options, rows = TrainingOptions(dim=4, epochs=2, tied=True, bfloat16=False), dataset.layout.rows
    assert len(initial_state.restore_state(tmp_path, "final", 1, options, dataset, 0, rows).rows) == rows
    change(checkpoint.part_folder(tmp_path, "final", 0, 1))
    with pytest.raises(ArtifactError, match="that training cannot have reached"):
        initial_state.restore_state(tmp_path, "final", 1, options, dataset, 0, rows)


def test_a_checkpoint_of_a_version_without_one_of_the_options_says_so(dataset: Dataset, tmp_path: Path) -> None:
    """What this version takes for it by default is not what that one did."""
    write(dataset, tmp_path, 1)
    options = TrainingOptions(dim=4, epochs=2, tied=True, bfloat16=False).as_message()
    del options["sample"]
    resealed(checkpoint.part_folder(tmp_path, "final", 0, 1), options=options)
    with pytest.raises(UsageError, match=r"cannot be resumed from final: .* missing: sample"):
        initial_state.saved_options(tmp_path)


def test_a_checkpoint_of_another_schema_is_not_resumed(
    dataset: Dataset, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(dataset, tmp_path, 1)
    part = checkpoint.part_folder(tmp_path, "final", 0, 1)
    seal(part, checkpoint.KIND, 1, json.loads((part / MANIFEST).read_text())["facts"])
    with pytest.raises(ArtifactError, match="has no checkpoint to resume from"):
        initial_state.saved_options(tmp_path)
    assert "has schema version 1, this program reads version 2" in caplog.text
