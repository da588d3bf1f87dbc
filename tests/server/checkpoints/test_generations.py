"""Shards agree on the generation of a run through its folder alone: who joins, begins one, or is superseded."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from failing_disk import unreadable, untold
from open_files import none_left
from shards import in_memory, push, shard

from glovewire.common.endings import Ending, RunEnd
from glovewire.common.errors import ArtifactError, OutputError
from glovewire.common.model.options import TrainingOptions
from glovewire.common.protocol.messages import Applied, Welcome
from glovewire.common.runtime.descriptors import is_shortage
from glovewire.common.storage import run_folder
from glovewire.common.storage.dataset import Dataset
from glovewire.server.checkpoints import files as checkpoint
from glovewire.server.checkpoints import generations
from glovewire.server.checkpoints.generations import Generation, Mark, Superseded
from glovewire.server.checkpoints.initial_state import saved_options
from glovewire.server.checkpoints.writer import CheckpointWriter
from glovewire.server.config import ServerConfig
from glovewire.server.core.core import Core
from glovewire.server.core.state import NetworkCounts
from glovewire.server.service import prepare


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return in_memory(tmp_path / "d")


def config(tmp_path: Path, number: int = 0, shards: int = 2, **options: Any) -> ServerConfig:
    return ServerConfig(
        dataset=tmp_path / "d",
        out=tmp_path / "run",
        options=TrainingOptions(dim=4),
        shard=number,
        shards=shards,
        **options,
    )


def started(of: ServerConfig) -> Generation:
    """The generation that a shard takes part in when it starts."""
    generation = generations.next_generation(of)
    generations.claim(of)
    while not generations.enter(of, generation):
        generation = generations.next_generation(of)
    return generation


def test_a_folder_that_becomes_a_run_meanwhile_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another shard starts at the same time. Seen to fail: "exists and is not a run"."""
    one = config(tmp_path, 1)
    one.out.mkdir()
    listed = os.listdir

    def list_late(path: str | Path) -> list[str]:
        (one.out / run_folder.CHECKPOINTS).mkdir(exist_ok=True)
        return listed(path)

    monkeypatch.setattr(os, "listdir", list_late)
    generations.claim(one)
    assert generations.mark_of(one) == Mark()


def test_shards_that_start_together_share_a_generation(tmp_path: Path) -> None:
    of = [config(tmp_path, number) for number in range(2)]
    both = [generations.next_generation(each) for each in of]
    for each in of:
        generations.claim(each)
    assert [generations.enter(each, generation) for each, generation in zip(of, both, strict=True)] == [True, False]
    assert generations.next_generation(of[1]) == both[0] != both[1]
    assert generations.enter(of[1], both[0])
    assert both[0].number == 0
    assert both[0].label == ""


def test_a_shard_that_died_takes_the_others_with_it(tmp_path: Path) -> None:
    first, second = (config(tmp_path, number, recover=True) for number in range(2))
    generation = started(first)
    assert started(second) == generation
    assert not generations.has_ended(first, generation)
    again = started(second)
    assert (again.number, again.run != generation.run) == (1, True)
    with pytest.raises(Superseded, match="generation 1"):
        generations.has_ended(first, generation)
    assert generations.next_generation(first) == again  # joins, and does not begin a third
    assert generations.enter(first, again)


def test_shards_that_all_died_begin_one_generation(tmp_path: Path) -> None:
    of = [config(tmp_path, number, recover=True) for number in range(2)]
    assert started(of[0]) == started(of[1])
    assert started(of[0]) == started(of[1]) == generations.newest(tmp_path / "run")
    assert started(config(tmp_path, 1, 3, recover=True)).number == 2  # another number of shards is another generation


