"""Make and read CURVE keys and the allow-list of clients. No other module reads secret keys; none is ever shown.

A folder of keys holds small TOML files, with keys in Z85 as ZeroMQ writes them:

    server.key      the server's key pair; secret
    server.pub      the server's public key, which clients need
    NAME.key        a client's key pair; secret
    allowed.toml    name, role and public key of each client that may connect, one per line

Secret files are created with mode 0600, and refused if other users can read them. A file is also refused if another
user owns or can change it or its folder. The superuser does not count as another user.
"""

import contextlib
import os
import re
import shlex
import stat
import struct
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zmq
from zmq.utils import z85

from ..errors import GlovewireError, KeyFileError, OutputError, UsageError
from ..roles import USUAL, Client, Role, derived
from ..storage.artifacts import atomic, input_errors, output_errors, require_free

SERVER, PUBLIC, ALLOWED = "server.key", "server.pub", "allowed.toml"
MAX_FILE_BYTES = 1 << 20
_SECRET_MODE, _PUBLIC_MODE = 0o600, 0o644
_READABLE, _WRITABLE = stat.S_IRWXG | stat.S_IRWXO, stat.S_IWGRP | stat.S_IWOTH
_ALLOWED_HEAD = """\
# Clients that may connect: name, role (worker, monitor or admin) and public key. The server reads this file again when
# it changes. Remove a line to revoke a key.
"""
_SECRET_HEAD = "# A secret key of Glovewire. Anyone who has it can act as its owner.\n"


@dataclass(frozen=True)
class KeyPair:
    """A public key and its secret, each 40 characters of Z85."""

    public: bytes
    secret: bytes = field(repr=False)


class AllowList:
    """The clients that may connect, by public key in Z85; follows the changes of its file.

    While the file is missing, damaged or accessible to other users, the list last read stays in use, and `problem` says
    why; otherwise `problem` is "".
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._used = self._seen = _file_version(path)  # before reading: a change meanwhile counts as one
        self._clients = _clients_in(path)
        self.problem = ""

    def client_of(self, public: str) -> Client | None:
        """Return the client with this public key, None if it is not allowed. Does not look at the file."""
        return self._clients.get(public)

    def admit(self, public: str) -> Client | None:
        """Return the client with this public key, None if it is not allowed; also looks for a new key in the file."""
        if public not in self._clients and _file_version(self._path) != self._used:
            with contextlib.suppress(KeyFileError):
                if (added := _clients_in(self._path).get(public)) is not None:
                    self._clients[public] = added
        return self._clients.get(public)

    def refresh(self) -> dict[str, Client]:
        """Read a changed file; return the clients whose key was removed, or now has another name or role.

        A change counts once two successive calls have seen the same file: the first may have seen one half written.
        """
        version, before = _file_version(self._path), self._seen
        self._seen = version
        if version == self._used or version != before:
            return {}
        try:
            clients = _clients_in(self._path)
        except KeyFileError as error:
            self._used, self.problem = (), str(error)  # read it again later, even if it comes back unchanged
            return {}
        revoked = {public: client for public, client in self._clients.items() if clients.get(public) != client}
        self._clients, self._used, self.problem = clients, version, ""
        return revoked


@dataclass(frozen=True)
class ServerKeys:
    """A server's key pair and its allow-list."""

    pair: KeyPair
    allowed: AllowList

    def is_own(self, public: str) -> bool:
        """Return whether a public key, in Z85, is the server's own, which all shards of a run share."""
        return public == self.pair.public.decode()


@dataclass(frozen=True)
class ClientKeys:
    """A client's key pair, the `path` of its file, and the public key that the `server` must prove to own."""

    pair: KeyPair
    server: bytes
    path: Path

    def session_name(self, name: str) -> str:
        """Return the name for a session: the client's name (its file's, without `.key`), a dot, and `name`."""
        return derived(self.path.stem, name)


def make_keys(folder: Path, clients: Sequence[Client] = USUAL) -> list[Path]:
    """Make a folder with keys for a server and its `clients`; return its files. An error leaves none behind.

    Raises OutputError if the folder is not empty or cannot be written, UsageError for invalid names.
    """
    _check_names(clients)
    with output_errors(folder, "keys"):
        if (folder / SERVER).exists():
            raise OutputError(f"{folder} has keys already: name another folder, or use --add to add clients")
        require_free(folder, what="keys")
        folder.parent.mkdir(parents=True, exist_ok=True)
        with atomic(folder) as scratch:
            scratch.mkdir(mode=0o700)
            _write(scratch / PUBLIC, f'public = "{_write_pair(scratch / SERVER)}"\n', _PUBLIC_MODE)
            lines = "".join(_line(client, _write_pair(scratch / f"{client.name}.key")) for client in clients)
            _write(scratch / ALLOWED, _ALLOWED_HEAD + lines, _PUBLIC_MODE)
    return [folder / name for name in (SERVER, PUBLIC, *(f"{client.name}.key" for client in clients), ALLOWED)]


