"""Write files and folders so that they are whole or absent, and read them back only if nothing has changed.

Every file that another process may read is written by `atomic`: to a scratch path in the same folder, flushed to disk,
then renamed. An artifact is a folder with a `manifest.json` that lists every other file with its size and SHA-256.
`writing_artifact()` makes one and `Manifest.load()` reads one, whatever its files contain.
"""

import errno
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np

from ..array_types import Array
from ..errors import ArtifactError, BadRequest, GlovewireError, OutputError

MANIFEST = "manifest.json"
PARTIAL, REPLACED = ".partial", ".replaced"
"""Suffixes of `.NAME.PID.partial`, new content being written, and `.NAME.PID.replaced`, the folder being replaced."""
MAX_MANIFEST_BYTES = 16 << 20
PIECE_BYTES = 1 << 20
_AGAIN = "truncated or altered since it was written: make or copy it again"
MAKERS = {"dataset": ("preprocess", "dataset"), "vectors": ("train", "run")}
"""The command that makes each kind of artifact, and what users call the artifact."""
UNREADABLE = (OSError, ValueError, EOFError, OverflowError, SyntaxError, TypeError)
"""Errors that numpy raises when it loads a file that is missing, truncated, or not an array."""


def no_pause() -> None:
    """Do nothing: the default `pause`."""


# ---- atomic writing


def scratch_path(path: Path) -> Path:
    """Return the path at which this process writes new content of `path`."""
    return path.parent / f".{path.name}.{os.getpid()}{PARTIAL}"


@contextmanager
def atomic(path: Path, *, replace_folder: bool = False, flush: bool = True) -> Iterator[Path]:
    """Yield a scratch path beside `path`; at the end, move the file or folder made there to `path`.

    Readers see the old content or the new, never a mixture. After any error the old content stays and the scratch path
    is removed; OSErrors are not converted (see `output_errors`). A file replaces a file; a folder replaces an empty
    folder or, with `replace_folder`, any folder, which is renamed to `.NAME.PID.replaced` meanwhile: if the process is
    killed in between, the old content can be restored from there. With `flush`, this also holds after a power failure.
    """
    scratch = scratch_path(path)
    try:
        _remove(scratch, ignore_errors=False)
        yield scratch
        if flush:
            for file in files_in(scratch):
                flush_path(file)
        if replace_folder and path.exists():
            _swap(path, scratch)
        else:
            if path.is_dir() and not scratch.is_dir():
                path.rmdir()
            scratch.rename(path)
        if flush:
            flush_path(path.parent)
    except BaseException:
        _remove(scratch)
        raise


def _swap(folder: Path, scratch: Path) -> None:
    """Rename `scratch` to `folder`; restore the old folder if that fails, remove it otherwise."""
    aside = scratch.with_suffix(REPLACED)
    _remove(aside)
    folder.rename(aside)
    try:
        scratch.rename(folder)
    except OSError:
        aside.rename(folder)
        raise
    _remove(aside)


def move_into_place(scratch: Path, path: Path) -> None:
    """Flush a file to disk and move it to `path`."""
    flush_path(scratch)
    scratch.rename(path)
    flush_path(path.parent)


