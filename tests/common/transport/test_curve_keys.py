"""Keys on disk: secret from birth, whole or not there, believed only when sound and out of others' reach."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from permissions import closed

from glovewire.common.errors import GlovewireError, KeyFileError, OutputError, UsageError
from glovewire.common.roles import USUAL, Client, Role
from glovewire.common.transport import curve_keys as keys


def workers(*names: str) -> list[Client]:
    return [Client(name, Role.WORKER) for name in names]


def worker_keys(path: Path) -> keys.ClientKeys:
    return keys.load_client_keys(path, Role.WORKER)


def public(folder: Path, name: str) -> str:
    return worker_keys(folder / f"{name}.key").pair.public.decode()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    keys.make_keys(tmp_path / "keys", workers("anna", "bert"))
    return tmp_path / "keys"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_both_sides_know_each_other(folder: Path) -> None:
    server, anna = keys.load_server_keys(folder), worker_keys(folder / "anna.key")
    assert anna.server == server.pair.public
    assert server.allowed.client_of(anna.pair.public.decode()) == ("anna", "worker")
    assert server.allowed.client_of("0" * 40) is None
    assert keys.load_server_keys(folder / "bert.key").pair == server.pair  # what `train --keys` is given does for both


def test_no_secret_is_ever_shown(folder: Path) -> None:
    for pair in (keys.load_server_keys(folder), worker_keys(folder / "anna.key")):
        assert pair.pair.secret.decode() not in repr(pair)
    secret = worker_keys(folder / "anna.key").pair.secret.decode()
    (folder / "anna.key").write_text((folder / "anna.key").read_text().replace(secret, secret[:-1]))
    with pytest.raises(KeyFileError, match="'secret' is not a key") as told:
        worker_keys(folder / "anna.key")
    assert secret[:8] not in str(told.value)


def test_a_folder_stands_for_its_usual_client(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(KeyFileError, match=r"keys of 2 clients: name one, such as --keys .*anna\.key"):
        worker_keys(folder)
    keys.add_clients(folder, [Client("admin", Role.ADMIN)])
    assert worker_keys(folder).path.name == "admin.key"  # may do everything
    keys.add_clients(folder, USUAL[:2])
    for role in Role:
        assert keys.load_client_keys(folder, role).path.name == f"{role}.key"
    keys.make_keys(tmp_path / "one", workers("only"))
    assert keys.load_client_keys(tmp_path / "one", Role.ADMIN).path.name == "only.key"


def test_where_the_server_s_keys_are_the_client_s_role_is_known_at_once(folder: Path) -> None:
    assert keys.load_both_keys(folder / "anna.key", Role.WORKER).path.name == "anna.key"
    with pytest.raises(KeyFileError, match=r"anna\.key is not a key for the role admin: .* `glovewire keys .* --add"):
        keys.load_both_keys(folder / "anna.key", Role.ADMIN)
    keys.add_clients(folder, USUAL[1:])
    assert keys.load_both_keys(folder / "admin.key", Role.WORKER).path.name == "admin.key"
    with pytest.raises(KeyFileError, match=r"monitor\.key is not a key for the role worker"):
        keys.load_both_keys(folder / "monitor.key", Role.WORKER)


@pytest.mark.parametrize(
    ("given", "named"),
    [("anna", "anna"), ("2", "anna.2"), ("anna.2", "anna.2"), ("anna-2", "anna.anna-2"), ("bert", "anna.bert")],
)
def test_the_name_of_a_session_begins_with_that_of_its_key(folder: Path, given: str, named: str) -> None:
    assert worker_keys(folder / "anna.key").session_name(given) == named


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
        keys.add_clients(tmp_path / "k", workers("late"))
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
        keys.load_server_keys(folder) if name == "server.key" else worker_keys(folder / name)


def test_a_file_of_another_kind_is_not_to_be_given_another_mode(tmp_path: Path) -> None:
    (tmp_path / "passwd").write_text("root:x:0:0::/root:/bin/sh\n")
    (tmp_path / "passwd").chmod(0o644)
    with pytest.raises(KeyFileError, match="is not a file of keys"):
        worker_keys(tmp_path / "passwd")


@pytest.mark.parametrize("name", ["allowed.toml", "server.pub"])
def test_a_list_that_others_could_change_is_refused(folder: Path, name: str) -> None:
    (folder / name).chmod(0o646)
    with pytest.raises(KeyFileError, match=rf"others may change .*{name} .*chmod go-w .*{name}"):
        keys.load_server_keys(folder) if name == "allowed.toml" else worker_keys(folder / "anna.key")


def test_nothing_is_overwritten(folder: Path) -> None:
    before = contents(folder)
    with pytest.raises(OutputError, match=r"has keys already: .* --add"):
        keys.make_keys(folder)
    with pytest.raises(OutputError, match="has a client 'bert' already"):
        keys.add_clients(folder, workers("carl", "bert"))
    (folder / "dora.key").write_text("something else")
    with pytest.raises(OutputError, match="has a client 'dora' already"):
        keys.add_clients(folder, workers("dora"))
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
            keys.add_clients(folder, workers("carl"))
    assert contents(folder) == before
    assert keys.add_clients(folder, workers("carl")) == [folder / "carl.key", folder / "allowed.toml"]


def test_keys_are_written_whole_or_not_at_all(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = contents(folder)

    def full(path: Path, text: str, mode: int) -> None:
        if "allowed" in path.name:
            raise OSError(28, "No space left on device")
        path.write_text(text)

    monkeypatch.setattr(keys, "_write", full)
    with pytest.raises(OutputError, match="no space left"):
        keys.add_clients(folder, workers("carl"))
    assert contents(folder) == before
    with pytest.raises(OutputError, match="no space left"):
        keys.make_keys(folder.parent / "other")
    assert [path.name for path in folder.parent.iterdir()] == ["keys"]


@pytest.mark.parametrize("name", ["", "server", "../x", "a b", "a/b", "a.b", ".hidden", "x" * 65, "é"])
def test_a_name_is_a_plain_word(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="a client cannot be called"):
        keys.make_keys(tmp_path / "k", workers(name))
    assert not list(tmp_path.iterdir())


def test_clients_come_and_go_while_the_server_runs(folder: Path) -> None:
    allowed = keys.load_server_keys(folder).allowed
    keys.add_clients(folder, workers("carl"))
    carl, anna, bert = (public(folder, name) for name in ("carl", "anna", "bert"))
    assert allowed.client_of(carl) is None
    assert allowed.admit(carl) == ("carl", "worker")  # at once, because a new client connects
    lines = (folder / "allowed.toml").read_text().splitlines(keepends=True)
    kept = "".join(line for line in lines if not line.startswith("anna"))
    kept = kept.replace('bert = {role = "worker"', 'eve = {role = "monitor"')
    (folder / "allowed.toml").write_text(kept)
    assert allowed.refresh() == {}
    assert allowed.refresh() == {anna: ("anna", "worker"), bert: ("bert", "worker")}
    assert [allowed.admit(each) for each in (anna, bert, carl)] == [None, ("eve", "monitor"), ("carl", "worker")]
    assert allowed.refresh() == {}


def test_a_list_that_is_being_written_revokes_nothing(folder: Path) -> None:
    allowed, path = keys.load_server_keys(folder).allowed, folder / "allowed.toml"
    text, anna = path.read_text(), public(folder, "anna")
    for part in ("", text[: text.index("bert")]):
        path.write_text(part)
        assert allowed.refresh() == {}
        assert allowed.admit("0" * 40) is None  # a stranger connects meanwhile
        assert allowed.admit(anna) == ("anna", "worker")
    path.write_text(text)
    assert [allowed.refresh() for _ in range(3)] == [{}, {}, {}]


@pytest.mark.parametrize("change", ["rubbish", "writable", "gone"])
def test_a_list_that_cannot_be_used_leaves_the_last_one_in_force(folder: Path, change: str) -> None:
    allowed, path, anna = keys.load_server_keys(folder).allowed, folder / "allowed.toml", public(folder, "anna")
    if change == "gone":
        path.unlink()
    else:
        path.write_text("rubbish" if change == "rubbish" else "")
        path.chmod(0o666 if change == "writable" else 0o644)
    assert [allowed.refresh() for _ in range(3)] == [{}, {}, {}]
    assert "allowed.toml" in allowed.problem
    assert allowed.client_of(anna) == ("anna", "worker")
    path.write_text("")
    path.chmod(0o644)
    assert [list(allowed.refresh()) for _ in range(2)] == [[], [anna, public(folder, "bert")]]
    assert allowed.problem == ""


def test_a_key_that_is_revoked_while_the_server_starts_is_revoked(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen to fail: the version of the file was taken after its content."""
    path, anna, really = folder / "allowed.toml", public(folder, "anna"), keys._clients_in
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(keys, "_clients_in", lambda path: (really(path), path.write_text(""))[0])
        allowed = keys.load_server_keys(folder).allowed
    assert path.read_text() == ""
    assert anna in {**allowed.refresh(), **allowed.refresh()}