def test_a_generation_begins_from_what_all_shards_had(tmp_path: Path, dataset: Dataset) -> None:
    of = config(tmp_path, 1, recover=True)
    started(of)
    both = [shard(dataset, number=number, shards=2) for number in range(2)]
    for one in both:
        checkpoint.write(of.out, dataclasses.replace(one.core.final(), label="round-00000000"))
    checkpoint.write(of.out, both[1].state.cuts.snapshot("later", both[1].state.table.values, 3))
    generation = started(of)
    assert (generation.label, generation.parts) == ("round-00000000", 2)
    options = dataclasses.replace(of, options=saved_options(of.out))
    assert prepare(options, dataset, generation, 0.0).identity.run == generation.run
    with pytest.raises(ArtifactError, match="other options"):
        prepare(of, dataset, generation, 0.0)


def kept(dataset: Dataset, run: Path, number: int, round: int) -> None:
    """One shard's writer comes to the end of a checkpoint, and keeps that one alone."""
    state = shard(dataset, number=number, shards=2).state
    writer = CheckpointWriter(run, 1, lambda: None)
    writer.begin(state.cuts.snapshot(f"round-{round:08d}", state.table.values, round))
    assert [each.error for each in writer.finish()] == [None]
    writer.close()


def test_what_a_generation_begins_from_stays_until_all_shards_have_begun_it(tmp_path: Path, dataset: Dataset) -> None:
    """One of them is slow to write, and may then remove the older one that the others have gone back to."""
    first, second = (config(tmp_path, number, recover=True) for number in range(2))
    started(first)
    started(second)
    for number, round in ((0, 1), (1, 1), (0, 2)):
        kept(dataset, first.out, number, round)
    assert started(first).label == "round-00000001"
    kept(dataset, first.out, 1, 2)
    options = saved_options(first.out)
    generation = started(second)
    assert (generation.number, generation.label) == (1, "round-00000001")
    assert prepare(dataclasses.replace(second, options=options), dataset, generation, 0.0).consistency.rounds[0] == 1
    kept(dataset, first.out, 1, 3)
    kept(dataset, first.out, 0, 3)
    assert started(first).label == "round-00000003"
    kept(dataset, first.out, 0, 3)
    assert checkpoint.missing(first.out, "round-00000001", 2) == [0]  # it goes with the next generation


@pytest.mark.parametrize("damaged", [False, True])
def test_a_generation_whose_beginning_is_gone_is_followed_by_another(
    tmp_path: Path, dataset: Dataset, damaged: bool
) -> None:
    first, second = (config(tmp_path, number, recover=True) for number in range(2))
    started(first)
    started(second)
    for number, round in ((0, 1), (1, 1)):
        kept(dataset, first.out, number, round)
    assert started(first).number == 1
    beginning = checkpoint.part_folder(first.out, "round-00000001", 1, 2)
    if damaged:
        (beginning / checkpoint.ROWS).unlink()
    else:
        shutil.rmtree(beginning)
    assert generations.next_generation(config(tmp_path, 1)).number == 1  # without --recover it must not begin anew
    for number in range(2):
        state = shard(dataset, number=number, shards=2).state
        checkpoint.write(first.out, state.cuts.snapshot("round-00000002", state.table.values, 2))
    generation = started(second)
    assert (generation.number, generation.label) == (2, "round-00000002")
    assert started(first) == generation


def test_no_generation_begins_anew_while_a_disk_does_not_read_a_checkpoint(tmp_path: Path, dataset: Dataset) -> None:
    first, second = (config(tmp_path, number, recover=True) for number in range(2))
    for number, one in enumerate((first, second)):
        started(one)
        kept(dataset, one.out, number, 1)
    part = checkpoint.part_folder(first.out, "round-00000001", 1, 2)
    with unreadable(part / checkpoint.ROWS), pytest.raises(ArtifactError, match="Input/output error"):
        generations.next_generation(first)
    assert generations.next_generation(first).label == "round-00000001"


@pytest.mark.parametrize("name", ["checkpoints/.generation-000000", "config.toml"])
def test_a_disk_that_does_not_tell_whether_a_file_is_there_is_one_clear_error(tmp_path: Path, name: str) -> None:
    """Seen to fail: with a traceback."""
    one = config(tmp_path)
    path = one.out / name
    with untold(path), pytest.raises(ArtifactError, match=f"{path} cannot be read: Input/output error"):
        started(one)
    assert started(config(tmp_path, recover=True)).number == 0