@contextmanager
def atomic_stream(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Yield a binary stream whose content replaces `path` at the end; OutputError if it cannot be written.

    The file has the permissions `mode`, less those of the umask, from the moment it exists.
    """
    opener = partial(os.open, mode=mode)
    with output_errors(path), atomic(path) as scratch, open(scratch, "wb", opener=opener) as stream:
        yield stream


def write_text_atomically(path: Path, text: str, mode: int = 0o666) -> None:
    """Replace `path` with `text` (UTF-8), as `atomic_stream` does."""
    with atomic_stream(path, mode) as stream:
        stream.write(text.encode())


@contextmanager
def output_errors(path: Path, what: str = "file") -> Iterator[None]:
    """Convert an OSError in the block to an OutputError: `what` at `path` cannot be written, and why."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, None)  # None: numpy could write only a part
        why = "no space left on the disk" if full else error.strerror or error
        raise OutputError(f"{what} {path} cannot be written: {why}") from error


@contextmanager
def input_errors(path: str | Path, kind: type[GlovewireError] = ArtifactError) -> Iterator[None]:
    """Convert an OSError in the block to an error of type `kind`: `path` cannot be read, and why."""
    try:
        yield
    except OSError as error:
        raise kind(f"{path} cannot be read: {error.strerror or error}") from error


@contextmanager
def damage_errors(what: str, *more: type[Exception]) -> Iterator[None]:
    """Convert an error of UNREADABLE, or of a type in `more`, in the block to an ArtifactError: `what`, and why."""
    try:
        yield
    except UNREADABLE + more as error:
        raise ArtifactError(f"{what} ({type(error).__name__}: {error})") from error


def attempt_all(*writes: Callable[[], object]) -> None:
    """Call every function, even after one raises a GlovewireError; then raise that error, or one that names all errors.

    An error that names several has the type of the last. So a disk too full for one file still gets those that fit.
    """
    failures: list[GlovewireError] = []
    for write in writes:
        try:
            write()
        except GlovewireError as error:
            failures.append(error)
    if len(failures) > 1:
        raise type(failures[-1])("; ".join(map(str, failures))) from failures[-1]
    if failures:
        raise failures[0]


def make_folder(path: Path) -> None:
    """Make the folder `path`, unless it exists, and those above it, durably: they survive a power failure."""
    if not path.parent.is_dir():
        make_folder(path.parent)
    path.mkdir(exist_ok=True)
    with suppress(PermissionError):  # a folder that one may write to, but not read, cannot be flushed
        flush_path(path.parent)


def require_free(path: Path, *, what: str) -> None:
    """Raise OutputError if `path` exists (and is not an empty folder), or if its parent cannot be written."""
    with output_errors(path, what):  # an impossible file name, or a folder that may not be searched
        if path.exists() and not (path.is_dir() and not any(path.iterdir())):
            raise OutputError(f"{what} {path} exists already: name another place or remove it")
        parent = path.parent
        while not parent.exists():
            parent = parent.parent
    if not parent.is_dir():
        raise OutputError(f"{what} {path} cannot be written: {parent} is not a folder")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise OutputError(f"{what} {path} cannot be written: no permission in {parent}")


def files_in(path: Path) -> list[Path]:
    """Return all files below `path`, sorted, or `[path]` if it is not a folder."""
    return sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]


def flush_path(path: Path) -> None:
    """Flush a file or folder to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove(path: Path, *, ignore_errors: bool = True) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=ignore_errors)
    else:
        path.unlink(missing_ok=True)


# ---- artifacts


@dataclass(frozen=True)
class Manifest:
    """Content of an artifact's `manifest.json`: kind, schema version, facts, and its files with size and SHA-256."""

    kind: str
    schema: int
    facts: Mapping[str, Any]
    files: Mapping[str, Mapping[str, Any]]

    @property
    def checksum(self) -> str:
        """Return the SHA-256 (hex) of the manifest as JSON: equal for equal kind, schema, facts and files."""
        body = json.dumps(vars(self), sort_keys=True, ensure_ascii=True).encode()
        return hashlib.sha256(body).hexdigest()

    @classmethod
    def load(cls, folder: Path, kind: str, schema: int, *, verify: bool = True, without: Collection[str] = ()) -> Self:
        """Return the manifest of the artifact in `folder` after checking its files, except those named in `without`.

        Sizes are always compared, SHA-256 checksums only with `verify` (about 1 GB/s). Raises ArtifactError if
        anything is missing, altered, of another kind or of another schema.
        """
        manifest = cls.read(folder, kind)
        if manifest.kind != kind:
            raise ArtifactError(f"{folder} is a folder of kind {manifest.kind}: give one of kind {kind}")
        if manifest.schema != schema:
            raise ArtifactError(
                f"{folder} has schema version {manifest.schema}, this program reads version {schema}: make it again"
            )
        for name, entry in manifest.files.items():
            if name not in without:
                _check_file(os.path.join(folder, name), entry, verify=verify)
        return manifest

    @classmethod
    def read(cls, folder: Path, kind: str = "") -> Self:
        """Read the manifest in `folder` without checking the files; ArtifactError if it is missing or damaged.

        If the folder does not exist, the error names the command that makes an artifact of this kind, or of any.
        """
        path = os.path.join(folder, MANIFEST)
        with input_errors(path):
            try:
                with open(path, "rb") as stream:
                    text = stream.read(MAX_MANIFEST_BYTES + 1)
            except (FileNotFoundError, NotADirectoryError) as error:
                why = f"has no {MANIFEST}: it was not made by glovewire, or not finished"
                if not folder.is_dir():
                    there = folder.exists()
                    why = "is a file; a folder made by glovewire is needed" if there else nothing_there(kind)
                raise ArtifactError(f"{folder} {why}") from error
        return cls.parse(text, path)

    @classmethod
    def parse(cls, text: bytes, where: str) -> Self:
        """Parse a manifest from `text`, the content of `where`; ArtifactError if it is damaged."""
        with damage_errors(f"{where} cannot be read as a manifest", KeyError, AttributeError, RecursionError):
            if len(text) > MAX_MANIFEST_BYTES:
                raise ValueError(f"more than {MAX_MANIFEST_BYTES >> 20} MiB")
            raw = json.loads(text.decode())
            files = {_inside(name): _file_entry(entry) for name, entry in raw["files"].items()}
            return cls(str(raw["kind"]), int(raw["schema"]), dict(raw["facts"]), files)


