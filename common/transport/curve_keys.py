"""Make and read CURVE keys and the allow-list of clients. No other module reads secret keys; none is ever shown.

A folder of keys holds small TOML files, with keys in Z85 as ZeroMQ writes them:

    server.key      the server's key pair; secret
    server.pub      the server's public key, which clients need
    NAME.key        a client's key pair; secret
    allowed.toml    the public key of each client that may connect, by its name

Secret files are created with mode 0600, and refused if other users can read them.
"""

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
_ALLOWED_HEAD = "# Clients that may connect, and their public keys. The server reads this file again when it changes.\n"
_SECRET_HEAD = "# A secret key of Glovewire. Anyone who has it can act as its owner.\n"


@dataclass(frozen=True)
class KeyPair:
    """A public key and its secret, each 40 characters of Z85."""

    public: bytes
    secret: bytes = field(repr=False)


class AllowList:
    """Public keys and names of the clients that may connect; the file is read again whenever it has changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._names: dict[bytes, str] = {}
        self._version: tuple[int, ...] | None = None
        self._read()

    def name_of(self, key: bytes) -> str | None:
        """Return the name of the client with this public key (32 bytes), None if it is not allowed.

        While the file is damaged, the list last read stays in use.
        """
        with contextlib.suppress(GlovewireError):
            self._read()
        return self._names.get(key)

    def _read(self) -> None:
        version = _file_version(self._path)
        if version is None or version != self._version:
            names = {z85.decode(key): name for name, key in _keys_in(self._path, _WRITABLE).items()}
            self._names, self._version = names, version


@dataclass(frozen=True)
class ServerKeys:
    """A server's key pair and its allow-list."""

    pair: KeyPair
    allowed: AllowList


@dataclass(frozen=True)
class ClientKeys:
    """A client's key pair, the `path` of its file, and the public key that the `server` must prove to own."""

    pair: KeyPair
    server: bytes
    path: Path


def make_keys(folder: Path, names: Sequence[str] = (DEFAULT_NAME,)) -> list[Path]:
    """Make a folder with keys for a server and the clients `names`; return its files. On an error, none is left.

    Raises OutputError if the folder is not empty or cannot be written, UsageError for invalid names.
    """
    _check_names(names)
    if (folder / SERVER).exists():
        raise OutputError(f"{folder} has keys already: name another folder, or say --add to add clients")
    require_free(folder, what="keys")
    with output_errors(folder, "keys"):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with atomic(folder) as scratch:
            scratch.mkdir(mode=0o700)
            _write(scratch / PUBLIC, f'public = "{_write_pair(scratch / SERVER)}"\n', _PUBLIC_MODE)
            clients = "".join(_write_client(scratch, name) for name in names)
            _write(scratch / ALLOWED, _ALLOWED_HEAD + clients, _PUBLIC_MODE)
    return [folder / name for name in (SERVER, PUBLIC, *(f"{name}.key" for name in names), ALLOWED)]


def add_clients(folder: Path, names: Sequence[str]) -> list[Path]:
    """Make keys for more clients and add them to the allow-list in `folder`; return the files. An error leaves none."""
    _check_names(names)
    known = _keys_in(folder / ALLOWED, _WRITABLE)
    if taken := [name for name in names if (folder / f"{name}.key").exists() or name in known]:
        raise OutputError(f"{folder} has a client {taken[0]!r} already: name another one")
    written: list[Path] = []
    try:
        with output_errors(folder, "keys"), atomic(folder / ALLOWED) as scratch:
            allowed = _read(folder / ALLOWED)[0].rstrip("\n") + "\n"
            for name in names:
                allowed += _write_client(folder, name)
                written.append(folder / f"{name}.key")
            _write(scratch, allowed, _PUBLIC_MODE)
    except OutputError:
        for path in written:
            path.unlink()
        raise
    return written


def load_server_keys(path: Path) -> ServerKeys:
    """Return the server's keys in folder `path`, or in the folder of file `path`; KeyFileError if damaged or absent."""
    folder = path.parent if path.is_file() else path
    _require_folder(folder)
    return ServerKeys(_pair(folder / SERVER), AllowList(folder / ALLOWED))


def load_client_keys(path: Path) -> ClientKeys:
    """Return the client's keys in file `path`, or in folder `path` those of `worker` or of its only client."""
    if path.is_dir():
        path = _default_client(path)
    _require_folder(path.parent)
    server = path.parent / PUBLIC
    return ClientKeys(_pair(path), _keys_in(server, _WRITABLE, ["public"])["public"], path)


def _file_version(path: Path) -> tuple[int, ...] | None:
    """Return modification time, size and inode of a file, to detect changes; None if it does not exist."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _default_client(folder: Path) -> Path:
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


def _write_client(folder: Path, name: str) -> str:
    """Write the key file of a new client; return its line for the allow-list."""
    return f'{name} = "{_write_pair(folder / f"{name}.key")}"\n'


def _write_pair(path: Path) -> str:
    """Make a key pair, write it to the secret file `path`, and return the public key."""
    public, secret = (key.decode() for key in zmq.curve_keypair())
    _write(path, f'{_SECRET_HEAD}public = "{public}"\nsecret = "{secret}"\n', _SECRET_MODE)
    return public


def _write(path: Path, text: str, mode: int) -> None:
    """Create a file with permissions `mode`; remove it if it cannot be written completely."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError:
        path.unlink()
        raise


def _pair(path: Path) -> KeyPair:
    found = _keys_in(path, _READABLE, ("public", "secret"))
    if zmq.curve_public(found["secret"]) != found["public"]:
        raise KeyFileError(f"{path}: the public key does not belong to the secret one; make the keys again")
    return KeyPair(**found)


def _keys_in(path: Path, forbidden: int, names: Collection[str] | None = None) -> dict[str, bytes]:
    """Return the keys in a file by name, those in `names` or all; KeyFileError if its mode has a `forbidden` bit."""
    text, mode = _read(path)
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise KeyFileError(f"{path} is not a file of keys, or damaged: make them with `glovewire keys`") from error
    found = {name: _key(path, name, table.get(name)) for name in (table if names is None else names)}
    if mode & forbidden:  # last: the file must be one of keys before its mode is to be changed
        may, cure = ("read", "600") if forbidden == _READABLE else ("change", "go-w")
        raise KeyFileError(f"others may {may} {path} (mode {stat.S_IMODE(mode):o}): chmod {cure} {path}")
    return found


def _key(path: Path, name: str, key: object) -> bytes:
    """Return `key` as bytes; KeyFileError, which does not show the key, if it is invalid."""
    with contextlib.suppress(ValueError, KeyError, struct.error):
        if isinstance(key, str) and len(key) == 40 and len(z85.decode(key.encode("ascii"))) == 32:
            return key.encode("ascii")
    raise KeyFileError(f"{path}: {name!r} is not a key of 40 Z85 characters")


def _read(path: Path) -> tuple[str, int]:
    """Return a file's text and mode, both read from the same open file."""
    if not path.is_file():
        raise KeyFileError(f"there is no file {path}: make keys with `glovewire keys`")
    try:
        with path.open("rb") as file:
            return file.read(MAX_FILE_BYTES).decode(), os.fstat(file.fileno()).st_mode
    except OSError as error:
        raise KeyFileError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise KeyFileError(f"{path} is not a file of keys") from error
