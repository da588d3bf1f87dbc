"""A process brings the dataset of its run from the shards, keeps it, and believes nothing that it has not checked."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from fake_server import FakeServer, Heard, fake_server, polite, sender
from handmade import random_dataset
from processes import Flow

from glovewire.common.errors import ArtifactError, BadRequest, GlovewireError, OutputError, ProtocolError
from glovewire.common.protocol import messages as m
from glovewire.common.storage import cache
from glovewire.common.storage.artifacts import MANIFEST
from glovewire.common.storage.dataset import ENTRIES, Dataset
from glovewire.common.transport.client import RequestClient
from glovewire.common.transport.download import downloaded, trains_blocks
from glovewire.common.transport.files import Served

LARGE = 1 << 40


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(m, "MAX_DATA_BYTES", 1000)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    random_dataset(tmp_path / "data", size=40)
    return tmp_path / "data"


@contextlib.contextmanager
def brought(
    cache: Path, *servers: FakeServer, most: int = LARGE, verify: bool = True
) -> Iterator[tuple[Dataset, list[Heard]]]:
    """The dataset that the servers send to a worker, and what they were asked for its files."""
    with ExitStack() as stack:
        running = [stack.enter_context(server) for server in servers]  # type: ignore[arg-type]
        client = stack.enter_context(RequestClient([one.address for one in running], "anna", silence_s=20.0))
        dataset = stack.enter_context(downloaded(Served(client), cache, most, verify=verify))
        asked = [each for one in running for each in one.messages(m.GetData) if each.message.file != MANIFEST]
        yield dataset, asked


def test_it_is_the_same_and_every_shard_sends_a_part(tmp_path: Path, data: Path) -> None:
    with brought(tmp_path / "cache", sender(data), sender(data)) as (dataset, asked):
        assert files_of(dataset.path) == files_of(data)
        assert dataset.checksum == Dataset.open(data).checksum
        assert len({one.peer for one in asked}) == 2


def test_it_is_kept_for_the_next_worker(tmp_path: Path, data: Path) -> None:
    with brought(tmp_path / "cache", sender(data)) as (_, asked):
        assert asked
        with brought(tmp_path / "cache", sender(data)) as (_, asked):
            assert not asked
    with brought(tmp_path / "cache", sender(data)) as (_, asked):
        assert not asked


def test_a_damaged_copy_is_downloaded_again(tmp_path: Path, data: Path) -> None:
    with brought(tmp_path / "cache", sender(data)) as (dataset, _):
        entries = dataset.path / ENTRIES
    content = bytearray(entries.read_bytes())
    content[-1] ^= 1
    entries.write_bytes(content)
    with brought(tmp_path / "cache", sender(data)) as (dataset, asked):
        assert asked
        assert files_of(dataset.path) == files_of(data)


def test_files_that_are_complete_are_not_asked_for_again(tmp_path: Path, data: Path) -> None:
    def no_entries(query: m.GetData, data: m.Data) -> m.Message:
        return m.Refused(OutputError.code, "no more", "") if query.file == ENTRIES else data

    with pytest.raises(OutputError, match="no more"), brought(tmp_path / "cache", sender(data, no_entries)):
        pass
    with brought(tmp_path / "cache", sender(data)) as (dataset, asked):
        whole = {one.message.file for one in asked if isinstance(one.message, m.GetData)}
        assert ENTRIES in whole
        assert len(whole) < len(dataset.manifest.files)


def test_files_that_a_power_failure_has_damaged_are_asked_for_again(tmp_path: Path, data: Path) -> None:
    """Seen to fail: the download ended with an error, and only the next one began anew."""

    def no_entries(query: m.GetData, data: m.Data) -> m.Message:
        return m.Refused(OutputError.code, "no more", "") if query.file == ENTRIES else data

    with pytest.raises(OutputError, match="no more"), brought(tmp_path / "cache", sender(data, no_entries)):
        pass
    (complete,) = (tmp_path / "cache").glob("*/counts.npy")
    complete.write_bytes(bytes(complete.stat().st_size))
    with brought(tmp_path / "cache", sender(data)) as (dataset, _):
        assert files_of(dataset.path) == files_of(data)


@pytest.mark.parametrize("verify", [True, False])
def test_what_does_not_have_its_checksum_is_refused_and_not_kept(tmp_path: Path, data: Path, verify: bool) -> None:
    def altered(query: m.GetData, data: m.Data) -> m.Message:
        if query.file != ENTRIES or query.offset == 0:
            return data
        return m.Data(data.offset, data.size, data.body ^ np.uint8(1))

    cache = tmp_path / "cache"
    with pytest.raises(ArtifactError, match="checksum"), brought(cache, sender(data, altered), verify=verify):
        pass
    assert not any(path.is_dir() for path in cache.iterdir())


@pytest.mark.parametrize(
    "lie",
    [
        lambda query, data: m.Data(data.offset + 1, data.size, data.body),
        lambda query, data: m.Data(data.offset, data.size, data.body[:-1]),
        lambda query, data: m.Data(data.offset, 1 << 60, data.body),
        lambda query, data: m.Recorded(False, 0, 0),
    ],
    ids=["another place", "too little", "too much", "another message"],
)
def test_nonsense_is_refused(tmp_path: Path, data: Path, lie: Callable[[m.GetData, m.Data], m.Message]) -> None:
    with pytest.raises(GlovewireError), brought(tmp_path / "cache", sender(data, lie)):
        pass


def test_a_manifest_may_not_name_files_elsewhere(tmp_path: Path, data: Path) -> None:
    def elsewhere(query: m.GetData, data: m.Data) -> m.Message:
        if query.file != MANIFEST:
            return data
        text = (tmp_path / "data" / MANIFEST).read_bytes().replace(b'"entries.npy"', b'"../tries.npy"')
        piece = text[query.offset : query.offset + m.MAX_DATA_BYTES]
        return m.Data(query.offset, len(text), np.frombuffer(piece, np.uint8))

    refused = pytest.raises(ArtifactError, match="not the name of a file")
    with refused, brought(tmp_path / "cache", sender(data, elsewhere)):
        pass
    assert not (tmp_path / "tries.npy").exists()


def test_the_dataset_that_was_not_used_longest_makes_room(tmp_path: Path, data: Path) -> None:
    folders = [data]
    for number in (1, 2):
        folders.append(tmp_path / f"data{number}")
        random_dataset(folders[-1], size=40 + number)
    size = sum(len(content) for name, content in files_of(data).items() if name != MANIFEST)
    cache, most = tmp_path / "cache", 2 * size + size // 2
    for age, folder in enumerate(folders[:2]):
        with brought(cache, sender(folder), most=most) as (dataset, _):
            pass
        os.utime(dataset.path, (1000 - age, 1000 - age))
    names = [Dataset.open(folder).checksum for folder in folders]
    with brought(cache, sender(data), most=most) as (dataset, _):  # in use, though older than any
        os.utime(dataset.path, (1, 1))
        with brought(cache, sender(folders[2]), most=most):
            assert {path.name for path in cache.iterdir() if path.is_dir()} == {names[0], names[2]}


def test_what_else_is_in_the_folder_stays(tmp_path: Path, data: Path) -> None:
    (tmp_path / "home" / "letters").mkdir(parents=True)
    (tmp_path / "home" / "letters" / "to-anna").write_text("dear Anna")
    with brought(tmp_path / "home", sender(data), most=1):
        pass
    assert (tmp_path / "home" / "letters" / "to-anna").read_text() == "dear Anna"


def test_a_dataset_larger_than_the_cache_is_trained_and_removed(
    tmp_path: Path, data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = tmp_path / "cache"
    with brought(cache, sender(data), most=100) as (dataset, _):
        assert files_of(dataset.path) == files_of(data)
        assert "event=cache_too_small" in caplog.text
    assert not any(path.is_dir() for path in cache.iterdir())


def test_a_disk_without_room_is_an_error_that_names_the_remedy(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type("Usage", (), {"free": 10})
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(OutputError, match="--cache"), brought(tmp_path / "cache", sender(data)):
        pass


@pytest.mark.parametrize("file", ["vectors.npy", "../data/manifest.json", "/etc/passwd", ""])
def test_a_shard_sends_nothing_but_its_dataset(data: Path, file: str) -> None:
    with pytest.raises(BadRequest, match="no file"):
        Dataset.open(data).read(file, 0, 100)


@pytest.mark.parametrize("offset", [-1, 1 << 40])
def test_a_place_outside_a_file_is_refused(data: Path, offset: int) -> None:
    with pytest.raises(BadRequest, match="was asked for"):
        Dataset.open(data).read(ENTRIES, offset, 100)


@pytest.mark.parametrize("status", [b"", b"{}", b"[1]", b"null", b"\xff", b"[" * 100_000])
def test_a_status_that_cannot_be_read_is_refused(status: bytes) -> None:
    def script(heard: Heard) -> m.Message | None:
        return m.Status(np.frombuffer(status, np.uint8)) if isinstance(heard.message, m.GetStatus) else polite(heard)

    refused = pytest.raises(ProtocolError, match="cannot be read")
    with fake_server(script) as server, RequestClient([server.address], "anna", silence_s=20.0) as client, refused:
        trains_blocks(client)


def test_workers_without_a_dataset_train_the_same_vectors(tmp_path: Path) -> None:
    random_dataset(tmp_path / "data", size=40)
    with Flow(tmp_path) as flow:
        flow.train("calm", "--workers", 1, "--epochs", 2).ends(0)
        flow.run("keys", "keys")
        shards = [flow.server("run", "--shard", f"{shard}/2", "--keys", "keys", "--workers", 3) for shard in range(2)]
        addresses = [word for shard in shards for word in ("--server", shard.ready()[0])]
        workers = [
            flow.start(
                "worker", *addresses, "--name", name, "--keys", "keys", "--cache", f"cache-{where}", "--timeout", 120
            )
            for name, where in (("anna", "one"), ("bert", "one"), ("carl", "two"))
        ]
        for process in (*shards, *workers):
            process.ends(0)
        assert sum("event=downloaded kind=dataset" in worker.err for worker in workers) == 2
        assert flow.vectors("run") == flow.vectors("calm")
        whole = Dataset.open(tmp_path / "data")
        strips = {path.name for path in tmp_path.glob("cache-*/*/*.entries")}
        assert len(strips) == whole.layout.partitions