@pytest.mark.parametrize("name", ["allowed.toml", "."])
def test_a_list_that_was_moved_away_and_is_back_is_no_problem(folder: Path, name: str) -> None:
    allowed, moved = keys.load_server_keys(folder).allowed, folder / name
    away = moved.rename(folder.parent / "away")
    assert [allowed.refresh() for _ in range(2)] == [{}, {}]
    assert "there is no file" in allowed.problem
    away.rename(moved)
    assert [allowed.refresh() for _ in range(3)] == [{}, {}, {}]
    assert allowed.problem == ""


def test_a_list_that_others_may_change_from_now_on_is_a_problem(folder: Path) -> None:
    allowed, path = keys.load_server_keys(folder).allowed, folder / "allowed.toml"
    for mode, problem in ((0o666, "others may change"), (0o644, "")):
        path.chmod(mode)
        assert [allowed.refresh() for _ in range(2)] == [{}, {}]
        assert allowed.problem.startswith(problem)
        assert bool(allowed.problem) is bool(problem)


@pytest.mark.parametrize("file", ["anna.key", "server.pub", "server.key", "allowed.toml"])
@pytest.mark.parametrize("mode", [0o770, 0o702, 0o1777])
def test_a_folder_that_others_may_write_to_is_refused(folder: Path, file: str, mode: int) -> None:
    folder.chmod(mode)
    with pytest.raises(KeyFileError, match=rf"others may change .*keys \(mode {mode:o}\): chmod go-w .*keys"):
        worker_keys(folder / "anna.key") if file in ("anna.key", "server.pub") else keys.load_server_keys(folder)
    folder.chmod(0o755)  # others may look
    worker_keys(folder / "anna.key")
    keys.load_server_keys(folder)


