"""CURVE keys on disk and the list of those who may connect. The only place that makes or reads a secret.

A folder of keys holds small TOML files:

    server.key      the server's pair of keys; secret
    server.pub      the server's public key, which clients must know beforehand
    NAME.key        a client's pair of keys; secret
    allowed.toml    the public key of each client that may connect, by its name

Secret files have mode 0600 from birth and are not read when others could read them too. Keys are Z85, as ZeroMQ
writes them. Nothing here ever shows a secret.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import struct
import tomllib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import zmq
from zmq.utils import z85

from ..errors import GlovewireError, KeyFileError, OutputError, UsageError
from ..storage.artifacts import atomic, output_errors, require_free

SERVER, PUBLIC, ALLOWED = "server.key", "server.pub", "allowed.toml"
DEFAULT_NAME = "worker"
MAX_FILE_BYTES = 1 << 20
_SECRET_MODE, _PUBLIC_MODE = 0o600, 0o644
_READABLE, _WRITABLE = stat.S_IRWXG | stat.S_IRWXO, stat.S_IWGRP | stat.S_IWOTH
_HEAD = "# A secret key of Glovewire: whoever reads this file can pretend to be its owner.\n"


@dataclass(frozen=True)
class Pair:
    """A public key and its secret, each 40 characters of Z85."""

    public: bytes
    secret: bytes = field(repr=False)


@dataclass(frozen=True)
class ServerKeys:
    """What a server needs: its own keys, and the list of clients."""

    pair: Pair
    allowed: AllowList


@dataclass(frozen=True)
class ClientKeys:
    """What a client needs: its own keys, and the public key that the server must prove to have; `path` of its file."""

    pair: Pair
    server: bytes
    path: Path


class AllowList:
    """The public keys that may connect. The file is read again when it has changed, so that clients can come and go."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._names: dict[bytes, str] = {}
        self._version: tuple[int, ...] | None = None
        self._read()

    def name_of(self, key: bytes) -> str | None:
        """The name of the client with this public key (32 bytes), None for a stranger.

        A file that has been damaged meanwhile changes nothing: the list of before stands.
        """
        with contextlib.suppress(GlovewireError):
            self._read()
        return self._names.get(key)

    def _read(self) -> None:
        version = _version(self._path)
        if version is None or version != self._version:
            names = {z85.decode(key): name for name, key in _keys_in(self._path, _WRITABLE).items()}
            self._names, self._version = names, version


def make(folder: Path, names: Sequence[str] = (DEFAULT_NAME,)) -> list[Path]:
    """Make a folder with keys for a server and for the clients `names`; the files, none of them if anything fails.

    Raises OutputError when there is something already, UsageError for names that cannot be.
    """
    _check_names(names)
    if (folder / SERVER).exists():
        raise OutputError(f"{folder} has keys already: name another folder, or say --add to add clients")
    require_free(folder, what="keys")
    server, clients = _new_pair(), {name: _new_pair() for name in names}
    with output_errors(folder, "keys"):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with atomic(folder) as scratch:
            scratch.mkdir(mode=0o700)
            _write_pair(scratch / SERVER, server)
            _write(scratch / PUBLIC, f'public = "{server.public.decode()}"\n', _PUBLIC_MODE)
            for name, pair in clients.items():
                _write_pair(scratch / f"{name}.key", pair)
            head = "# Who may connect: names and public keys. The server reads this file again when it changes.\n"
            _write(scratch / ALLOWED, head + "".join(map(_line, clients.items())), _PUBLIC_MODE)
    return [folder / name for name in (SERVER, PUBLIC, *(f"{name}.key" for name in names), ALLOWED)]


def add(folder: Path, names: Sequence[str]) -> list[Path]:
    """Make keys for further clients of the server in `folder` and allow them; the files, none if anything fails."""
    _check_names(names)
    known = _keys_in(folder / ALLOWED, _WRITABLE)
    if taken := [name for name in names if (folder / f"{name}.key").exists() or name in known]:
        raise OutputError(f"{folder} has a client {taken[0]!r} already: name another one")
    written: list[Path] = []
    lines = ""
    try:
        with output_errors(folder, "keys"), atomic(folder / ALLOWED) as scratch:
            for name in names:
                pair = _new_pair()
                _write_pair(folder / f"{name}.key", pair)
                written.append(folder / f"{name}.key")
                lines += _line((name, pair))
            _write(scratch, _read(folder / ALLOWED)[0].rstrip("\n") + f"\n{lines}", _PUBLIC_MODE)
    except OutputError:
        for path in written:
            path.unlink()
        raise
    return written