def nothing_there(kind: str = "") -> str:
    """Return the message for a path that does not exist: which command makes an artifact of this kind, or of any."""
    makers = [f"`glovewire {command}` makes a {what}" for of, (command, what) in MAKERS.items() if kind in ("", of)]
    return "does not exist" + (f": {', '.join(makers)}" if makers else "")


@contextmanager
def writing_artifact(
    folder: Path,
    kind: str,
    schema: int,
    facts: dict[str, Any],
    *,
    replace: bool = False,
    pause: Callable[[], None] = no_pause,
) -> Iterator[Path]:
    """Yield a scratch folder for an artifact's files; on success, write its manifest and move it to `folder`.

    `facts` may be changed until the block ends. With `replace`, an existing artifact is replaced. Raises OutputError if
    `folder` exists (without `replace`) or cannot be written. `pause` is called after each mebibyte of checksums.
    """
    if not replace:
        require_free(folder, what=kind)
    with output_errors(folder, kind):
        make_folder(folder.parent)
        with atomic(folder, replace_folder=replace) as scratch:
            scratch.mkdir()
            yield scratch
            seal(scratch, kind, schema, facts, pause=pause)


def seal(
    folder: Path,
    kind: str,
    schema: int,
    facts: Mapping[str, Any],
    only: Collection[str] | None = None,
    *,
    pause: Callable[[], None] = no_pause,
) -> Manifest:
    """Write and return the manifest of all files in `folder`, or only of those named in `only`.

    Raises OutputError if the manifest cannot be written, or a file cannot be read back.
    """
    paths = files_in(folder) if only is None else [folder / name for name in sorted(only)]
    with output_errors(folder, kind):
        files = {
            path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": file_sha256(path, pause)}
            for path in paths
            if path.name != MANIFEST
        }
    manifest = Manifest(kind, schema, dict(facts), files)
    write_text_atomically(folder / MANIFEST, json.dumps(vars(manifest), indent=1, sort_keys=True) + "\n")
    return manifest


def is_unreadable(error: BaseException | None) -> bool:
    """Return whether `error`, or its cause, says that a file exists but the system fails to read it.

    This happens on a failing disk. The file is neither missing nor damaged, and may be readable later.
    """
    while isinstance(error, ArtifactError):
        error = error.__cause__
    return isinstance(error, OSError) and not isinstance(error, FileNotFoundError | NotADirectoryError)


def is_there(path: str | Path) -> bool:
    """Return whether `path` exists; ArtifactError if the disk cannot be read."""
    with input_errors(path), suppress(FileNotFoundError, NotADirectoryError):
        os.stat(path)
        return True
    return False


def names_in(folder: str | Path) -> list[str]:
    """Return the names in a folder, [] if it does not exist. Raises ArtifactError if it cannot be read."""
    with input_errors(folder), suppress(FileNotFoundError, NotADirectoryError):
        return os.listdir(folder)
    return []


def read_piece(path: Path, offset: int, most: int) -> tuple[bytes, int]:
    """Return at most `most` bytes of a file, starting at `offset`, and the file's size.

    Raises BadRequest for an offset outside the file, ArtifactError if it cannot be read.
    """
    with input_errors(path), path.open("rb", buffering=0) as stream:
        size = os.fstat(stream.fileno()).st_size
        if not 0 <= offset <= size:
            raise BadRequest(f"{path.name} has {size} bytes, and byte {offset} was asked for")
        return os.pread(stream.fileno(), most, offset), size