def add_clients(folder: Path, clients: Sequence[Client]) -> list[Path]:
    """Make keys for more clients and add them to the allow-list in `folder`; return the files, none after an error."""
    _check_names(clients)
    path = folder / ALLOWED
    with _table(path, _WRITABLE) as table:
        known = set(table)
    for client in clients:
        if client.name in known or (folder / f"{client.name}.key").exists():
            raise OutputError(f"{folder} has a client {client.name!r} already: name another one")
    written: list[Path] = []
    try:
        with output_errors(folder, "keys"), atomic(path) as scratch:
            allowed = _read(path)[0].rstrip("\n") + "\n"
            for client in clients:
                allowed += _line(client, _write_pair(folder / f"{client.name}.key"))
                written.append(folder / f"{client.name}.key")
            _write(scratch, allowed, _PUBLIC_MODE)
    except GlovewireError:
        for each in written:
            each.unlink()
        raise
    return [*written, path]


def load_server_keys(path: Path) -> ServerKeys:
    """Return the server's keys in folder `path`, or in the folder of file `path`; KeyFileError if damaged or absent."""
    with input_errors(path, KeyFileError):
        folder = path.parent if path.is_file() else path
        _require_folder(folder)
    return ServerKeys(_pair(folder / SERVER), AllowList(folder / ALLOWED))


def load_client_keys(path: Path, role: Role) -> ClientKeys:
    """Return the client's keys in file `path`, or in folder `path` those of the usual client of a role.

    The usual client is the one named like the role, else `admin`, else the only one.
    """
    with input_errors(path, KeyFileError):
        if path.is_dir():
            path = _usual_client(path, role)
        _require_folder(path.parent)
    return ClientKeys(_pair(path), _public(path.parent / PUBLIC), path)


def load_both_keys(path: Path, role: Role) -> ClientKeys:
    """Return the keys of a client of `role` from a folder that also has the server's.

    Raises KeyFileError if the server's keys are damaged or absent, or its allow-list gives the client another role.
    """
    allowed, client = load_server_keys(path).allowed, load_client_keys(path, role)
    listed = allowed.client_of(client.pair.public.decode())
    if listed is None or listed.role not in (role, Role.ADMIN):
        made = shlex.join(["glovewire", "keys", str(client.path.parent), "--add", "--role", role])
        raise KeyFileError(
            f"{client.path} is not a key for the role {role}: name another one, or make one with `{made}`"
        )
    return client


