"""What a shard uploads to a store, removes and replaces there, and brings from it: the store never has less."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from glovewire.common.endings import Ending
from glovewire.common.errors import ArtifactError
from glovewire.common.model.options import TrainingOptions
from glovewire.common.storage.artifacts import MANIFEST
from glovewire.common.storage.run_folder import CHECKPOINTS
from glovewire.common.storage.stores import Store
from glovewire.server import service, stored_checkpoints
from glovewire.server.checkpoints import files, generations
from glovewire.server.checkpoints.cuts import Snapshot, final_label
from glovewire.server.checkpoints.generations import Generation
from glovewire.server.config import ServerConfig
from glovewire.server.peers import Peers
from glovewire.server.stored_checkpoints import StoredCheckpoints, bring

URL = "memory://checkpoints"
SHARDS = 2
OPTIONS = {"consistency": "async", "schedule": "minibatch"}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard that ends tries once."""
    monkeypatch.setattr(stored_checkpoints, "FAILING_S", 0.0)


@pytest.fixture
def store() -> Iterator[Store]:
    with Store(URL) as store:
        for name in store.names():
            store.remove(name)
        yield store


def config(run: Path, shard: int) -> ServerConfig:
    (run / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
    return ServerConfig(
        dataset=run, out=run, shard=shard, shards=SHARDS, options=TrainingOptions(dim=4), checkpoints=URL, recover=True
    )


def write(run: Path, label: str, shard: int, gradients: int, value: float = 0.0) -> None:
    """Write a shard's part of a checkpoint: each shard counts its own gradients."""
    facts = {"shard": shard, "shards": SHARDS, "round": -1, "gradients": gradients, "label": label, "generation": 0}
    snapshot = Snapshot(label, np.full((2, 4), value, np.float32), {**facts, "options": OPTIONS})
    files.write(run, snapshot)


def remove(run: Path, label: str, shard: int) -> None:
    shutil.rmtree(files.part_folder(run, label, shard, SHARDS))


def upload(run: Path, *shards: int) -> None:
    """Let each shard upload all that it has not uploaded, as when it ends."""
    for shard in shards:
        with closing(StoredCheckpoints(config(run, shard))) as stored:
            stored.follow()


def stored_parts(store: Store) -> set[str]:
    return {name.partition("/")[0] for name in store.names() if name.endswith(f"/{MANIFEST}")}


def part(label: str, shard: int) -> str:
    return f"{label}.shard-{shard}-of-{SHARDS}"


def test_parts_and_the_generation_are_brought_to_an_empty_disk(store: Store, tmp_path: Path) -> None:
    run, other = tmp_path / "run", tmp_path / "other"
    write(run, "update-00000004", 1, 4)
    generations.create(run, Generation(3, "aaaaaaaa", SHARDS, "", 0, "1" * 32), by="0")
    upload(run, 1)
    bring(URL, other, 0, SHARDS)
    assert files.part_folder(other, "update-00000004", 1, SHARDS).exists()
    assert generations.newest(other) == replace(generations.newest(run) or Generation(), secret="")


def test_shards_bring_a_generation_to_a_shared_folder_at_the_same_time(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They wrote it under one name, and the slower one found its file gone. Simulation, seeds 5, 82, 210 of draw 2."""
    run, shared, link = config(tmp_path / "run", 1).out, tmp_path / "shared", os.link
    generations.create(run, Generation(3, "aaaaaaaa", SHARDS, "", 0, "1" * 32), by="0")
    upload(run, 1)

    def link_after_the_other(source: str, target: str) -> None:
        monkeypatch.setattr(os, "link", link)
        bring(URL, shared, 1, SHARDS)
        link(source, target)

    monkeypatch.setattr(os, "link", link_after_the_other)
    bring(URL, shared, 0, SHARDS)
    assert generations.newest(shared) == replace(generations.newest(run) or Generation(), secret="")


def test_a_shard_that_finds_its_run_over_uploads_what_is_left(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was killed while it uploaded its last part. Simulation, seeds 269, 406, 570 of draw 2."""
    for shard in range(SHARDS):
        write(tmp_path, final_label(0), shard, 8)
    begun = Generation(0, "aaaaaaaa", SHARDS, "", 0, "1" * 32)
    for generation in (begun, replace(begun, number=1, secret="", ended=Ending.COMPLETE)):
        generations.create(tmp_path, generation, by="0")
    monkeypatch.setattr(service, "keep_freed_memory", lambda: None)
    monkeypatch.setattr(service.descriptors, "raise_limit", lambda: None)
    monkeypatch.setattr(service, "Peers", mock.create_autospec(Peers))
    apart = replace(config(tmp_path, 1), dataset=None, peers=("tcp://127.0.0.1:1", "tcp://127.0.0.1:2"))
    facts = service.serve(apart, lambda _: pytest.fail("it serves, though the run is over"))
    assert facts["ending"] == Ending.OVER
    assert stored_parts(store) == {part(final_label(0), 1)}


def test_a_part_that_is_removed_here_is_removed_there_once_a_newer_checkpoint_is_there(
    store: Store, tmp_path: Path
) -> None:
    for shard in range(SHARDS):
        write(tmp_path, "update-00000004", shard, 4)
    upload(tmp_path, 0, 1)
    for shard in range(SHARDS):
        write(tmp_path, "update-00000008", shard, 8)
    remove(tmp_path, "update-00000004", 1)
    upload(tmp_path, 1)
    assert part("update-00000004", 1) in stored_parts(store)  # shard 0 has not uploaded the newer one
    upload(tmp_path, 0, 1)
    assert stored_parts(store) == {part("update-00000004", 0), *(part("update-00000008", n) for n in range(SHARDS))}


def test_shard_0_counts_how_far_a_checkpoint_has_come(store: Store, tmp_path: Path) -> None:
    """Seen to fail: shard 1 counted fewer gradients in the newest one, and removed it (simulation, seed 3919)."""
    for label, gradients in (("update-00000004", (4, 4)), ("update-00000006", (6, 3))):
        for shard in range(SHARDS):
            write(tmp_path, label, shard, gradients[shard])
    upload(tmp_path, 0, 1)
    remove(tmp_path, "update-00000006", 1)
    upload(tmp_path, 1)
    assert part("update-00000006", 1) in stored_parts(store)


def test_a_checkpoint_of_which_a_part_is_to_be_replaced_keeps_no_other_from_being_needed(
    store: Store, tmp_path: Path
) -> None:
    """The newer one was written again here; until it is there, the store's has parts of two trainings."""
    for label, gradients in (("update-00000004", 4), ("update-00000008", 8)):
        for shard in range(SHARDS):
            write(tmp_path, label, shard, gradients)
    upload(tmp_path, 0, 1)
    write(tmp_path, "update-00000008", 0, 8, value=1.0)
    remove(tmp_path, "update-00000004", 1)
    upload(tmp_path, 1)
    assert part("update-00000004", 1) in stored_parts(store)
    upload(tmp_path, 0, 1)
    assert part("update-00000004", 1) not in stored_parts(store)


def test_what_another_shard_brings_back_meanwhile_is_not_removed(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen to fail: it counted as the newest in the store, and was removed with all others (simulation, seed 90381)."""
    for label, gradients in (("update-00000004", 4), ("update-00000008", 8)):
        for shard in range(SHARDS):
            write(tmp_path, label, shard, gradients)
    upload(tmp_path, 0, 1)
    for label in ("update-00000004", "update-00000008"):
        remove(tmp_path, label, 1)
    write(tmp_path, "update-00000010", 1, 10)
    really = Store.upload

    def brought_back(self: Store, path: Path, name: str = "") -> None:
        write(tmp_path, "update-00000008", 1, 8)
        really(self, path, name)

    removed: list[str] = []
    monkeypatch.setattr(Store, "upload", brought_back)
    monkeypatch.setattr(Store, "remove", lambda _, folder: removed.append(folder))
    upload(tmp_path, 1)
    assert part("update-00000008", 1) not in removed


def test_a_part_is_not_replaced_before_the_store_has_another_checkpoint(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The upload of another one fails at first. Seen to fail: then none was whole (simulation, seed 59429)."""
    first, second = "update-00000004", "update-00000008"
    for shard in range(SHARDS):
        write(tmp_path, first, shard, 4)
    upload(tmp_path, 0, 1)
    for shard in range(SHARDS):
        write(tmp_path, second, shard, 8)
    upload(tmp_path, 0)
    write(tmp_path, first, 1, 4, value=1.0)
    really, order = Store.upload, list[str]()

    def fails_at_first(self: Store, path: Path, name: str = "") -> None:
        order.append(name)
        if len(order) == 1:
            raise ArtifactError("it was written again")
        really(self, path, name)

    monkeypatch.setattr(stored_checkpoints, "FAILING_S", 10.0)
    monkeypatch.setattr(Store, "upload", fails_at_first)
    upload(tmp_path, 1)
    assert order == [part(second, 1), part(second, 1), part(first, 1)]


def test_what_cannot_be_uploaded_for_lack_of_files_is_tried_again(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen to fail: the thread that uploads had ended."""
    failures, really = [OSError(errno.EMFILE, "Too many open files")], stored_checkpoints.parts_in

    def lacks_files_at_first(folder: Path) -> dict[str, str]:
        if failures:
            raise failures.pop()
        return really(folder)

    write(tmp_path, "update-00000004", 1, 4)
    monkeypatch.setattr(stored_checkpoints, "FAILING_S", 10.0)
    monkeypatch.setattr(stored_checkpoints, "parts_in", lacks_files_at_first)
    upload(tmp_path, 1)
    assert stored_parts(store) == {part("update-00000004", 1)}
