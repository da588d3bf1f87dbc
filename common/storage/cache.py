"""Keep copies of artifacts on this machine's disk: each is downloaded once, and all processes use it.

A cache keeps each artifact in a folder named by its checksum, with a lock file beside it. A process holds an exclusive
lock while it downloads the artifact, and a shared lock while it uses it. An artifact that is not locked may be removed.
"""

import contextlib
import fcntl
import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

from .. import errors, log
from .artifacts import MANIFEST, Manifest, files_in, output_errors

SCRATCH, LOCK = ".partial", ".lock"
INCOMPLETE = ".blocks"
"""Suffix of an artifact that lacks some of its files on purpose."""
AGAIN_S = 0.05
OURS = re.compile(rf"[0-9a-f]{{64}}({re.escape(INCOMPLETE)})?({re.escape(SCRATCH)})?", re.ASCII)
"""Names of artifacts and of unfinished ones: the cache may be a folder that also contains other things."""

T = TypeVar("T")
Files = Mapping[str, Mapping[str, Any]]
Open = Callable[[Path, bool], T]
"""Opens an artifact, and checks its files if the second argument is true; ArtifactError if it is damaged."""

logger = logging.getLogger(__name__)


class Source(Protocol):
    """Where artifacts come from: servers of a run, or a store."""

    def manifest(self, folder: str = "") -> tuple[Manifest, bytes]:
        """Return the manifest of the artifact in `folder` (ending in a slash), and its text; ArtifactError."""

    def fetch(self, name: str, size: int, path: Path) -> None:
        """Write the file `name`, which has `size` bytes, to `path`."""


def make_cache(cache: Path) -> None:
    """Make the folder of a cache unless it exists; OutputError if it cannot be used."""
    with output_errors(cache, "cache"):
        if cache.exists() and not cache.is_dir():
            raise errors.OutputError(f"cache {cache} is a file: name another place or remove it")
        cache.mkdir(parents=True, exist_ok=True)


@contextlib.contextmanager
def cached(
    source: Source,
    cache: Path,
    cache_bytes: int,
    opens: Open[T],
    *,
    verify: bool = True,
    without: Collection[str] = (),
) -> Iterator[T]:
    """Yield what `opens` returns for the artifact of `source`, which is downloaded unless `cache` has it already.

    Files named in `without` are not downloaded, and the artifact is kept separately from a whole one.
    A download is always checked, a cached artifact only with `verify`. While the cache takes more than `cache_bytes`,
    other artifacts are removed, least recently used first; this one is removed at the end if it alone takes more.
    Raises OutputError if the disk is full, ArtifactError if the download is not the artifact that `source` announced.
    """
    manifest, text = source.manifest()
    files = {name: entry for name, entry in manifest.files.items() if name not in without}
    needed = sum(entry["bytes"] for entry in files.values())
    make_cache(cache)
    folder = cache / f"{manifest.checksum}{INCOMPLETE if without else ''}"
    try:
        with locked(folder) as lock:
            with output_errors(cache, "cache"):
                while (opened := _open(folder, lock, opens, verify=verify)) is None:
                    if not take_alone(lock):  # another process downloads it, and then shares the lock while it uses it
                        time.sleep(AGAIN_S)
                    elif not folder.exists():  # otherwise another process has downloaded it meanwhile
                        if needed > cache_bytes:
                            warn_too_small(cache, needed, cache_bytes, "it is removed at the end")
                        remove_oldest(cache, cache_bytes - needed)
                        require_free(cache, needed)
                        _bring(source, manifest.kind, files, text, folder, opens)
                        verify = False
                os.utime(folder)
            yield opened
    finally:
        if needed > cache_bytes:
            _remove_unused(folder)


def shown_name(folder: Path) -> str:
    """Return the name of an artifact's folder for people: in a cache, the beginning of its checksum."""
    name = folder.resolve().name
    return name[:12] if OURS.fullmatch(name) else name


