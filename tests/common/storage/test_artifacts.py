"""Artifacts: whole or absent, every change noticed, and no file name from a manifest that leads elsewhere."""

from __future__ import annotations

import errno
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from failing_disk import untold

from glovewire.common.errors import ArtifactError, OutputError
from glovewire.common.storage import artifacts
from glovewire.common.storage.artifacts import (
    MANIFEST,
    MAX_MANIFEST_BYTES,
    PIECE_BYTES,
    UNREADABLE,
    Manifest,
    atomic_stream,
    file_sha256,
    load_array,
    require_free,
    save_array,
    writing_artifact,
)


def write(folder: Path, **facts: Any) -> Path:
    with writing_artifact(folder, "thing", 3, facts) as scratch:
        (scratch / "a.bin").write_bytes(b"abc")
        (scratch / "sub").mkdir()
        (scratch / "sub" / "b.txt").write_text("hello")
    return folder


def load(folder: Path) -> Manifest:
    return Manifest.load(folder, "thing", 3)


def edit(folder: Path, **changes: Any) -> None:
    """Change what a manifest says."""
    path = folder / MANIFEST
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_what_was_written_is_read(tmp_path: Path) -> None:
    manifest = load(write(tmp_path / "made" / "x", words=3))
    assert manifest.facts == {"words": 3}
    assert set(manifest.files) == {"a.bin", "sub/b.txt"}
    assert Manifest.read(tmp_path / "made" / "x").kind == "thing"


def test_equal_content_has_an_equal_checksum(tmp_path: Path) -> None:
    one, two, other = (load(write(tmp_path / name, n=n)) for name, n in (("one", 1), ("two", 1), ("other", 2)))
    assert one.checksum == two.checksum != other.checksum


def test_facts_may_be_filled_in_until_the_end(tmp_path: Path) -> None:
    facts: dict[str, Any] = {}
    with writing_artifact(tmp_path / "x", "thing", 3, facts):
        facts["late"] = True
    assert load(tmp_path / "x").facts == {"late": True}


def test_a_file_that_another_process_removes_while_it_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "x")

    def removed(path: str) -> str:
        os.unlink(path)
        return file_sha256(path)

    monkeypatch.setattr(artifacts, "file_sha256", removed)
    with pytest.raises(ArtifactError, match=r"(a\.bin|b\.txt) is missing"):
        load(tmp_path / "x")


def test_an_error_on_the_way_leaves_nothing(tmp_path: Path) -> None:
    def fail_half_way() -> None:
        with writing_artifact(tmp_path / "x", "thing", 3, {}) as scratch:
            (scratch / "half").write_bytes(b"1")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_half_way()
    assert list(tmp_path.iterdir()) == []


def test_while_it_is_written_its_place_is_empty(tmp_path: Path) -> None:
    with writing_artifact(tmp_path / "x", "thing", 3, {}) as scratch:
        (scratch / "half").write_bytes(b"1")
        assert not (tmp_path / "x").exists()
        assert scratch.parent == tmp_path


@pytest.mark.parametrize("said", [(errno.ENOSPC, "No space left on device"), ("9 requested and 5 written",)])
def test_a_full_disk_is_said_to_be_one_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: tuple[Any, ...]
) -> None:
    """The second is what numpy says."""

    def full(_: int) -> None:
        raise OSError(*said)

    monkeypatch.setattr(artifacts.os, "fsync", full)
    with pytest.raises(OutputError, match="no space left"):
        write(tmp_path / "x")
    with pytest.raises(OutputError, match="no space left"):
        artifacts.write_text_atomically(tmp_path / "y", "text")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_replacement_keeps_the_old_content(tmp_path: Path) -> None:
    path = tmp_path / "x"
    artifacts.write_text_atomically(path, "old")

    def fail_half_way() -> None:
        with atomic_stream(path) as stream:
            stream.write(b"new")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_half_way()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    artifacts.write_text_atomically(path, "new")
    assert path.read_text() == "new"


def test_nothing_is_written_over(tmp_path: Path) -> None:
    write(tmp_path / "x")
    with pytest.raises(OutputError, match="exists already"):
        write(tmp_path / "x")
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="not a folder"):
        require_free(tmp_path / "file" / "below", what="thing")
    (tmp_path / "empty").mkdir()
    load(write(tmp_path / "empty"))


