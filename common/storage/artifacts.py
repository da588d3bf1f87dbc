"""Folders on disk that must be whole or absent: written beside their place, checksummed, then renamed.

An artifact is a folder with a `manifest.json` that lists every other file with its size and SHA-256.
`writing()` is the only way to make one; `Manifest.load()` the only way in. Nothing here knows what the files mean.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from ..errors import ArtifactError, GlovewireError, OutputError

MANIFEST = "manifest.json"
PARTIAL, REPLACED = ".partial", ".replaced"
"""How the names of what is being written end, and of what is giving way to it: `.NAME.PID` stands before."""
MAX_MANIFEST_BYTES = 16 << 20
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Manifest:
    """What an artifact says of itself: its kind, schema version, facts, and files with size and SHA-256."""

    kind: str
    schema: int
    facts: Mapping[str, Any]
    files: Mapping[str, Mapping[str, Any]]

    @property
    def checksum(self) -> str:
        """SHA-256 (hex) over kind, schema, facts and the files' checksums: equal for equal content."""
        body = json.dumps(_as_json(self), sort_keys=True, ensure_ascii=True).encode()
        return hashlib.sha256(body).hexdigest()

    @staticmethod
    def load(folder: Path, kind: str, schema: int, *, verify: bool = True) -> Manifest:
        """Read and check the artifact in `folder`.

        With `verify`, every file's SHA-256 is compared too (about 1 GB/s); sizes are always compared.
        Raises ArtifactError when anything is missing, altered, of another kind or of another schema.
        """
        manifest = _read_manifest(folder)
        if manifest.kind != kind:
            raise ArtifactError(f"{folder} holds {manifest.kind}, and {kind} is needed here")
        if manifest.schema != schema:
            raise ArtifactError(
                f"{folder} has schema version {manifest.schema}, this program reads version {schema}: make it again"
            )
        for name, entry in manifest.files.items():
            _check_file(folder / name, entry, verify=verify)
        return manifest


def peek_kind(folder: Path) -> str:
    """The kind an artifact folder claims to be; raises ArtifactError if it is no artifact."""
    return _read_manifest(folder).kind


def go_on() -> None:
    """Do not rest."""


