"""URLs that stand for folders and files, in stores that need no server: memory, a disk, and one that only fails."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import fsspec
import pytest
from fsspec.asyn import AsyncFileSystem, sync
from handmade import random_dataset

from glovewire.common.addresses import absolute, check_place, check_url, url_of
from glovewire.common.errors import ArtifactError, OutputError, StoreError, UsageError
from glovewire.common.storage import stores
from glovewire.common.storage.cache import locked
from glovewire.common.storage.dataset import Dataset
from glovewire.common.storage.stores import Store, download, local, staged, uploaded

SECRET = "wJalrXUtnFEMI"
URL = Path("memory://bucket/data")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    yield
    with Store("memory://bucket") as store:
        store.remove("data")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    random_dataset(tmp_path / "data", size=40)
    return tmp_path / "data"


def put(folder: Path, url: Path = URL) -> None:
    with Store(url) as store:
        store.upload(folder)


# ---- URLs


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("s3://bucket/data", "s3://bucket/data"),
        (Path("s3://bucket/data"), "s3://bucket/data"),
        (Path("file:///tmp/data"), "file:///tmp/data"),
        ("file:///tmp/data", "file:///tmp/data"),
        (Path("abfs://container@account.dfs.core.windows.net/a"), "abfs://container@account.dfs.core.windows.net/a"),
        ("data/s3", ""),
        ("/s3:/data", ""),
        ("hf:someone/texts", ""),
        ("C:/data", ""),
    ],
)
def test_a_path_keeps_the_url_it_was_made_from(given: Path | str, url: str) -> None:
    assert url_of(given) == url
    check_place(given)


def test_a_url_is_absolute() -> None:
    assert absolute(Path("s3://bucket/data")) == Path("s3://bucket/data")
    assert absolute(Path("data")) == Path.cwd() / "data"


@pytest.mark.parametrize(
    "url", [f"s3://me:{SECRET}@bucket/x", f"https://host/x?sig={SECRET}", f"az://a/b?x=1&sig={SECRET}"]
)
def test_credentials_in_a_url_are_refused_and_not_repeated(url: str) -> None:
    for place in (url, Path(url)):
        with pytest.raises(UsageError, match="environment") as caught:
            Store(place)
        assert SECRET not in str(caught.value)


def test_what_needs_a_url_takes_no_path() -> None:
    check_url("s3://bucket/checkpoints")
    with pytest.raises(UsageError, match="is not a URL"):
        check_url("/tmp/checkpoints")


def test_a_kind_of_store_that_nobody_knows_is_refused() -> None:
    with pytest.raises(UsageError, match="zz:// URLs such as zz://bucket/data are not supported"):
        Store("zz://bucket/data")


# ---- reading


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_an_artifact_is_downloaded_once(data: Path, tmp_path: Path, kind: str) -> None:
    url = URL if kind == "memory" else Path(f"file://{tmp_path}/there")
    put(data, url)
    with local(url) as first, local(url) as second:
        assert first == second
        assert Dataset.open(first).checksum == Dataset.open(data).checksum
    with local(data) as here:
        assert here == data


def test_what_is_damaged_in_the_cache_is_downloaded_again(data: Path) -> None:
    put(data)
    with local(URL) as folder:
        (folder / "counts.npy").write_bytes(b"x" * (folder / "counts.npy").stat().st_size)
    with local(URL) as folder:
        Dataset.open(folder)


def test_what_is_damaged_in_the_store_is_refused(data: Path) -> None:
    put(data)
    with Store(URL) as store:
        store.write("counts.npy", b"x" * (data / "counts.npy").stat().st_size)
    with pytest.raises(ArtifactError, match="checksum"), local(URL):
        pass


def test_a_file_is_there_while_it_is_used(tmp_path: Path) -> None:
    (tmp_path / "vectors.txt").write_text("cat 1 2")
    put(tmp_path / "vectors.txt", Path("memory://bucket/data/vectors.txt"))
    with local(Path("memory://bucket/data/vectors.txt")) as path:
        assert path.read_text() == "cat 1 2"
        assert path.name == "vectors.txt"
    assert not path.exists()


def test_what_is_not_finished_is_no_artifact(data: Path) -> None:
    put(data)
    with Store(URL) as store:
        store.remove("manifest.json")
    with pytest.raises(ArtifactError, match="not finished"), local(URL):
        pass


def test_patterns_and_folders_are_downloaded_and_kept_for_another_try(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt", "c.md", "deep/d.txt"):
        with Store(URL) as store:
            store.write(name, name.encode())
    found = download("memory://bucket/data/*.txt", tmp_path / "1")
    assert [path.name for path in found] == ["a.txt", "b.txt"]
    assert len(download(str(URL), tmp_path / "2")) == 4
    before = found[0].stat().st_ino
    assert download("memory://bucket/data/*.txt", tmp_path / "1")[0].stat().st_ino == before
    with pytest.raises(StoreError, match="no file"):
        download("memory://bucket/data/*.zst", tmp_path / "3")


# ---- writing


def test_the_manifest_is_the_last_to_come_and_the_first_to_go(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen to fail with the files in the order of their names."""
    order: list[str] = []
    kind: Any = fsspec.get_filesystem_class("memory")
    for method in ("put_file", "pipe_file", "rm_file"):
        original = getattr(kind, method)

        def noted(self: Any, path: str, *more: Any, original: Any = original, **options: Any) -> Any:
            order.append(path.rpartition("/")[2])
            return original(self, path, *more, **options)

        monkeypatch.setattr(kind, method, noted)
    put(data)
    assert order[0] == order[-1] == "manifest.json"
    assert len(order) == len(list(data.iterdir())) + 1