def file_sha256(path: str | Path, pause: Callable[[], None] = no_pause) -> str:
    """Return the SHA-256 (hex) of a file's bytes, calling `pause` after each mebibyte."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while piece := stream.read(PIECE_BYTES):
            digest.update(piece)
            pause()
    return digest.hexdigest()


def _inside(name: str) -> str:
    """Return `name`; ValueError if this path leads out of the artifact's folder, because a manifest may be hostile."""
    parts = name.split("/")
    if not name.isprintable() or "\\" in name or any(part in ("", ".", "..") for part in parts):
        raise ValueError(f"{name[:80]!r} is not the name of a file in this folder")
    return name


def _file_entry(entry: Mapping[str, Any]) -> dict[str, Any]:
    size, digest = entry["bytes"], entry["sha256"]
    if type(size) is not int or not isinstance(digest, str):
        raise TypeError("a file needs its size and its SHA-256")
    return {"bytes": size, "sha256": digest}


def _check_file(path: str, entry: Mapping[str, Any], *, verify: bool) -> None:
    with input_errors(path):
        try:
            found = os.stat(path)
            if not stat.S_ISREG(found.st_mode):
                raise ArtifactError(f"{path} is not a file")
            if found.st_size != entry["bytes"]:
                raise ArtifactError(f"{path} has {found.st_size} bytes instead of {entry['bytes']}: {_AGAIN}")
            if verify and file_sha256(path) != entry["sha256"]:
                raise ArtifactError(f"{path} does not match its checksum: {_AGAIN}")
        except FileNotFoundError as error:
            raise ArtifactError(f"{path} is missing") from error


# ---- arrays


def load_array(path: Path, *, mapped: bool = False) -> Array:
    """Return the array in the .npy file `path`, in memory or `mapped` read-only; raises one of UNREADABLE.

    `numpy.load` would treat a file that begins like a zip archive as one, and leave it open. The file is always mapped
    first, so that a header that claims more bytes than the file has is refused before memory is allocated.
    """
    there = _mapped(path)
    if mapped:
        return there
    values: Array = np.fromfile(path, there.dtype, there.size, offset=there.offset)
    return values.reshape(there.shape, order="C" if there.flags.c_contiguous else "F")


def array_pieces(path: Path) -> Iterator[Array]:
    """Yield the rows of the array in the .npy file `path`, a piece at a time; raises one of UNREADABLE.

    They are read, not mapped: pages of a file count as memory of the process for as long as they are mapped.
    """
    there = _mapped(path)
    rows = max(1, PIECE_BYTES // max(there[:1].nbytes, 1))
    with path.open("rb", buffering=0) as stream:
        stream.seek(there.offset)
        for first in range(0, len(there), rows):
            piece = there[first : first + rows]
            if there.flags.c_contiguous:
                piece = np.fromfile(stream, there.dtype, piece.size).reshape(piece.shape)
            yield piece


def _mapped(path: Path) -> np.memmap[Any, Any]:
    """Map the .npy file `path`; given a `Path`, numpy would look up every folder above it on the disk."""
    there: np.memmap[Any, Any] = np.lib.format.open_memmap(os.fspath(path), mode="r")
    if not there.ndim:
        raise ValueError("a number instead of an array")
    return there


def save_array(path: Path, values: Array, pause: Callable[[], None] = no_pause) -> None:
    """Write `values` to `path` in the format of `numpy.save`, calling `pause` after each mebibyte."""
    values = np.ascontiguousarray(values)
    with path.open("wb") as stream:
        np.lib.format.write_array_header_1_0(stream, np.lib.format.header_data_from_array_1_0(values))
        flat = values.reshape(-1).view(np.uint8)
        for start in range(0, len(flat), PIECE_BYTES):
            stream.write(flat[start : start + PIECE_BYTES].data)
            pause()


def make_array(path: Path, shape: tuple[int, int], dtype: np.dtype[Any]) -> None:
    """Make the .npy file `path` of zeros as a sparse file, which takes no room on the disk yet."""
    with path.open("wb") as stream:
        about = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(stream, about)
        stream.truncate(stream.tell() + shape[0] * shape[1] * dtype.itemsize)


def put_columns(path: Path, columns: slice, values: Array) -> None:
    """Set some columns of the array in the .npy file `path`, made by `make_array`; the other columns stay."""
    at = _mapped(path).offset
    first = 0
    with path.open("r+b") as stream:
        for rows in array_pieces(path):
            rows[:, columns] = values[first : first + len(rows)]
            first += len(rows)
            stream.seek(at)
            stream.write(rows.data)
            at += rows.nbytes
