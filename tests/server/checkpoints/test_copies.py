"""A shard's copies of what the other shards have: brought whole, checked, and kept until their owner removes them."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from failing_disk import unreadable
from fake_server import Heard, fake_server
from open_files import none_left

from glovewire.common.endings import Ending
from glovewire.common.errors import ArtifactError, BadRequest, GlovewireError, NotReady, OutputError, ProtocolError
from glovewire.common.model.options import TrainingOptions
from glovewire.common.protocol import messages as m
from glovewire.common.runtime.descriptors import is_shortage
from glovewire.common.storage.artifacts import MANIFEST, Manifest
from glovewire.common.storage.run_folder import CHECKPOINTS
from glovewire.common.transport.client import RequestClient
from glovewire.server.checkpoints import copies, files, generations
from glovewire.server.checkpoints.copies import Copies, begin_at, parts_in
from glovewire.server.checkpoints.cuts import Snapshot
from glovewire.server.checkpoints.generations import Generation, Mark
from glovewire.server.config import ServerConfig

SECRET = "0" * 32
PEERS = ("tcp://127.0.0.1:1", "tcp://127.0.0.1:2", "tcp://127.0.0.1:3")


class Shard:
    """The folder of one of two or three shards, and its copies of the others'."""

    def __init__(self, folder: Path, number: int, shards: int = 2) -> None:
        options, peers = TrainingOptions(dim=4), PEERS[:shards]
        self.config = ServerConfig(
            dataset=folder, out=folder / f"run-{number}", shard=number, shards=shards, peers=peers, options=options
        )
        self.out, self.number = self.config.out, number
        self.copies = Copies(self.config)
        self.copies.is_whole = True
        self.change: Callable[[m.Message, m.Message], m.Message] = lambda _, reply: reply

    def write(self, round: int, value: float = 0.0) -> None:
        """Write its part of a checkpoint."""
        label, shards = f"round-{round:08d}", self.config.shards
        facts = {"shard": self.number, "shards": shards, "round": round, "entries": round, "label": label}
        files.write(self.out, Snapshot(label, np.full((300, 200), value, np.float32), facts))

    def remove(self, round: int) -> None:
        shutil.rmtree(files.part_folder(self.out, f"round-{round:08d}", self.number, self.config.shards))

    def rows(self, round: int, owner: int) -> float | None:
        """The value of the rows of a shard's part, None if it is not there."""
        folder = files.part_folder(self.out, f"round-{round:08d}", owner, self.config.shards)
        return float(np.load(folder / files.ROWS)[0, 0]) if folder.exists() else None

    def mark(self, mark: Mark) -> None:
        generations.write_mark(self.config, self.number, mark)

    def generation(self) -> Generation | None:
        return generations.newest(self.out)

    def script(self, heard: Heard) -> m.Message:
        try:
            return self.change(heard.message, self.copies.answer(heard.message))
        except GlovewireError as error:
            return m.Refused(error.code, str(error), "")

    def bring(self, other: Shard, *, own: bool = False) -> copies.Heard:
        with fake_server(other.script) as server, RequestClient([server.address], "shard", silence_s=10.0) as client:
            heard = self.copies.bring(client, other.number, own=own)
            if own:
                self.copies.note_own([heard.marks])
            return heard


@pytest.fixture
def first(tmp_path: Path) -> Shard:
    return Shard(tmp_path, 0)


@pytest.fixture
def second(tmp_path: Path) -> Shard:
    return Shard(tmp_path, 1)


def generation(number: int, run: str = "aaaaaaaa") -> Generation:
    return Generation(number, run, 2, "", 0, SECRET)


def test_parts_marks_and_generations_are_copied(first: Shard, second: Shard) -> None:
    first.write(3, 1.5)
    first.mark(Mark(0, Ending.COMPLETE))
    generations.create(first.out, generation(0), by="0")
    second.bring(first)
    assert second.rows(3, 0) == 1.5
    assert generations.mark_of(second.config, 0) == Mark(0, Ending.COMPLETE)
    assert second.generation() == first.generation()