def files_elsewhere(path: Path, role: Role) -> tuple[dict[str, str], dict[str, str]]:
    """Return the files, by name, that a server and a client of `role` need on other machines; see `load_both_keys`."""
    client = load_both_keys(path, role).path
    needed = (SERVER, PUBLIC, ALLOWED), (PUBLIC, client.name)
    server, own = ({name: _read(client.parent / name)[0] for name in names} for names in needed)
    return server, own


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Write `files` (content by name) to `folder`, readable by this user only; each replaces an older one at once."""
    with output_errors(folder, "keys"):
        folder.mkdir(mode=0o700, exist_ok=True)
        for name, text in files.items():
            with atomic(folder / name) as scratch:
                _write(scratch, text, _SECRET_MODE)


def _file_version(path: Path) -> tuple[int, ...] | None:
    """Return a value that differs once the file, its mode or its owner has changed; None if the file is missing."""
    with contextlib.suppress(OSError):
        found = path.stat()
        return found.st_ctime_ns, found.st_size, found.st_ino, found.st_mode, found.st_uid
    return None


def _usual_client(folder: Path, role: Role) -> Path:
    files = {path.stem: path for path in sorted(folder.glob("*.key")) if path.name != SERVER}
    if not files:
        raise KeyFileError(f"{folder} has no client's key: make keys with `glovewire keys`")
    for name in (role, Role.ADMIN):
        if name in files:
            return files[name]
    if len(files) > 1:
        first = next(iter(files.values()))
        raise KeyFileError(f"{folder} has the keys of {len(files)} clients: name one, such as --keys {first}")
    return files.popitem()[1]


def _require_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise KeyFileError(f"there are no keys in {folder}: make them with `glovewire keys {folder}`")


# ---- writing


def _check_names(clients: Sequence[Client]) -> None:
    for name, _ in clients:
        if not _is_name(name):
            raise UsageError(
                f"a client cannot be called {name[:80]!r}: use 1 to 64 letters, digits, _ and -, and not `server`"
            )
    if len({name for name, _ in clients}) < len(clients):
        raise UsageError("each client needs a unique name")


def _is_name(name: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) is not None and name != "server"


def _line(client: Client, public: str) -> str:
    return f'{client.name} = {{role = "{client.role}", key = "{public}"}}\n'


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


# ---- reading


def _clients_in(path: Path) -> dict[str, Client]:
    """Return the clients on the allow-list by public key; KeyFileError."""
    with _table(path, _WRITABLE) as table:
        found: dict[str, Client] = {}
        for name, entry in table.items():
            if not (_is_name(name) and isinstance(entry, dict) and entry.keys() == {"role", "key"}):
                line = 'NAME = {role = "worker", key = "..."}'
                raise KeyFileError(f"{path}: {name[:80]!r} must be a line such as {line}")
            if entry["role"] not in list(Role):  # a set would need a hash
                raise KeyFileError(f"{path}: the role of {name!r} must be one of {', '.join(Role)}")
            public = _key(path, name, entry["key"]).decode()
            if (other := found.get(public)) is not None:
                raise KeyFileError(f"{path}: {other.name!r} and {name!r} have the same key: each needs its own")
            found[public] = Client(name, Role(entry["role"]))
        return found


def _public(path: Path) -> bytes:
    with _table(path, _WRITABLE) as table:
        return _key(path, "public", table.get("public"))


def _pair(path: Path) -> KeyPair:
    with _table(path, _READABLE) as table:
        public, secret = (_key(path, name, table.get(name)) for name in ("public", "secret"))
        if zmq.curve_public(secret) != public:
            raise KeyFileError(f"{path}: the public key does not belong to the secret one; make the keys again")
        return KeyPair(public, secret)


@contextlib.contextmanager
def _table(path: Path, forbidden: int) -> Iterator[dict[str, Any]]:
    """Yield the content of a TOML file; at the end, KeyFileError if it or its folder is accessible to other users.

    `forbidden` are the bits that the file's mode must not have.
    """
    text, status = _read(path)
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise KeyFileError(f"{path} is not a file of keys, or damaged: make them with `glovewire keys`") from error
    yield table
    # last: the file must be a key file before the error asks to change its mode
    _require_out_of_reach(path, status, forbidden)
    with input_errors(path, KeyFileError):
        for folder in dict.fromkeys((path.parent, path.resolve().parent)):  # the file may be a symbolic link
            _require_out_of_reach(folder, folder.stat(), _WRITABLE)


def _require_out_of_reach(path: Path, status: os.stat_result, forbidden: int) -> None:
    """Raise KeyFileError if the mode of a file or folder has a `forbidden` bit, or another user owns it."""
    where, mode = shlex.quote(str(path)), stat.S_IMODE(status.st_mode)
    if status.st_uid not in (os.geteuid(), 0):
        raise KeyFileError(f"{path} belongs to another user (uid {status.st_uid}): chown {os.geteuid()} {where}")
    if mode & forbidden:
        may, cure = ("read", "600") if forbidden == _READABLE else ("change", "go-w")
        raise KeyFileError(f"others may {may} {path} (mode {mode:o}): chmod {cure} {where}")


def _key(path: Path, name: str, key: object) -> bytes:
    """Return `key` as bytes; KeyFileError, which does not show the key, if it is invalid."""
    with contextlib.suppress(ValueError, KeyError, struct.error):
        if isinstance(key, str) and len(key) == 40 and len(z85.decode(key.encode("ascii"))) == 32:
            return key.encode("ascii")
    raise KeyFileError(f"{path}: {name!r} is not a key of 40 Z85 characters")


def _read(path: Path) -> tuple[str, os.stat_result]:
    """Return a file's text and status, both read from the same open file."""
    try:
        with input_errors(path, KeyFileError):
            if not path.is_file():
                raise KeyFileError(f"there is no file {path}: make keys with `glovewire keys`")
            with path.open("rb") as file:
                return file.read(MAX_FILE_BYTES).decode(), os.fstat(file.fileno())
    except UnicodeDecodeError as error:
        raise KeyFileError(f"{path} is not a file of keys") from error