def test_no_shard_enters_a_generation_whose_beginning_was_written_anew_meanwhile(
    tmp_path: Path, dataset: Dataset
) -> None:
    """By a shard that had not noticed yet that another begins it. Seen to fail: simulation, seed 74150."""
    first, second = (config(tmp_path, number, recover=True) for number in range(2))
    minibatch = {"schedule": "minibatch", "consistency": "async"}

    def write(number: int, generation: int) -> None:
        state = shard(dataset, number=number, shards=2, **minibatch).state
        snapshot = state.cuts.snapshot("update-00000012", state.table.values)
        facts = {**snapshot.facts, "generation": generation}
        checkpoint.write(first.out, dataclasses.replace(snapshot, facts=facts))

    started(first)
    started(second)
    for number in range(2):
        write(number, 0)
    generation = generations.next_generation(second)
    assert (generation.number, generation.label) == (1, "update-00000012")
    write(0, 1)
    assert not generations.enter(second, generation)
    following = started(second)
    assert (following.number, following.label) == (2, "")
    assert started(first) == following


def test_what_was_trained_to_the_end_only_has_to_be_kept(tmp_path: Path, dataset: Dataset) -> None:
    of, done = config(tmp_path, 1, 2), dataset.layout.partitions * 2
    for number in range(2):
        state = shard(dataset, number=number, shards=2).state
        checkpoint.write(of.out, state.cuts.snapshot("final", state.table.values, done))
    of = dataclasses.replace(of, options=saved_options(of.out), recover=True)
    core = Core(prepare(of, dataset, generations.next_generation(of), 0.0))
    assert core.tick(0.0, NetworkCounts()).finished == RunEnd(Ending.COMPLETE)


def test_a_worker_numbered_in_the_generation_before_is_unknown_in_this_one(dataset: Dataset) -> None:
    """Its hello may reach a shard before it knows; when it begins afresh, the other of its number must still count."""
    sync = {"schedule": "minibatch", "consistency": "sync", "shards": 2}
    before = shard(dataset, **sync).hello("w0")
    assert isinstance(before, Welcome)
    first, second = (shard(dataset, number=number, generation=1, **sync) for number in range(2))
    numbers = {}
    for name in ("w1", "w0"):  # in another order than before
        welcome = first.hello(name)
        assert isinstance(welcome, Welcome)
        numbers[name] = welcome.worker
    second.hello("w1", worker=numbers["w1"])
    second.hello("w0", worker=before.worker, incarnation=7)
    second.hello("w0", worker=numbers["w0"], incarnation=8)
    gradient = push("gradient", np.zeros((0, second.state.table.parameters)), rows=[], version=0, rate=0.1)
    assert isinstance(second.ask(b"w0", gradient), Applied)
    assert second.state.consistency.gradients == 0  # it waits for that of w1


def test_the_record_of_a_run_that_begins_anew_does_too(tmp_path: Path) -> None:
    of = [config(tmp_path, number, recover=True) for number in range(2)]
    started(of[0])
    (tmp_path / "run" / "metrics.jsonl").write_text("{}\n")
    started(of[0])
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_a_record_that_cannot_be_removed_is_one_clear_error(tmp_path: Path) -> None:
    of = config(tmp_path, recover=True)
    started(of)
    (tmp_path / "run" / "metrics.jsonl").mkdir()
    with pytest.raises(OutputError, match="cannot be written"):
        started(of)


def test_who_has_left_and_who_is_done(tmp_path: Path) -> None:
    first, second = (config(tmp_path, number, recover=True) for number in range(2))
    generation = started(first)
    assert generations.not_left(first, generation) == [1]
    started(second)
    assert generations.not_left(first, generation) == [1]
    generations.leave(second, generation, RunEnd(Ending.COMPLETE))
    assert generations.not_left(first, generation) == []
    assert not generations.has_ended(first, generation)  # that is not for this shard to say
    assert not generations.is_stopped(first, generation)
    generations.leave(first, generation, RunEnd(Ending.STOPPED))
    assert generations.is_stopped(second, generation)
    assert generations.end_of_run(second) is None