def test_a_generation_is_not_copied_before_the_parts_that_it_begins_from(first: Shard, second: Shard) -> None:
    first.write(3)
    generations.create(first.out, generation(0), by="0")
    not_ready = m.Refused(NotReady.code, "")
    first.change = lambda request, reply: not_ready if isinstance(request, m.GetData) else reply
    with pytest.raises(NotReady):
        second.bring(first)
    assert second.generation() is None


def test_a_part_that_its_owner_has_written_again_is_copied_again(first: Shard, second: Shard) -> None:
    for value in (1.0, 2.0):
        first.write(3, value)
        second.bring(first)
        assert second.rows(3, 0) == value


def test_a_part_that_another_has_of_it_does_not_replace_the_own(first: Shard, second: Shard) -> None:
    second.write(3, 1.0)
    first.bring(second)
    second.write(3, 2.0)
    second.bring(first, own=True)
    assert second.rows(3, 1) == 2.0


def test_what_its_owner_removes_is_removed(first: Shard, second: Shard) -> None:
    for round in (3, 6):
        first.write(round)
    second.bring(first)
    first.remove(3)
    second.bring(first)
    assert (second.rows(3, 0), second.rows(6, 0)) == (None, 0.0)


def test_what_its_owner_removes_is_not_copied_again_from_a_third(tmp_path: Path) -> None:
    """Seen to fail: a shard that was restarted did not know that it had had the part."""
    first, second, third = (Shard(tmp_path, number, shards=3) for number in range(3))
    for round in (3, 6):
        first.write(round)
    for other in (second, third):
        other.bring(first)
    second = Shard(tmp_path, 1, shards=3)
    first.remove(3)
    second.bring(first)
    second.bring(third)
    assert (second.rows(3, 0), second.rows(6, 0)) == (None, 0.0)


def test_what_it_has_removed_itself_is_not_copied_again(first: Shard, second: Shard) -> None:
    second.write(3)
    first.bring(second)
    second.remove(3)
    second.bring(first)
    assert second.rows(3, 1) is None


def test_a_lost_disk_gets_back_all_that_it_had(first: Shard, second: Shard, tmp_path: Path) -> None:
    second.write(3, 1.0)
    second.mark(Mark(4))
    first.bring(second)
    shutil.rmtree(second.out)
    again = Shard(tmp_path, 1)
    again.bring(first, own=True)
    assert again.rows(3, 1) == 1.0
    assert generations.mark_of(again.config) == Mark(4)


@pytest.mark.parametrize("parts", [0, 1])
def test_nothing_is_removed_because_a_disk_was_lost(first: Shard, second: Shard, tmp_path: Path, parts: int) -> None:
    """A shard that has not yet looked for what it had has less than its part in others' copies."""
    for round in (3, 6):
        second.write(round)
    first.bring(second)
    shutil.rmtree(second.out)
    again = Shard(tmp_path, 1)
    again.copies.is_whole = parts == 0
    for round in range(parts):
        again.write(6 + round)
    first.bring(again)
    assert first.rows(3, 1) == first.rows(6, 1) == 0.0


def test_an_earlier_mark_or_generation_replaces_no_later_one(first: Shard, second: Shard) -> None:
    first.mark(Mark(1))
    generations.create(first.out, generation(1), by="0")
    generations.create(second.out, generation(2), by="1")
    generations.write_mark(second.config, 0, Mark(1, Ending.COMPLETE, Ending.COMPLETE))
    second.bring(first)
    assert generations.mark_of(second.config, 0) == Mark(1, Ending.COMPLETE, Ending.COMPLETE)
    assert second.generation() == generation(2)


def test_two_beginnings_of_a_run_become_one(first: Shard, second: Shard) -> None:
    """Shard 0 had lost its disk, and the other could not be asked."""
    generations.create(first.out, generation(0, "aaaaaaaa"), by="0")
    generations.create(second.out, generation(0, "bbbbbbbb"), by="1")
    second.bring(first)
    assert second.generation() == generation(0, "bbbbbbbb")
    first.bring(second)
    second.bring(first)
    found = first.generation()
    assert found is not None
    assert found.number == 1
    assert second.generation() == found