def _open(folder: Path, lock: int, opens: Open[T], *, verify: bool) -> T | None:
    """Open an artifact of the cache, sharing `lock`; return None if it is missing, or damaged and so removed."""
    fcntl.flock(lock, fcntl.LOCK_SH)
    try:
        return opens(folder, verify)
    except errors.ArtifactError as error:
        if folder.exists():
            logger.warning(log.line("damaged", why=error, then="it is downloaded again"))
            shutil.rmtree(folder, ignore_errors=True)
        return None


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[int]:
    """Yield the open lock file of an artifact in the cache."""
    path = folder.with_name(f"{folder.name.removesuffix(SCRATCH)}{LOCK}")
    with output_errors(path):
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        yield lock
    finally:
        os.close(lock)


def take_alone(lock: int) -> bool:
    """Lock an open lock file exclusively and return True; False if another process has it."""
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


# ---- making room


def remove_oldest(cache: Path, allowed: int) -> int:
    """Remove artifacts that are not in use, least recently used first, while all take more than `allowed` bytes.

    Return the size of the remaining ones in bytes.
    """
    sizes = {path: _size(path) for path in cache.iterdir() if OURS.fullmatch(path.name) and path.is_dir()}
    for path in sorted(sizes, key=_used_at):
        if sum(sizes.values()) > max(allowed, 0) and _remove_unused(path):
            del sizes[path]
    return sum(sizes.values())


def warn_too_small(cache: Path, needed: int, allowed: int, then: str) -> None:
    """Log that `cache` may not take as many bytes as are needed, and the consequence `then`."""
    logger.warning(log.line("cache_too_small", needed=needed, allowed=allowed, cache=cache, then=then))


def require_free(cache: Path, needed: int) -> None:
    """Raise OutputError unless the disk of `cache` has room for `needed` bytes."""
    if (free := shutil.disk_usage(cache).free) < needed:
        raise errors.OutputError(
            f"{needed:,} bytes are needed, and {cache} has {free:,} left: make room or name another folder with --cache"
        )


def _used_at(folder: Path) -> float:
    """Return when a folder was last used, 0 if another process has removed it meanwhile."""
    with contextlib.suppress(FileNotFoundError):
        return folder.stat().st_mtime
    return 0.0


def _size(folder: Path) -> int:
    """Return the bytes of the files in a folder, which another process may remove meanwhile."""
    size = 0
    with contextlib.suppress(FileNotFoundError):
        for file in files_in(folder):
            with contextlib.suppress(FileNotFoundError):
                size += file.stat().st_size
    return size


def _remove_unused(folder: Path) -> bool:
    """Remove an artifact, or a part of one, from the cache unless a process uses it; return whether it was removed."""
    with locked(folder) as lock:
        if not take_alone(lock):
            return False
        shutil.rmtree(folder, ignore_errors=True)
        logger.info(log.line("removed", folder=folder))
        return True


# ---- downloading


def _bring(source: Source, kind: str, files: Files, manifest: bytes, folder: Path, opens: Open[T]) -> None:
    """Download `files` of an artifact to `folder`, except those that an interrupted attempt has completed already."""
    facts = {"kind": kind, "artifact": folder.name[:12], "bytes": sum(entry["bytes"] for entry in files.values())}
    scratch = folder.with_name(f"{folder.name}{SCRATCH}")
    resumed, began = scratch.exists(), time.monotonic()
    logger.info(log.line("downloads", **facts))
    with output_errors(scratch, kind):
        scratch.mkdir(exist_ok=True)
        for name, entry in files.items():
            path = scratch / name
            if not path.exists() or path.stat().st_size != entry["bytes"]:
                path.parent.mkdir(parents=True, exist_ok=True)
                unfinished = path.with_name(f"{path.name}{SCRATCH}")
                source.fetch(name, entry["bytes"], unfinished)
                unfinished.rename(path)
        (scratch / MANIFEST).write_bytes(manifest)
    try:
        opens(scratch, True)
    except errors.ArtifactError:
        shutil.rmtree(scratch, ignore_errors=True)
        if resumed:  # after a power failure, files may lack the last writes: all are downloaded again
            return
        raise
    with output_errors(folder, kind):
        scratch.rename(folder)
    logger.info(log.line("downloaded", **facts, seconds=f"{time.monotonic() - began:.1f}"))
