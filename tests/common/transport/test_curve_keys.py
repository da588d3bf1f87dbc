"""Keys on disk: secret from birth, whole or not there, believed only when sound and out of others' reach."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from glovewire.common.errors import GlovewireError, KeyFileError, OutputError, UsageError
from glovewire.common.transport import curve_keys as keys


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    keys.make_keys(tmp_path / "keys", ["anna", "bert"])
    return tmp_path / "keys"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_both_sides_know_each_other(folder: Path) -> None:
    server, anna = keys.load_server_keys(folder), keys.load_client_keys(folder / "anna.key")
    assert anna.server == server.pair.public
    assert server.allowed.name_of(keys.z85.decode(anna.pair.public)) == "anna"
    assert server.allowed.name_of(bytes(32)) is None
    assert keys.load_server_keys(folder / "bert.key").pair == server.pair  # what `train --keys` is given does for both


def test_no_secret_is_ever_shown(folder: Path) -> None:
    for pair in (keys.load_server_keys(folder), keys.load_client_keys(folder / "anna.key")):
        assert pair.pair.secret.decode() not in repr(pair)
    secret = keys.load_client_keys(folder / "anna.key").pair.secret.decode()
    (folder / "anna.key").write_text((folder / "anna.key").read_text().replace(secret, secret[:-1]))
    with pytest.raises(KeyFileError, match="'secret' is not a key") as told:
        keys.load_client_keys(folder / "anna.key")
    assert secret[:8] not in str(told.value)


def test_a_folder_stands_for_its_usual_client(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(KeyFileError, match=r"keys of 2 clients: name one, such as --keys .*anna\.key"):
        keys.load_client_keys(folder)
    keys.add_clients(folder, ["worker"])
    assert keys.load_client_keys(folder).path.name == "worker.key"
    keys.make_keys(tmp_path / "one", ["only"])
    assert keys.load_client_keys(tmp_path / "one").path.name == "only.key"


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_secret_files_are_secret_from_birth(tmp_path: Path, umask: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen to fail with an ordinary open() in `_write`: the mode is asked for when the file is made, not after."""
    born: dict[str, int] = {}
    really = os.open

    def watched(path: Path, *rest: int) -> int:
        handle = really(path, *rest)
        born[Path(path).name] = stat.S_IMODE(os.fstat(handle).st_mode)
        return handle

    monkeypatch.setattr(os, "open", watched)
    before = os.umask(umask)
    try:
        keys.make_keys(tmp_path / "k")
        keys.add_clients(tmp_path / "k", ["late"])
    finally:
        os.umask(before)
    assert {born[name] for name in ("server.key", "worker.key", "late.key")} == {0o600}
    assert stat.S_IMODE((tmp_path / "k").stat().st_mode) == 0o700
    keys.load_server_keys(tmp_path / "k")  # no other user may change the list


@pytest.mark.parametrize("name", ["server.key", "anna.key"])
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o610])
def test_a_secret_that_others_could_read_is_refused(folder: Path, name: str, mode: int) -> None:
    (folder / name).chmod(mode)
    with pytest.raises(KeyFileError, match=rf"others may read .*{name} .*chmod 600 .*{name}"):
        keys.load_server_keys(folder) if name == "server.key" else keys.load_client_keys(folder / name)


def test_a_file_of_another_kind_is_not_to_be_given_another_mode(tmp_path: Path) -> None:
    (tmp_path / "passwd").write_text("root:x:0:0::/root:/bin/sh\n")
    (tmp_path / "passwd").chmod(0o644)
    with pytest.raises(KeyFileError, match="is not a file of keys"):
        keys.load_client_keys(tmp_path / "passwd")


@pytest.mark.parametrize("name", ["allowed.toml", "server.pub"])
def test_a_list_that_others_could_change_is_refused(folder: Path, name: str) -> None:
    (folder / name).chmod(0o646)
    with pytest.raises(KeyFileError, match=rf"others may change .*{name} .*chmod go-w .*{name}"):
        keys.load_server_keys(folder) if name == "allowed.toml" else keys.load_client_keys(folder / "anna.key")


def test_nothing_is_overwritten(folder: Path) -> None:
    before = contents(folder)
    with pytest.raises(OutputError, match=r"has keys already: .* --add"):
        keys.make_keys(folder)
    with pytest.raises(OutputError, match="has a client 'bert' already"):
        keys.add_clients(folder, ["carl", "bert"])
    (folder / "dora.key").write_text("something else")
    with pytest.raises(OutputError, match="has a client 'dora' already"):
        keys.add_clients(folder, ["dora"])
    (folder / "dora.key").unlink()
    assert contents(folder) == before