def lies(kind: type[m.Message], **fields: object) -> Callable[[m.Message, m.Message], m.Message]:
    def change(_: m.Message, reply: m.Message) -> m.Message:
        return dataclasses.replace(reply, **fields) if isinstance(reply, kind) else reply  # type: ignore[type-var]

    return change


def folder_of(**found: object) -> Callable[[m.Message, m.Message], m.Message]:
    text = json.dumps({"marks": {}, "generation": None, "parts": {}, **found}).encode()
    return lies(m.Folder, body=np.frombuffer(text, np.uint8))


@pytest.mark.parametrize(
    "change",
    [
        lies(m.Folder, body=np.zeros(3, np.uint8)),
        lies(m.Folder, body=np.full(100_000, ord("["), np.uint8)),
        folder_of(parts=[]),
        folder_of(marks={"x": {}}),
        folder_of(marks={"0": {"generation": "high"}}),
        folder_of(marks={"0": {"generation": 1, "ending": "never"}}),
        folder_of(generation={"number": -1}),
        folder_of(generation=7),
    ],
    ids=["no text", "brackets alone", "no parts", "no shard", "no number", "no ending", "no generation", "a number"],
)
def test_a_list_that_makes_no_sense_is_refused(
    first: Shard, second: Shard, change: Callable[[m.Message, m.Message], m.Message]
) -> None:
    first.change = change
    with pytest.raises(GlovewireError):
        second.bring(first)
    assert second.generation() is None
    assert generations.mark_of(second.config, 0) is None


@pytest.mark.parametrize(
    "name", ["../../x.shard-0-of-2", "/x.shard-0-of-2", "round-1.shard-0-of-2/..", ".shard-0-of-2"]
)
def test_a_part_with_the_name_of_another_place_is_ignored(
    first: Shard, second: Shard, tmp_path: Path, name: str
) -> None:
    before = sorted(tmp_path.rglob("*"))
    first.change = folder_of(parts={name: "0" * 64})
    second.bring(first)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_part_that_is_altered_on_the_way_is_not_kept(first: Shard, second: Shard) -> None:
    first.write(3)

    def altered(_: m.Message, reply: m.Message) -> m.Message:
        rows = isinstance(reply, m.Data) and reply.size > 100_000
        return m.Data(reply.offset, reply.size, reply.body ^ np.uint8(rows)) if isinstance(reply, m.Data) else reply

    first.change = altered
    second.bring(first)
    assert second.rows(3, 0) is None
    first.change = lambda _, reply: reply
    second.bring(first)
    assert second.rows(3, 0) == 0.0


@pytest.mark.parametrize(
    "file", ["round-00000003.shard-0-of-2/../../config.toml", "checkpoints/x", "/etc/passwd", ".generation-000000"]
)
def test_a_shard_sends_nothing_but_checkpoints(first: Shard, file: str) -> None:
    first.write(3)
    with pytest.raises((BadRequest, NotReady)):
        first.copies.answer(m.GetData(file, 0))


def test_other_requests_are_refused(first: Shard) -> None:
    with pytest.raises(ProtocolError):
        first.copies.answer(m.GetStatus())


@pytest.mark.parametrize("listed", [False, True])
def test_a_part_that_cannot_be_read_for_lack_of_files_is_not_taken_for_a_removed_one(
    first: Shard, monkeypatch: pytest.MonkeyPatch, *, listed: bool
) -> None:
    """Or the other shards and the store would remove their copies of it."""
    first.write(3)
    folder = first.out / CHECKPOINTS
    names = os.listdir(folder)
    if listed:
        monkeypatch.setattr(os, "listdir", lambda _: names)
    with pytest.raises(ArtifactError, match="cannot be read") as caught, none_left():
        parts_in(folder)
    assert is_shortage(caught.value)
    assert list(parts_in(folder)) == ["round-00000003.shard-0-of-2"]