@pytest.mark.parametrize("is_over", [True, False])
def test_what_follows_a_generation_is_decided_once(tmp_path: Path, is_over: bool) -> None:
    """Seed 768: a shard begins a generation just when the run ends. One had left, and another believed it and left."""
    first, second = of = [config(tmp_path, number, recover=True) for number in range(2)]
    generation = started(first)
    started(second)
    if is_over:
        generations.record_end(first, generation, Ending.ASKED)
        end = generations.next_generation(second)
        assert not generations.enter(second, dataclasses.replace(end, number=1))
        assert [generations.has_ended(each, generation) for each in of] == [True, True]
        assert [generations.end_of_run(each) for each in of] == [generations.newest(first.out)] * 2
    else:
        assert started(second).number == 1
        generations.record_end(first, generation, Ending.ASKED)
        generations.leave(first, generation, RunEnd(Ending.ASKED))
        with pytest.raises(Superseded, match="generation 1"):
            generations.has_ended(first, generation)
        assert [generations.end_of_run(each) for each in of] == [None, None]
        assert generations.next_generation(first).number == 1


@pytest.mark.parametrize("who", [0, 1])
def test_that_a_run_was_asked_to_end_is_remembered(tmp_path: Path, dataset: Dataset, who: int) -> None:
    """Seen to fail: the next generation trained on. `--resume`, which a person gives, trains on."""
    of = [config(tmp_path, number, recover=True) for number in range(2)]
    generation = started(of[0])
    assert started(of[1]) == generation
    generations.announce_ending(of[who], generation, RunEnd(Ending.ASKED))
    assert not generations.successor(of[0], generation).asked, "nothing is trained yet"
    for number in range(2):
        state = shard(dataset, number=number, shards=2).state
        checkpoint.write(of[0].out, state.cuts.snapshot("round-00000001", state.table.values, 1))
    for each in of:
        follows = generations.successor(each, generation)
        assert follows.asked
        assert generations.successor(each, follows).asked, "it is remembered until the run has ended"
    resumed = dataclasses.replace(of[0], recover=False, resume=True)
    assert not generations.successor(resumed, generation).asked


@pytest.mark.parametrize(("steps", "asked"), [(0, "complete"), (10, "")])
def test_a_dense_model_without_an_end_is_complete_when_a_worker_says_so(
    tmp_path: Path, dataset: Dataset, steps: int, asked: str
) -> None:
    """Of one with a number of steps, those after the checkpoint are trained again."""
    of = config(tmp_path, 0, 1, recover=True)
    generation = started(of)
    generations.announce_ending(of, generation, RunEnd(Ending.COMPLETE))
    state = shard(dataset).state
    checkpoint.write(of.out, state.cuts.snapshot("round-00000001", state.table.values, 1))
    dense = dataclasses.replace(of, dataset=None, options=TrainingOptions.of_tensors(steps=steps))
    assert generations.successor(dense, generation).asked == asked
    assert not generations.successor(of, generation).asked


def test_a_run_that_was_asked_to_end_can_be_resumed(tmp_path: Path) -> None:
    first = config(tmp_path, recover=True)
    generation = started(first)
    resumed = dataclasses.replace(first, resume=True, recover=False)
    for ending, may_resume in ((Ending.ASKED, True), (Ending.COMPLETE, False)):
        generations.record_end(first, generation, ending)
        assert (generations.end_of_run(resumed) is None) is may_resume
        generation = generations.successor(first, generations.newest(first.out))
        assert generation.number in (2, 4)
        assert generations.enter(first, generation)