def of_server(path: Path) -> ServerKeys:
    """The server's keys in the folder `path`, or beside a client's file; KeyFileError when missing or damaged."""
    folder = path.parent if path.is_file() else path
    _require_folder(folder)
    return ServerKeys(_pair(folder / SERVER), AllowList(folder / ALLOWED))


def of_client(path: Path) -> ClientKeys:
    """A client's keys: `path` is its secret file, or a folder (its `worker`, or its only client)."""
    if path.is_dir():
        path = _usual_client(path)
    _require_folder(path.parent)
    server = path.parent / PUBLIC
    return ClientKeys(_pair(path), _keys_in(server, _WRITABLE, ["public"])["public"], path)


def _version(path: Path) -> tuple[int, ...] | None:
    """What changes when a file does; None when it is not there."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _usual_client(folder: Path) -> Path:
    if (folder / f"{DEFAULT_NAME}.key").exists():
        return folder / f"{DEFAULT_NAME}.key"
    files = sorted(path for path in folder.glob("*.key") if path.name != SERVER)
    if len(files) == 1:
        return files[0]
    if not files:
        raise KeyFileError(f"{folder} has no client's key: make keys with `glovewire keys`")
    raise KeyFileError(f"{folder} has the keys of {len(files)} clients: name one, such as --keys {files[0]}")


def _require_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise KeyFileError(f"there are no keys in {folder}: make them with `glovewire keys {folder}`")


def _check_names(names: Sequence[str]) -> None:
    for name in names:
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) or name == "server":
            raise UsageError(
                f"a client cannot be called {name[:80]!r}: use 1 to 64 letters, digits, _ and -, and not `server`"
            )
    if len(set(names)) < len(names):
        raise UsageError("each client needs a name of its own")


def _new_pair() -> Pair:
    return Pair(*zmq.curve_keypair())


def _line(client: tuple[str, Pair]) -> str:
    return f'{client[0]} = "{client[1].public.decode()}"\n'


def _write_pair(path: Path, pair: Pair) -> None:
    _write(path, f'{_HEAD}public = "{pair.public.decode()}"\nsecret = "{pair.secret.decode()}"\n', _SECRET_MODE)


def _write(path: Path, text: str, mode: int) -> None:
    """A new file with these permissions from the moment it exists; none if it cannot be written whole."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError:
        path.unlink()
        raise


def _pair(path: Path) -> Pair:
    found = _keys_in(path, _READABLE, ("public", "secret"))
    if zmq.curve_public(found["secret"]) != found["public"]:
        raise KeyFileError(f"{path}: the public key does not belong to the secret one; make the keys again")
    return Pair(**found)


def _keys_in(path: Path, forbidden: int, names: Collection[str] | None = None) -> dict[str, bytes]:
    """The keys in a file, `names` or all of them; KeyFileError when its mode has a `forbidden` bit."""
    text, mode = _read(path)
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise KeyFileError(f"{path} is not a file of keys, or damaged: make them with `glovewire keys`") from error
    found = {name: _key(path, name, table.get(name)) for name in (table if names is None else names)}
    if mode & forbidden:  # last: nobody should be told to change the mode of what is something else
        may, cure = ("read", "600") if forbidden == _READABLE else ("change", "go-w")
        raise KeyFileError(f"others may {may} {path} (mode {stat.S_IMODE(mode):o}): chmod {cure} {path}")
    return found


def _key(path: Path, name: str, key: object) -> bytes:
    """One key, checked; the error never repeats it."""
    try:
        if isinstance(key, str) and len(key) == 40 and len(z85.decode(key.encode("ascii"))) == 32:
            return key.encode("ascii")
    except (ValueError, KeyError, struct.error):
        pass
    raise KeyFileError(f"{path}: {name!r} is not a key of 40 Z85 characters")


def _read(path: Path) -> tuple[str, int]:
    """A file's text and its mode; what is opened is what is looked at."""
    if not path.is_file():
        raise KeyFileError(f"there is no file {path}: make keys with `glovewire keys`")
    try:
        with path.open("rb") as file:
            return file.read(MAX_FILE_BYTES).decode(), os.fstat(file.fileno()).st_mode
    except OSError as error:
        raise KeyFileError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise KeyFileError(f"{path} is not a file of keys") from error