def test_shard_0_begins_one_generation_of_a_number(first: Shard, second: Shard) -> None:
    with fake_server(first.script) as server, RequestClient([server.address], "shard", silence_s=10.0) as client:
        for run in ("aaaaaaaa", "bbbbbbbb"):
            begin_at(client, second.config, generation(0, run))
        assert second.generation() == first.generation() == generation(0, "aaaaaaaa")


def test_shard_0_begins_none_before_it_knows_what_the_others_have(first: Shard) -> None:
    first.copies.is_whole = False
    text = json.dumps(dataclasses.asdict(generation(0)))
    with pytest.raises(NotReady):
        first.copies.answer(m.Begin(text))
    assert first.generation() is None


def test_shard_0_records_the_end_for_another_one_when_it_has_all_final_checkpoints(
    first: Shard, second: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    generations.create(first.out, generation(0), by="0")
    end = dataclasses.replace(generation(1), ended="complete")
    missing = [1]
    monkeypatch.setattr(files, "missing", lambda *_: missing)
    with fake_server(first.script) as server, RequestClient([server.address], "shard", silence_s=10.0) as client:
        with pytest.raises(NotReady, match="final checkpoints"):
            begin_at(client, second.config, end)
        assert first.generation() == generation(0)
        missing.clear()
        begin_at(client, second.config, end)
        missing.append(1)
        begin_at(client, second.config, dataclasses.replace(end, ended="asked"))  # it has been decided
    assert first.generation() == second.generation() == end


def test_no_other_shard_begins_generations(second: Shard) -> None:
    with pytest.raises(BadRequest):
        second.copies.answer(m.Begin(json.dumps(dataclasses.asdict(generation(0)))))


def test_a_part_that_a_disk_does_not_read_is_not_taken_for_a_removed_one(first: Shard, second: Shard) -> None:
    """Or the others would remove their copies, and all be lost with the disk. Simulation, seed 6890."""
    first.write(3)
    first.write(6)
    second.bring(first)
    copy = (second.out / CHECKPOINTS / "round-00000003.shard-0-of-2").stat().st_ino
    with unreadable(first.out / CHECKPOINTS / "round-00000003.shard-0-of-2" / MANIFEST):
        copies._checksum.cache_clear()
        assert parts_in(first.out / CHECKPOINTS)["round-00000003.shard-0-of-2"] == ""
        assert not second.bring(first).is_copied
    assert second.bring(first).is_copied
    assert (second.out / CHECKPOINTS / "round-00000003.shard-0-of-2").stat().st_ino == copy


def test_a_part_that_could_not_be_copied_is_asked_for_again_before_what_follows_is_taken(
    first: Shard, second: Shard
) -> None:
    """The shard asks once more and no further: the part may be lost everywhere. Simulation, seed 21099."""
    first.write(3)
    first.mark(Mark(0))
    generations.create(first.out, generation(0), by="0")
    gone = m.Refused(ArtifactError.code, "")
    first.change = lambda request, reply: gone if isinstance(request, m.GetData) else reply
    assert not second.bring(first).is_copied
    assert (second.generation(), generations.mark_of(second.config, 0)) == (None, None)
    assert not second.bring(first).is_copied
    assert (second.generation(), generations.mark_of(second.config, 0)) == (generation(0), Mark(0))


def test_a_copy_that_cannot_be_read_again_is_an_error(first: Shard, second: Shard) -> None:
    """Not a part that its owner removes: what follows would be taken. Simulation, seed 5939."""
    first.write(3)
    generations.create(first.out, generation(0), by="0")
    loaded = Manifest.load

    def load(folder: Path, *args: Any) -> Manifest:
        with unreadable(folder / files.ROWS):
            return loaded(folder, *args)

    with mock.patch.object(Manifest, "load", load), pytest.raises(OutputError, match="cannot be read again"):
        second.bring(first)
    assert second.generation() is None
