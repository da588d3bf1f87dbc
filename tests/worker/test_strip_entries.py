"""A worker downloads the entries of the strips that it gets, keeps them within a bound, and believes none unchecked."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from fake_server import FakeServer, sender
from handmade import random_dataset, write_dataset

from glovewire.common.client.pending import Pending
from glovewire.common.errors import ArtifactError, GlovewireError, LeaseLost, OutputError
from glovewire.common.protocol import messages as m
from glovewire.common.storage import cache
from glovewire.common.storage.artifacts import MANIFEST, seal
from glovewire.common.storage.dataset import CHECKSUMS, ENTRIES, ENTRY, Dataset, block_checksums
from glovewire.common.storage.stores import Store
from glovewire.common.storage.strip_files import LEFT_OVER_S, SUFFIX, StripFiles
from glovewire.common.transport.client import RequestClient
from glovewire.common.transport.download import downloaded
from glovewire.common.transport.files import Served
from glovewire.worker import strip_entries
from glovewire.worker.strip_entries import RemoteEntries

PIECE = 1000
LARGE = 1 << 40
STRIPS = range(3)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(m, "MAX_DATA_BYTES", PIECE)


@pytest.fixture(params=[True, False], ids=["symmetric", "both triangles"])
def data(tmp_path: Path, request: pytest.FixtureRequest) -> Dataset:
    opened = random_dataset(tmp_path / "data", size=40, symmetric=request.param)[0]
    return replace(opened, entries=np.array(opened.entries))  # a map would stay open for as long as the fixture


@dataclass
class Worker:
    """A worker without a dataset, and the servers that it asks."""

    dataset: Dataset
    client: RequestClient
    files: StripFiles
    entries: RemoteEntries
    servers: list[FakeServer]

    def loaded(self, strip: int) -> Pending[None]:
        """Load a strip, and wait for it."""
        reply = self.entries.load(strip)
        deadline = time.monotonic() + 20.0
        while not reply.done:
            assert time.monotonic() < deadline
            self.entries.poll()
            self.client.poll(10)
        reply.get()
        return reply

    @property
    def has(self) -> list[int]:
        """The strips that are on the disk."""
        assert self.entries.has is not None
        return np.flatnonzero(self.entries.has).tolist()

    def asked(self) -> list[m.GetData]:
        """Pieces of entries that were asked for."""
        heard = [each.message for one in self.servers for each in one.messages(m.GetData)]
        return [query for query in heard if isinstance(query, m.GetData) and query.file == ENTRIES]

    def on_disk(self) -> list[str]:
        return sorted(path.name for path in self.dataset.path.glob(f"*{SUFFIX}"))


@contextmanager
def worker(folder: Path, *servers: object, most: int = LARGE, url: str = "") -> Iterator[Worker]:
    """A worker that asks the servers, and before them the store at a URL."""
    with ExitStack() as stack:
        running = [stack.enter_context(server) for server in servers]  # type: ignore[call-overload]
        client = stack.enter_context(RequestClient([one.address for one in running], "anna", silence_s=20.0))
        dataset = stack.enter_context(downloaded(Served(client), folder, most, in_blocks=True))
        files = stack.enter_context(closing(StripFiles(dataset, most)))
        store = Store(url) if url else None
        entries = stack.enter_context(closing(RemoteEntries(client, files, store)))
        if store is not None:
            stack.enter_context(store)
        yield Worker(dataset, client, files, entries, running)


def same(found: Dataset, expected: Dataset, strip: int) -> bool:
    pairs = expected.layout.strip(strip)
    return all(np.array_equal(found.block(*pair)[0], expected.block(*pair)[0]) for pair in pairs)


def strip_bytes(dataset: Dataset, *strips: int) -> int:
    spans = [dataset.block_range(*block) for strip in strips for block in dataset.layout.strip(strip)]
    return sum(last - first for first, last in spans) * ENTRY.itemsize


def small_bytes(dataset: Dataset) -> int:
    """What the files other than the entries take, and the manifest."""
    return sum(path.stat().st_size for path in dataset.path.iterdir() if path.name != ENTRIES)


def test_a_strip_is_what_the_shards_have_and_each_sends_a_part(tmp_path: Path, data: Dataset) -> None:
    with worker(tmp_path / "cache", sender(data.path), sender(data.path)) as one:
        assert one.has == []
        assert not one.asked()
        for count, strip in enumerate([1, 2, 0], 1):
            one.loaded(strip)
            assert same(one.dataset, data, strip)
            assert len(one.has) == count
        assert sum(query.most for query in one.asked()) == strip_bytes(data, *STRIPS)
        assert all(server.messages(m.GetData) for server in one.servers)
        assert [one.dataset.full_entries(*pair) for pair in data.layout.blocks] == [
            data.full_entries(*pair) for pair in data.layout.blocks
        ]


def test_only_what_was_asked_for_is_brought(tmp_path: Path, data: Dataset) -> None:
    with worker(tmp_path / "cache", sender(data.path)) as one:
        one.loaded(1)
        assert one.has == [1]
        assert sum(query.most for query in one.asked()) == strip_bytes(data, 1)
        with pytest.raises(KeyError):
            one.dataset.block(2, 0)


def test_it_is_kept_for_later_rounds_and_the_next_worker(tmp_path: Path, data: Dataset) -> None:
    with worker(tmp_path / "cache", sender(data.path)) as one:
        one.loaded(1)
        one.entries.release(1)
        before = len(one.asked())
        one.loaded(1)
        assert len(one.asked()) == before
    with worker(tmp_path / "cache", sender(data.path)) as other:
        assert other.has == [1]
        other.loaded(1)
        assert not other.asked()
        assert same(other.dataset, data, 1)


def test_a_strip_that_is_leased_for_two_rounds_is_brought_once(tmp_path: Path, data: Dataset) -> None:
    with worker(tmp_path / "cache", sender(data.path), most=1) as one:
        first = one.entries.load(1)
        assert one.entries.load(1) is first
        one.loaded(1)
        assert sum(query.most for query in one.asked()) == strip_bytes(data, 1)
        one.entries.release(1)
        one.loaded(0)
        assert same(one.dataset, data, 1), "it is in use"


def test_a_strip_whose_lease_was_lost_meanwhile_is_not_begun_anew(tmp_path: Path, data: Dataset) -> None:
    """On a slow link it might never be complete otherwise."""
    sent: set[int] = set()
    most = 2

    def some(query: m.GetData, data: m.Data) -> m.Message:
        if query.file == ENTRIES and len(sent) == most:
            return m.Refused(LeaseLost.code, "silent for too long", "")
        sent.update([query.offset] if query.file == ENTRIES else [])
        return data

    with worker(tmp_path / "cache", sender(data.path, some)) as one:
        with pytest.raises(LeaseLost):
            one.loaded(2)
        first, most = set(sent), LARGE
        assert list(one.dataset.path.glob(".*.partial"))
        sent.clear()
        one.entries.close()
        with RequestClient([one.servers[0].address], "anna again", silence_s=20.0) as one.client:
            one.entries = RemoteEntries(one.client, one.files)
            one.loaded(2)
        assert same(one.dataset, data, 2)
        assert len(first) == 2
        assert sent
        assert not first & sent, "no piece comes twice"


def test_a_strip_that_is_incomplete_at_the_end_is_removed(tmp_path: Path, data: Dataset) -> None:
    with worker(tmp_path / "cache", sender(data.path)) as one:
        one.files.hold(1)
        one.files.write(1, 0, b"half")
        assert list(one.dataset.path.glob(".*.partial"))
    assert not list(one.dataset.path.glob(".*.partial"))


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:]),
        lambda path: path.write_bytes(path.read_bytes()[:-3]),
        lambda path: path.write_bytes(path.read_bytes()[:-8]),
        lambda path: path.write_bytes(b""),
    ],
    ids=["a byte", "not of whole entries", "an entry less", "empty"],
)
def test_a_damaged_file_is_brought_again(
    tmp_path: Path, data: Dataset, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], None]
) -> None:
    with worker(tmp_path / "cache", sender(data.path)) as one:
        for strip in (0, 1):
            one.loaded(strip)
        damage(one.dataset.path / f"1{SUFFIX}")
    with worker(tmp_path / "cache", sender(data.path)) as one:
        for strip in (0, 1):
            one.loaded(strip)
            assert same(one.dataset, data, strip)
        assert sum(query.most for query in one.asked()) == strip_bytes(data, 1)
    assert "event=damaged" in caplog.text


@pytest.mark.parametrize(
    "lie",
    [
        lambda query, data: m.Data(data.offset, data.size, data.body ^ np.uint8(1)),
        lambda query, data: m.Data(data.offset + 1, data.size, data.body),
        lambda query, data: m.Data(data.offset, data.size, data.body[:-1]),
        lambda query, data: m.Data(data.offset, data.size + 1, data.body),
        lambda query, data: m.Recorded(False, 0, 0),
    ],
    ids=["altered", "another place", "too little", "another size", "another message"],
)
def test_nonsense_is_refused_and_not_kept(
    tmp_path: Path, data: Dataset, lie: Callable[[m.GetData, m.Data], m.Message]
) -> None:
    def lies(query: m.GetData, data: m.Data) -> m.Message:
        return lie(query, data) if query.file == ENTRIES else data

    with worker(tmp_path / "cache", sender(data.path, lies)) as one:
        with pytest.raises(GlovewireError):
            one.loaded(1)
        assert one.has == []
        assert not one.on_disk()


def test_entries_outside_their_block_are_refused_whatever_the_checksums_say(tmp_path: Path, data: Dataset) -> None:
    """Kernels check no positions, and a hostile server can write checksums."""
    entries = np.load(data.path / ENTRIES)
    entries["i"] = 60_000
    np.save(data.path / ENTRIES, entries)
    np.save(data.path / CHECKSUMS, block_checksums(data.layout, data.tiles, entries))
    facts = json.loads((data.path / MANIFEST).read_text())["facts"]
    seal(data.path, "dataset", 2, facts)
    refused = pytest.raises(ArtifactError, match="are damaged")
    with worker(tmp_path / "cache", sender(data.path)) as one, refused:
        one.loaded(1)


def test_a_cache_too_small_for_its_blocks_works_and_says_so(
    tmp_path: Path, data: Dataset, caplog: pytest.LogCaptureFixture
) -> None:
    """Those used last make room: of the three strips of every epoch two stay."""
    most = small_bytes(data) + strip_bytes(data, *STRIPS) - 1
    with worker(tmp_path / "cache", sender(data.path), most=most) as one:
        for _ in range(3):
            for strip in STRIPS:
                one.loaded(strip)
                assert same(one.dataset, data, strip)
                one.entries.release(strip)
                assert sum(path.stat().st_size for path in one.dataset.path.iterdir()) <= most
        assert len(one.has) == 2
        brought = sum(query.most for query in one.asked())
    assert brought < 3 * strip_bytes(data, *STRIPS)
    assert caplog.text.count("event=cache_too_small") == 1


def test_the_strips_in_use_stay_however_small_the_cache_is(tmp_path: Path, data: Dataset) -> None:
    with worker(tmp_path / "cache", sender(data.path), most=1) as one:
        for strip in STRIPS:
            one.loaded(strip)
        assert all(same(one.dataset, data, strip) for strip in STRIPS)
        for strip in STRIPS:
            one.entries.release(strip)
        assert one.has == []
        assert not one.on_disk()


def test_a_full_disk_is_an_error_that_names_the_remedy(
    tmp_path: Path, data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    with worker(tmp_path / "cache", sender(data.path)) as one:
        usage = type("Usage", (), {"free": 10})
        monkeypatch.setattr(cache.shutil, "disk_usage", lambda _: usage)
        with pytest.raises(OutputError, match="--cache"):
            one.loaded(1)
        monkeypatch.undo()


def test_what_killed_processes_leave_behind_is_removed_later(tmp_path: Path, data: Dataset) -> None:
    with worker(tmp_path / "cache", sender(data.path)) as one:
        old, new = (one.dataset.path / f".0-0{SUFFIX}.{pid}.partial" for pid in (1, 2))
        for path in (old, new):
            path.write_bytes(b"half")
        os.utime(old, (time.time() - LEFT_OVER_S - 1,) * 2)
    with worker(tmp_path / "cache", sender(data.path)):
        assert not old.exists()
        assert new.exists()


def test_a_dataset_that_is_whole_in_the_cache_is_used(tmp_path: Path, data: Dataset) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(sender(data.path))
        client = stack.enter_context(RequestClient([server.address], "anna", silence_s=20.0))
        with downloaded(Served(client), tmp_path / "cache", LARGE):
            pass
        before = len(server.heard)
        dataset = stack.enter_context(downloaded(Served(client), tmp_path / "cache", LARGE, in_blocks=True))
        assert all(same(dataset, data, strip) for strip in STRIPS)
        asked = [each.message for each in server.heard[before:] if isinstance(each.message, m.GetData)]
        assert {query.file for query in asked} == {MANIFEST}


def test_strips_and_blocks_may_have_no_entries(tmp_path: Path) -> None:
    words = [f"w{n:02}" for n in range(12)]
    matrix = scipy.sparse.coo_matrix((np.ones(4, np.float32), ([0, 1, 2, 3], [1, 0, 3, 2])), shape=(12, 12))
    data = write_dataset(tmp_path / "data", matrix, np.arange(12, 0, -1), words, partitions=6)
    with worker(tmp_path / "cache", sender(data.path)) as one:
        for strip in range(6):
            one.loaded(strip)
            assert same(one.dataset, data, strip)
        assert one.has == [*range(6)]
    del data


# ---- from a store


@pytest.fixture
def url(data: Dataset) -> Iterator[str]:
    """Where a store has the dataset."""
    pytest.importorskip("fsspec")
    with Store("memory://bucket") as store:
        store.upload(data.path, "data")
        yield "memory://bucket/data"
        store.remove("data")


def test_a_store_is_read_instead_of_the_shards(
    tmp_path: Path, data: Dataset, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strip_entries, "STORE_PIECE_BYTES", 700)
    with worker(tmp_path / "cache", sender(data.path), url=url) as one:
        for strip in (2, 0):
            one.loaded(strip)
            assert same(one.dataset, data, strip)
        assert one.has == [0, 2]
        assert not one.asked()


@pytest.mark.parametrize("content", [None, b"short"], ids=["gone", "short"])
def test_the_shards_send_what_the_store_cannot(
    tmp_path: Path, data: Dataset, url: str, caplog: pytest.LogCaptureFixture, content: bytes | None
) -> None:
    with worker(tmp_path / "cache", sender(data.path), url=url) as one, Store(url) as store:
        one.loaded(2)
        if content is None:
            store.remove(ENTRIES)
        else:
            store.write(ENTRIES, content)
        one.loaded(1)
        assert same(one.dataset, data, 1)
        assert sum(query.most for query in one.asked()) == strip_bytes(data, 1)
    assert "event=store_failed" in caplog.text


def test_a_full_disk_is_no_reason_to_ask_the_shards(
    tmp_path: Path, data: Dataset, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OutputError("no space left")

    with worker(tmp_path / "cache", sender(data.path), url=url) as one:
        monkeypatch.setattr(StripFiles, "write", full)
        with pytest.raises(OutputError, match="no space"):
            one.loaded(1)
        assert not one.asked()


def test_leaving_ends_a_read_that_is_under_way(tmp_path: Path, data: Dataset, url: str) -> None:
    with worker(tmp_path / "cache", sender(data.path), url=url) as one:
        one.entries.load(2)