@pytest.mark.parametrize("follows", ["another", "none"])
def test_a_folder_that_is_replaced_meanwhile_is_not_uploaded_as_one(
    data: Path, monkeypatch: pytest.MonkeyPatch, follows: str
) -> None:
    """Seen to fail: the store had files of the old one and the manifest of the new one."""
    random_dataset(data.with_name("another"), size=50)
    replaced = data.with_name("replaced")
    kind: Any = fsspec.get_filesystem_class("memory")
    original = kind.put_file

    def replacing(self: Any, path: str, *more: Any, **options: Any) -> Any:
        uploaded = original(self, path, *more, **options)
        if data.exists() and not replaced.exists():
            data.rename(replaced)
            if follows == "another":
                data.with_name("another").rename(data)
        return uploaded

    monkeypatch.setattr(kind, "put_file", replacing)
    with pytest.raises(ArtifactError, match="meanwhile"):
        put(data)
    with Store(URL) as store, pytest.raises(ArtifactError, match=r"has no manifest\.json"):
        store.manifest()


def test_what_is_made_is_uploaded_and_only_then_removed_here(data: Path) -> None:
    with uploaded(URL, "dataset") as path:
        data.rename(path)
    assert not path.exists()
    with local(URL) as folder:
        Dataset.open(folder)
    with pytest.raises(OutputError, match="exists already"), uploaded(URL, "dataset"):
        pass
    with uploaded(URL, "run", resume=True, keep=True) as path:
        path.mkdir()
        (path / "config.toml").write_text("")
    assert staged(URL) == path
    assert path.exists()


def test_nothing_is_uploaded_after_an_error(tmp_path: Path) -> None:
    full = OutputError("no space left on the disk")
    with pytest.raises(OutputError, match="no space"), uploaded(URL, "dataset") as path, contextlib.ExitStack() as held:
        held.callback(lambda: (_ for _ in ()).throw(full))
    assert path.parent.exists()
    with Store(URL) as store:
        assert not store.names()


def test_one_place_has_one_maker(tmp_path: Path) -> None:
    folder = staged(URL).parent
    folder.mkdir(parents=True)
    with locked(folder) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(OutputError, match="another process"), uploaded(URL, "dataset"):
            pass


# ---- a store that only fails


class Failing(fsspec.AbstractFileSystem):  # type: ignore[misc]
    """Raises `error` whatever it is asked."""

    protocol = "failing"
    error: Exception = OSError()

    def find(self, *_: Any, **__: Any) -> Any:
        raise self.error


fsspec.register_implementation("failing", Failing)


class Lasting(AsyncFileSystem):
    """Leaves its connection to be closed when Python exits, on a loop that has ended then: as adlfs does."""

    protocol = "lasting"
    closed = 0

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        weakref.finalize(self, sync, self.loop, self._disconnect, self)

    @staticmethod
    async def _disconnect(files: Lasting) -> None:
        type(files).closed += 1

    async def _find(self, path: str, **options: Any) -> dict[str, Any]:
        del path, options
        return {}


fsspec.register_implementation("lasting", Lasting)


def test_a_store_that_cannot_be_used_for_lack_of_files_is_one_clear_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Seen to fail: the OSError of the loop that the store runs on."""
    monkeypatch.setattr(asyncio, "new_event_loop", Mock(side_effect=OSError(errno.EMFILE, "Too many open files")))
    with pytest.raises(StoreError, match=r"lasting://b cannot be used: .*Too many open files"):
        Store("lasting://b")


def test_nothing_is_left_to_be_closed_when_python_exits() -> None:
    """Seen with az://: every command ended with "RuntimeError: Loop is not running"."""
    with Store("lasting://bucket/data") as store:
        assert store.names() == {}
    assert Lasting.closed == 1
    left = [finalizer.peek() for finalizer in weakref.finalize._registry]  # type: ignore[attr-defined]
    assert not [found for found in left if found and isinstance(found[0], Lasting)]


class NoCredentialsError(Exception):
    """As botocore calls it."""


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (PermissionError(f"{SECRET} may not"), "access is refused"),
        (NoCredentialsError("none"), "access is refused"),
        (ValueError(f"bad {SECRET}\nand more"), r"ValueError: bad \*\*\* and more"),
        (
            OSError(f"http://me:{SECRET}x@host/ and http://host/?sig={SECRET}x"),
            r"http://\*\*\*@host/ and http://host/\?\.\.\.",
        ),
        (FileNotFoundError("The specified bucket does not exist"), "bucket does not exist"),
    ],
)
def test_errors_are_one_line_without_secrets(monkeypatch: pytest.MonkeyPatch, error: Exception, says: str) -> None:
    """Seen to show the secret without the replacement."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setattr(Failing, "error", error)
    with pytest.raises(StoreError, match=says) as caught, local(Path("failing://bucket/data")):
        pass
    assert "\n" not in str(caught.value)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is caught.value.__context__ is None


def test_a_full_disk_is_no_fault_of_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Failing, "error", OSError(errno.ENOSPC, "full"))
    with pytest.raises(OutputError, match="no space"), local(Path("failing://bucket/data")):
        pass


def test_a_failed_upload_says_where_everything_is(monkeypatch: pytest.MonkeyPatch, data: Path) -> None:
    monkeypatch.setattr(Store, "upload", lambda *_: (_ for _ in ()).throw(StoreError("gone")))
    with pytest.raises(StoreError, match="--resume") as caught, uploaded(URL, "dataset") as path:
        data.rename(path)
    assert str(path) in str(caught.value)
    Dataset.open(path)
    assert stores.staged(URL) == path