def file_sha256(path: Path, rest: Callable[[], None] = go_on) -> str:
    """SHA-256 (hex) of a file's bytes; `rest` is called after each mebibyte."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
            rest()
    return digest.hexdigest()


def require_free(path: Path, *, what: str) -> None:
    """Raise OutputError unless `path` does not exist (or is an empty folder) and its parent can be written."""
    try:
        if path.exists() and not (path.is_dir() and not any(path.iterdir())):
            raise OutputError(f"{what} {path} exists already: name another place or remove it")
        parent = path.parent
        while not parent.exists():
            parent = parent.parent
    except OSError as error:  # a name that no file can have, or a folder that others may not look into
        raise _output_error(path, what, error) from error
    if not parent.is_dir():
        raise OutputError(f"{what} {path} cannot be written: {parent} is not a folder")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise OutputError(f"{what} {path} cannot be written: no permission in {parent}")


@contextmanager
def writing(
    folder: Path,
    kind: str,
    schema: int,
    facts: dict[str, Any],
    *,
    replace: bool = False,
    rest: Callable[[], None] = go_on,
) -> Iterator[Path]:
    """Make an artifact: yields a scratch folder beside `folder`; on success it is sealed and renamed into place.

    `facts` may be filled by the caller until the block ends. On any error the scratch folder is removed and
    `folder` is as it was. A disk that is full or a folder that cannot be written raises OutputError. With `replace`,
    an artifact that is there already gives way to the new one when that is whole: it is renamed to `.NAME.PID.replaced`
    and removed once the new one has its place, so that who is killed in between leaves it to be put back. `rest` is
    called now and then while checksums are made.
    """
    if not replace:
        require_free(folder, what=kind)
    scratch = folder.parent / f".{folder.name}.{os.getpid()}{PARTIAL}"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        yield scratch
        seal(scratch, kind, schema, facts, rest=rest)
        if replace and folder.exists():
            _take_the_place(folder, scratch)
        else:
            scratch.rename(folder)
        _sync_folder(folder.parent)
    except OSError as error:
        raise _output_error(folder, kind, error) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _take_the_place(folder: Path, scratch: Path) -> None:
    """Rename `scratch` to `folder`; what is there stays on disk until that is done, and is put back when it fails."""
    aside = scratch.with_suffix(REPLACED)
    shutil.rmtree(aside, ignore_errors=True)
    folder.rename(aside)
    try:
        scratch.rename(folder)
    except OSError:
        aside.rename(folder)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def seal(
    folder: Path,
    kind: str,
    schema: int,
    facts: Mapping[str, Any],
    only: Collection[str] | None = None,
    *,
    rest: Callable[[], None] = go_on,
) -> Manifest:
    """Write the manifest over the files that are in `folder` now, and flush everything to disk.

    `only` names the files that the manifest answers for, where others beside them go on changing.
    """
    if only is None:
        paths = sorted(p for p in folder.rglob("*") if p.is_file() and p.name != MANIFEST)
    else:
        paths = [folder / name for name in sorted(only)]
    files = {}
    for path in paths:
        files[path.relative_to(folder).as_posix()] = {
            "bytes": path.stat().st_size,
            "sha256": file_sha256(path, rest),
        }
        with path.open("rb") as stream:
            os.fsync(stream.fileno())
    manifest = Manifest(kind, schema, dict(facts), files)
    write_text_atomically(folder / MANIFEST, json.dumps(_as_json(manifest), indent=1, sort_keys=True) + "\n")
    return manifest


def write_text_atomically(path: Path, text: str) -> None:
    """Replace `path` with `text` (UTF-8): a reader sees the old or the new content, never a part."""
    write_bytes_atomically(path, text.encode())


def write_bytes_atomically(path: Path, data: bytes | memoryview) -> None:
    """Replace `path` with `data`; OSError becomes OutputError and the old content stays."""
    with replacing(path) as stream:
        stream.write(data)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Replace `path` with what the block writes to the stream that it gets.

    A reader sees the old or the new content, never a part; on any error the old content stays and OSError becomes
    OutputError.
    """
    scratch = path.parent / f".{path.name}.{os.getpid()}{PARTIAL}"
    try:
        with scratch.open("wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        scratch.replace(path)
    except OSError as error:
        raise _output_error(path, "file", error) from error
    finally:
        scratch.unlink(missing_ok=True)


def _output_error(path: Path, what: str, error: OSError) -> GlovewireError:
    if error.errno in (errno.ENOSPC, None):  # None: numpy could write a part only
        return OutputError(f"{what} {path} cannot be written: no space left on the disk")
    return OutputError(f"{what} {path} cannot be written: {error.strerror or error}")


def _as_json(manifest: Manifest) -> dict[str, Any]:
    return {
        "kind": manifest.kind,
        "schema": manifest.schema,
        "facts": dict(manifest.facts),
        "files": {name: dict(entry) for name, entry in manifest.files.items()},
    }


def _read_manifest(folder: Path) -> Manifest:
    path = folder / MANIFEST
    try:
        if not folder.exists():
            raise ArtifactError(f"{folder} does not exist")
        if not folder.is_dir():
            raise ArtifactError(f"{folder} is a file; a folder made by glovewire is needed")
        if not path.exists():
            raise ArtifactError(f"{folder} has no {MANIFEST}: it was not made by glovewire, or not finished")
    except OSError as error:
        raise ArtifactError(f"{folder} cannot be read: {error.strerror or error}") from error
    try:
        raw = json.loads(_text(path))
        files = {_inside(name): _file_entry(entry) for name, entry in raw["files"].items()}
        return Manifest(str(raw["kind"]), int(raw["schema"]), dict(raw["facts"]), files)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise ArtifactError(f"{path} cannot be read as a manifest ({type(error).__name__}: {error})") from error


def _text(path: Path) -> str:
    with path.open("rb") as stream:
        found = stream.read(MAX_MANIFEST_BYTES + 1)
    if len(found) > MAX_MANIFEST_BYTES:
        raise ValueError(f"more than {MAX_MANIFEST_BYTES >> 20} MiB")
    return found.decode()


def _inside(name: str) -> str:
    """A file's name if it leads into the artifact's own folder: a manifest may come from a stranger."""
    parts = name.split("/")
    if not name.isprintable() or "\\" in name or any(part in ("", ".", "..") for part in parts):
        raise ValueError(f"{name[:80]!r} is not the name of a file in this folder")
    return name


def _file_entry(entry: Mapping[str, Any]) -> dict[str, Any]:
    size, digest = entry["bytes"], entry["sha256"]
    if type(size) is not int or not isinstance(digest, str):
        raise TypeError("a file needs its size and its SHA-256")
    return {"bytes": size, "sha256": digest}


def _check_file(path: Path, entry: Mapping[str, Any], *, verify: bool) -> None:
    try:
        if not path.is_file():
            raise ArtifactError(f"{path} is missing")
        size = path.stat().st_size
        if size != entry["bytes"]:
            raise ArtifactError(f"{path} has {size} bytes instead of {entry['bytes']}: truncated or altered")
        if verify and file_sha256(path) != entry["sha256"]:
            raise ArtifactError(f"{path} does not match its checksum: altered since it was written")
    except OSError as error:  # another process removes what it has replaced
        raise ArtifactError(f"{path} cannot be read: {error.strerror or error}") from error


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# ---- One array in one `.npy` file: never a pickle, never an archive, always closed or mapped.

UNREADABLE = (OSError, ValueError, EOFError, OverflowError, SyntaxError, TypeError)
"""What numpy raises for a file that is missing, cut, or no array."""
PIECE_BYTES = 1 << 20


def load_array(path: Path, *, mapped: bool = False) -> npt.NDArray[Any]:
    """The array in `path`, in memory or `mapped` read-only; raises one of UNREADABLE.

    `numpy.load` would open an archive instead when the file's first bytes say so, and leave it open. A file is always
    mapped first: one that claims to hold more than it has bytes is refused before memory is asked for.
    """
    there = np.lib.format.open_memmap(path, mode="r")
    return there if mapped else np.array(there, order="C", subok=False)


def save_array(path: Path, values: npt.NDArray[Any], rest: Callable[[], None]) -> None:
    """Write what `numpy.save` would, and `rest` after each piece of it."""
    with path.open("wb") as stream:
        np.lib.format.write_array_header_1_0(stream, np.lib.format.header_data_from_array_1_0(values))
        flat = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        for start in range(0, len(flat), PIECE_BYTES):
            stream.write(flat[start : start + PIECE_BYTES].data)
            rest()