def replace(folder: Path) -> None:
    with writing_artifact(folder, "thing", 3, {"is": "new"}, replace=True) as scratch:
        (scratch / "a.bin").write_bytes(b"xyz")


def test_an_artifact_gives_way_to_a_new_one_and_nothing_is_left_of_it(tmp_path: Path) -> None:
    for _ in range(2):
        replace(write(tmp_path / "x") if not (tmp_path / "x").exists() else tmp_path / "x")
    assert load(tmp_path / "x").facts == {"is": "new"}
    assert list(tmp_path.iterdir()) == [tmp_path / "x"]


def break_at(monkeypatch: pytest.MonkeyPatch, target: Path, happens: Callable[[], None]) -> None:
    """Something happens just before what is new would get its place."""
    real = Path.rename

    def rename(path: Path, to: Path) -> Path:
        if to == target and path.suffix == artifacts.PARTIAL:
            happens()
        return real(path, to)

    monkeypatch.setattr(Path, "rename", rename)


def test_a_replacement_that_fails_at_its_last_step_keeps_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise OSError(errno.EIO, "Input/output error")

    folder = write(tmp_path / "x", words=3)
    break_at(monkeypatch, folder, refuse)
    with pytest.raises(OutputError, match="Input/output error"):
        replace(folder)
    assert load(folder).facts == {"words": 3}
    assert list(tmp_path.iterdir()) == [folder]


def test_who_is_killed_at_the_last_step_of_a_replacement_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        """Nothing is done any more."""

    def kill() -> None:
        monkeypatch.setattr(artifacts.shutil, "rmtree", lambda *_, **__: None)
        raise Killed

    folder = write(tmp_path / "x", words=3)
    break_at(monkeypatch, folder, kill)
    with pytest.raises(Killed):
        replace(folder)
    assert load(tmp_path / f".x.{os.getpid()}{artifacts.REPLACED}").facts == {"words": 3}


def test_a_name_that_no_file_can_have_is_refused(tmp_path: Path) -> None:
    long = tmp_path / ("ü" * 130)
    for path in (long, long / "below"):
        with pytest.raises(OutputError, match=r"^thing .* cannot be written: File name too long"):
            require_free(path, what="thing")
        with pytest.raises(ArtifactError, match="cannot be read: File name too long"):
            load(path)