def test_the_folder_that_a_link_leads_to_counts_too(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o700)
    (folder / "allowed.toml").rename(tmp_path / "open" / "list")
    (folder / "allowed.toml").symlink_to(tmp_path / "open" / "list")
    keys.load_server_keys(folder)
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(KeyFileError, match=r"others may change .*open \(mode 777\)"):
        keys.load_server_keys(folder)


@pytest.mark.parametrize("name", ["anna.key", "server.pub", "."])
def test_what_another_user_owns_is_refused(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the superuser may give files away, so the stranger is made by a status that says so."""
    real, target = os.fstat, (folder / name).stat().st_ino

    def another(status: os.stat_result) -> os.stat_result:
        return os.stat_result((*status[:4], 4711, *status[5:])) if status.st_ino == target else status

    monkeypatch.setattr(keys.os, "fstat", lambda descriptor: another(real(descriptor)))
    stat_of = Path.stat
    monkeypatch.setattr(Path, "stat", lambda path, **how: another(stat_of(path, **how)))
    with pytest.raises(KeyFileError, match=r"belongs to another user \(uid 4711\): chown \d+ "):
        worker_keys(folder / "anna.key")


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


SOUND = {("allowed.toml", "empty"), ("allowed.toml", "endless"), ("server.pub", "another secret")}
"""A list may be empty, and a public key may be any."""


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('carl = {role = "boss", key = "KEY"}', "the role of 'carl' must be one of worker, monitor, admin"),
        ('carl = {role = ["worker"], key = "KEY"}', "the role of 'carl' must be one of"),
        ('carl = {key = "KEY"}', "'carl' must be a line such as NAME = {role = "),
        ('carl = "KEY"', "'carl' must be a line such as"),
        ('"anna.1" = {role = "worker", key = "KEY"}', "'anna.1' must be a line such as"),
        ('server = {role = "worker", key = "KEY"}', "'server' must be a line such as"),
        ('carl = {role = "worker", key = "KEY", admin = true}', "'carl' must be a line such as"),
        ('carl = {role = "worker", key = 1}', "'carl' is not a key of 40 Z85 characters"),
        ('carl = {role = "worker", key = "ANNA"}', "'anna' and 'carl' have the same key"),
    ],
)
def test_a_line_of_the_list_is_a_name_a_role_and_a_key_of_its_own(folder: Path, line: str, why: str) -> None:
    keys.make_keys(folder.parent / "other")
    line = line.replace("KEY", public(folder.parent / "other", "worker")).replace("ANNA", public(folder, "anna"))
    with (folder / "allowed.toml").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(KeyFileError, match=why):
        keys.load_server_keys(folder)


@pytest.mark.parametrize("bad", BAD_FILES)
@pytest.mark.parametrize("name", ["anna.key", "server.key", "server.pub", "allowed.toml"])
def test_a_damaged_file_is_refused_by_name(folder: Path, name: str, bad: str) -> None:
    text = BAD_FILES[bad](folder)
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    wanted = contextlib.nullcontext() if (name, bad) in SOUND else pytest.raises(KeyFileError, match=name)
    with wanted:
        keys.load_server_keys(folder)
        worker_keys(folder / "anna.key")


@pytest.mark.parametrize("read", [keys.load_server_keys, worker_keys])
@pytest.mark.parametrize("path", ["nowhere", "nowhere/anna.key", "empty"])
def test_missing_keys_are_an_error_with_a_way_out(tmp_path: Path, path: str, read: Callable[[Path], object]) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(GlovewireError, match=r"make (them|keys) with `glovewire keys"):
        read(tmp_path / path)


@pytest.mark.parametrize("read", [keys.load_server_keys, worker_keys, keys.make_keys])
@pytest.mark.parametrize("path", ["keys", "keys/anna.key"])
def test_a_folder_that_may_not_be_searched_is_one_clear_error(
    folder: Path, path: str, read: Callable[[Path], object]
) -> None:
    """Seen to fail: a PermissionError with its traceback."""
    with pytest.raises(GlovewireError, match="Permission denied"), closed(folder.parent):
        read(folder.parent / path)