@pytest.mark.parametrize("fitting", [0, 1])
def test_what_a_full_disk_has_cut_short_is_removed_and_can_be_added_later(
    folder: Path, fitting: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new key's file, or the new list, is opened and then cannot be written."""
    real, opened = open, []

    def full(*args: Any, **options: Any) -> Any:
        opened.append(args)
        if len(opened) <= fitting:
            return real(*args, **options)
        os.close(args[0])
        return real("/dev/full", "w")

    before = contents(folder)
    with monkeypatch.context() as patch:
        patch.setattr(keys, "open", full, raising=False)
        with pytest.raises(OutputError, match="no space left"):
            keys.add_clients(folder, ["carl"])
    assert contents(folder) == before
    assert keys.add_clients(folder, ["carl"]) == [folder / "carl.key"]


def test_keys_are_written_whole_or_not_at_all(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = contents(folder)

    def full(path: Path, text: str, mode: int) -> None:
        if "allowed" in path.name:
            raise OSError(28, "No space left on device")
        path.write_text(text)

    monkeypatch.setattr(keys, "_write", full)
    with pytest.raises(OutputError, match="no space left"):
        keys.add_clients(folder, ["carl"])
    assert contents(folder) == before
    with pytest.raises(OutputError, match="no space left"):
        keys.make_keys(folder.parent / "other")
    assert [path.name for path in folder.parent.iterdir()] == ["keys"]


@pytest.mark.parametrize("name", ["", "server", "../x", "a b", "a/b", ".hidden", "x" * 65, "é"])
def test_a_name_is_a_plain_word(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="a client cannot be called"):
        keys.make_keys(tmp_path / "k", [name])
    assert not list(tmp_path.iterdir())


def test_clients_come_and_go_while_the_server_runs(folder: Path) -> None:
    allowed = keys.load_server_keys(folder).allowed
    keys.add_clients(folder, ["carl"])
    carl, anna = (
        keys.z85.decode(keys.load_client_keys(folder / f"{name}.key").pair.public) for name in ("carl", "anna")
    )
    assert allowed.name_of(carl) == "carl"
    lines = (folder / "allowed.toml").read_text().splitlines(keepends=True)
    (folder / "allowed.toml").write_text("".join(line for line in lines if not line.startswith("anna")))
    assert allowed.name_of(anna) is None
    (folder / "allowed.toml").write_text("rubbish")  # the list of before stands
    assert (allowed.name_of(carl), allowed.name_of(anna)) == ("carl", None)


def other_pair(folder: Path) -> str:
    lines = (folder / "anna.key").read_text().splitlines()
    return "\n".join([*lines[:2], (folder / "bert.key").read_text().splitlines()[2]])


BAD_FILES: dict[str, Callable[[Path], str | bytes]] = {
    "empty": lambda _: "",
    "not TOML": lambda _: "public",
    "not text": lambda _: b"\xff\xfe\x00",
    "short": lambda _: 'public = "abc"\nsecret = "abc"\n',
    "no Z85": lambda _: f'public = "{"~" * 40}"\nsecret = "{"~" * 40}"\n',
    "too large for Z85": lambda _: f'public = "{"#" * 40}"\nsecret = "{"#" * 40}"\n',
    "numbers": lambda _: "public = 1\nsecret = 2\n",
    "another secret": other_pair,
    "endless": lambda _: "#" * 3_000_000,
}


SOUND = {
    ("allowed.toml", "empty"),
    ("allowed.toml", "endless"),
    ("allowed.toml", "another secret"),
    ("server.pub", "another secret"),
}
"""A list may be empty, any two keys make one, and a public key may be any."""


@pytest.mark.parametrize("bad", BAD_FILES)
@pytest.mark.parametrize("name", ["anna.key", "server.key", "server.pub", "allowed.toml"])
def test_a_damaged_file_is_refused_by_name(folder: Path, name: str, bad: str) -> None:
    text = BAD_FILES[bad](folder)
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    wanted = contextlib.nullcontext() if (name, bad) in SOUND else pytest.raises(KeyFileError, match=name)
    with wanted:
        keys.load_server_keys(folder)
        keys.load_client_keys(folder / "anna.key")


@pytest.mark.parametrize("read", [keys.load_server_keys, keys.load_client_keys])
@pytest.mark.parametrize("path", ["nowhere", "nowhere/anna.key", "empty"])
def test_missing_keys_are_an_error_with_a_way_out(tmp_path: Path, path: str, read: Callable[[Path], object]) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(GlovewireError, match=r"make (them|keys) with `glovewire keys"):
        read(tmp_path / path)