DAMAGE: dict[str, Any] = {
    "another byte": lambda f: (f / "a.bin").write_bytes(b"abd"),
    "shorter": lambda f: (f / "a.bin").write_bytes(b"ab"),
    "longer": lambda f: (f / "a.bin").write_bytes(b"abcd"),
    "gone": lambda f: (f / "sub" / "b.txt").unlink(),
    "a folder instead": lambda f: ((f / "a.bin").unlink(), (f / "a.bin").mkdir()),
    "no manifest": lambda f: (f / MANIFEST).unlink(),
    "manifest cut": lambda f: (f / MANIFEST).write_text((f / MANIFEST).read_text()[:50]),
    "manifest no UTF-8": lambda f: (f / MANIFEST).write_bytes(b'{"kind": "\xff"}'),
    "manifest a list": lambda f: (f / MANIFEST).write_text("[]"),
    "manifest very deep": lambda f: (f / MANIFEST).write_text("[" * 200_000),
    "manifest without an end": lambda f: (f / MANIFEST).write_text(" " * (MAX_MANIFEST_BYTES + 1)),
    "another kind": lambda f: edit(f, kind="dataset"),
    "another schema": lambda f: edit(f, schema=4),
    "schema no number": lambda f: edit(f, schema="new"),
    "schema infinite": lambda f: edit(f, schema=float("inf")),
    "facts a number": lambda f: edit(f, facts=3),
    "files a list": lambda f: edit(f, files=["a.bin"]),
    "entry a number": lambda f: edit(f, files={"a.bin": 3}),
    "entry empty": lambda f: edit(f, files={"a.bin": {}}),
    "size as text": lambda f: edit(f, files={"a.bin": {"bytes": "3", "sha256": ""}}),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_every_damage_is_noticed_in_one_line(tmp_path: Path, damage: Any) -> None:
    folder = write(tmp_path / "x")
    damage(folder)
    with pytest.raises(ArtifactError) as caught:
        load(folder)
    assert "\n" not in str(caught.value)


def test_sizes_are_compared_even_without_checksums(tmp_path: Path) -> None:
    folder = write(tmp_path / "x")
    (folder / "a.bin").write_bytes(b"xyz")
    Manifest.load(folder, "thing", 3, verify=False)
    (folder / "a.bin").write_bytes(b"xy")
    with pytest.raises(ArtifactError, match="2 bytes instead of 3"):
        Manifest.load(folder, "thing", 3, verify=False)


@pytest.mark.parametrize(
    "name", ["../secret", "sub/../../secret", "..", ".", "", "/etc/hosts", "a//b", "sub/./b.txt", "a\0b", "..\\x"]
)
def test_a_file_name_may_not_lead_out_of_the_folder(tmp_path: Path, name: str) -> None:
    folder = write(tmp_path / "x")
    (tmp_path / "secret").write_bytes(b"abc")
    entry = {"bytes": 3, "sha256": artifacts.file_sha256(folder / "a.bin")}
    edit(folder, files={name: entry})
    with pytest.raises(ArtifactError, match="not the name of a file"):
        load(folder)


def test_a_file_name_may_not_be_absolute(tmp_path: Path) -> None:
    folder = write(tmp_path / "x")
    secret = tmp_path / "secret"
    secret.write_bytes(b"abc")
    edit(folder, files={str(secret): {"bytes": 3, "sha256": artifacts.file_sha256(secret)}})
    with pytest.raises(ArtifactError, match="not the name of a file"):
        load(folder)


def test_what_is_no_artifact_is_said_to_be_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path, why in (
        (tmp_path / "none", "does not exist"),
        (tmp_path / "file", "is a file"),
        (tmp_path, "has no manifest"),
    ):
        with pytest.raises(ArtifactError, match=why):
            load(path)


def test_only_the_files_named_are_answered_for(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("1")
    (tmp_path / "growing").write_text("1")
    artifacts.seal(tmp_path, "thing", 3, {}, only=("kept",))
    (tmp_path / "growing").write_text("12")
    assert set(load(tmp_path).files) == {"kept"}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(OutputError, match="no permission"):
        write(tmp_path / "x")
    tmp_path.chmod(0o700)


# ---- arrays


@pytest.mark.parametrize("shape", [(0, 256), (3, 5), (3, PIECE_BYTES // 8)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_an_array_is_written_as_numpy_writes_it(tmp_path: Path, shape: tuple[int, int], dtype: type) -> None:
    values, pauses, expected = np.arange(np.prod(shape)).reshape(shape).astype(dtype), [], io.BytesIO()
    save_array(tmp_path / "a.npy", values, lambda: pauses.append(None))
    np.save(expected, values)
    assert (tmp_path / "a.npy").read_bytes() == expected.getvalue()
    assert len(pauses) == -(-values.nbytes // PIECE_BYTES)
    np.testing.assert_array_equal(load_array(tmp_path / "a.npy"), values)


def test_an_array_in_columns_is_written_in_rows(tmp_path: Path) -> None:
    values = np.asfortranarray(np.arange(12).reshape(3, 4))
    save_array(tmp_path / "a.npy", values)
    np.testing.assert_array_equal(load_array(tmp_path / "a.npy"), values)


def test_an_array_that_numpy_wrote_in_columns_is_read(tmp_path: Path) -> None:
    values = np.asfortranarray(np.arange(12).reshape(3, 4))
    np.save(tmp_path / "a.npy", values)
    np.testing.assert_array_equal(load_array(tmp_path / "a.npy"), values)


def test_a_number_is_no_array(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.float32(1))
    with pytest.raises(UNREADABLE):
        load_array(tmp_path / "a.npy")


def test_a_disk_that_does_not_tell_what_is_there_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    """Seen to fail, with a traceback: simulation, seed 3359."""
    folder = tmp_path / "part"
    with untold(folder), pytest.raises(ArtifactError, match="cannot be read: Input/output error") as caught:
        Manifest.read(folder)
    assert artifacts.is_unreadable(caught.value)