def test_a_parent_that_starts_all_shards_again_goes_on_until_the_results_are_written(tmp_path: Path) -> None:
    first, second = (config(tmp_path, number, recover=True, join=True) for number in range(2))
    generation = generations.successor(first, None)
    generations.claim(first)
    generations.enter(first, generation)
    generations.record_end(first, generation, Ending.COMPLETE)
    assert generations.end_of_run(second) is None
    generations.leave(first, generation, RunEnd(Ending.COMPLETE))
    assert generations.end_of_run(second) is None
    (tmp_path / "run" / "manifest.json").write_text("{}")
    assert generations.end_of_run(second) == generations.newest(first.out)


def test_of_a_dense_model_without_values_there_is_nothing_to_wait_for(tmp_path: Path) -> None:
    """A shard says that it has no final checkpoint, and stays: one that leaves then may miss the end (seed 850)."""
    model = TrainingOptions.of_tensors()
    first, second = (
        dataclasses.replace(config(tmp_path, number, recover=True), dataset=None, options=model) for number in range(2)
    )
    generation = started(first)
    started(second)
    for each, left in ((first, [1]), (second, [])):
        assert generations.outcome(first, generation) == ""
        generations.announce_ending(each, generation, RunEnd(Ending.ASKED), is_empty=True)
        assert generations.unfinished(first, generation) == left
    assert generations.not_left(first, generation) == [1]
    assert generations.outcome(first, generation) == Ending.ASKED
    assert (end := generations.end_of_run(first)) == generations.newest(first.out)
    assert (end.number, end.ended) == (1, Ending.ASKED)
    generations.leave(first, generation, RunEnd(Ending.ASKED))
    mark = generations.mark_of(first)
    assert mark is not None
    assert mark == Mark(0, Ending.ASKED, Ending.ASKED, is_empty=True, entry=mark.entry)
    generations.leave(first, started(first), RunEnd(Ending.STOPPED))
    generations.leave(second, started(second), RunEnd(Ending.STOPPED))
    assert generations.end_of_run(first) is None


def test_a_shard_that_is_there_is_refused_unless_it_recovers(tmp_path: Path) -> None:
    started(config(tmp_path))
    with pytest.raises(OutputError, match="has a shard 0/2 already"):
        started(config(tmp_path))
    with pytest.raises(ArtifactError, match="no checkpoint"):
        started(config(tmp_path, resume=True))
    assert started(config(tmp_path, recover=True)).number == 1


@pytest.mark.parametrize("text", ['{"number"', '{"evil": 1}', "[]"])
def test_a_damaged_generation_is_refused(tmp_path: Path, text: str) -> None:
    of = config(tmp_path, recover=True)
    started(of)
    next((tmp_path / "run" / "checkpoints").glob(".generation-*")).write_text(text)
    with pytest.raises(ArtifactError, match="generation-000000"):
        generations.next_generation(of)


IMPOSSIBLE = {
    "number": (-1, 1, 1 << 70, 0.0, True, "0"),
    "run": ("", "a\nb", 3),
    "shards": (0, -2, 257),
    "label": ("../other", "round-", "/etc"),
    "secret": ("12", "g" * 32),
    "ended": ("bored", 1),
    "asked": ("stopped", True),
}


@pytest.mark.parametrize(("field", "value"), [(name, value) for name, values in IMPOSSIBLE.items() for value in values])
def test_a_generation_that_no_shard_begins_is_refused(tmp_path: Path, field: str, value: Any) -> None:
    """A file of number -1 made `--resume` hang: the next one was never the newest."""
    of = config(tmp_path, recover=True)
    generation = started(of)
    path = tmp_path / "run" / "checkpoints" / ".generation-000000"
    path.write_text(json.dumps({**dataclasses.asdict(generation), "parts": 1, field: value}))
    with pytest.raises(ArtifactError, match=f"{path} is not a file that a shard writes: remove it"):
        generations.next_generation(of)


@pytest.mark.parametrize("name", ["999999999999999999999999", "x", "1", "0000001"])
def test_a_generation_under_another_name_is_refused(tmp_path: Path, name: str) -> None:
    of = config(tmp_path, recover=True)
    generation = started(of)
    path = tmp_path / "run" / "checkpoints" / f".generation-{name}"
    path.with_name(".generation-000000").unlink()
    path.write_text(json.dumps({**dataclasses.asdict(generation), "number": int(name) if name.isdecimal() else 0}))
    with pytest.raises(ArtifactError, match=f"{path.name} is not a file that a shard writes"):
        generations.next_generation(of)


@pytest.mark.parametrize("wrong", [{"generation": -7}, {"generation": 1 << 70}, {"ending": "bored"}, {"left": "x"}])
def test_a_mark_that_no_shard_makes_is_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    of = config(tmp_path, recover=True)
    started(of)
    (tmp_path / "run" / "checkpoints" / ".shard-0-of-2").write_text(json.dumps(wrong))
    with pytest.raises(ArtifactError, match="shard-0-of-2 is not a file that a shard writes"):
        generations.next_generation(of)


def test_the_shards_of_a_generation_share_a_secret_that_others_cannot_read(tmp_path: Path) -> None:
    first, second = (config(tmp_path, number, recover=True) for number in range(2))
    generation = started(first)
    assert started(second).secret == generation.secret
    assert len(generation.secret) == 32
    assert generation.secret not in repr(generation)
    path = tmp_path / "run" / "checkpoints" / ".generation-000000"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert started(first).secret != generation.secret


def test_a_generation_of_an_earlier_version_has_no_secret_and_is_followed_by_another(tmp_path: Path) -> None:
    of = config(tmp_path, recover=True)
    generation = started(of)
    fields = dataclasses.asdict(generation)
    del fields["secret"]
    (tmp_path / "run" / "checkpoints" / ".generation-000000").write_text(json.dumps(fields))
    assert started(config(tmp_path, 1, recover=True)).number == 1


def test_there_is_an_end_to_generations(tmp_path: Path) -> None:
    of = config(tmp_path, recover=True)
    generation = started(of)
    (tmp_path / "run" / "checkpoints" / ".generation-999999").write_text(
        json.dumps({**dataclasses.asdict(generation), "number": 999_999})
    )
    (tmp_path / "run" / "checkpoints" / ".shard-0-of-2").write_text(json.dumps({"generation": 999_999}))
    with pytest.raises(ArtifactError, match="has had 1000000 generations"):
        generations.next_generation(of)


def test_a_shard_of_an_earlier_version_is_not_recovered(tmp_path: Path) -> None:
    of = config(tmp_path, recover=True)
    checkpoints = tmp_path / "run" / "checkpoints"
    checkpoints.mkdir(parents=True)
    (checkpoints / ".shard-0-of-2").write_text('{"life": 0, "ending": "", "left": ""}')
    with pytest.raises(ArtifactError, match="is not a file that a shard writes"):
        generations.next_generation(of)


def test_a_shard_that_ends_the_run_tells_the_others(tmp_path: Path) -> None:
    first, second = (config(tmp_path, number, recover=True) for number in range(2))
    generation = started(first)
    started(second)
    assert generations.announced_ending(first, generation) is None
    generations.announce_ending(second, generation, RunEnd(Ending.FAILED, "the loss became nan"))
    assert generations.announced_ending(first, generation) == RunEnd(Ending.FAILED, "the loss became nan")
    assert generations.announced_ending(second, generation) is None
    assert generations.not_left(first, generation) == [1]  # it has only begun to leave
    again = started(first)
    assert generations.announced_ending(first, again) is None  # that was in another generation


def test_a_folder_that_cannot_be_listed_for_lack_of_files_is_looked_at_again(tmp_path: Path) -> None:
    """Seen to fail: the daemon waits for a shortage that it is told of, and an OSError ended it."""
    of = config(tmp_path)
    generation = started(of)
    with pytest.raises(ArtifactError, match="cannot be read") as caught, none_left():
        generations.has_ended(of, generation)
    assert is_shortage(caught.value)
