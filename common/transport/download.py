"""Bring the dataset of a run from its shards to this machine: a process needs no copy of its own.

A cache keeps each dataset in a folder that has its checksum as name, with a lock file beside it. A process holds the
lock exclusively while it downloads, and shares it while it trains; a dataset whose lock is free may be removed.
"""

import contextlib
import fcntl
import logging
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from .. import errors, log
from ..storage.artifacts import MANIFEST, Manifest, files_in, output_errors
from ..storage.dataset import Dataset
from .client import RequestClient
from .files import fetch, fetch_manifest

SCRATCH = ".partial"
LOCK = ".lock"
OURS = re.compile(rf"[0-9a-f]{{64}}({re.escape(SCRATCH)})?", re.ASCII)
"""Names of datasets and of unfinished ones: the cache may be a folder that holds other things."""

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def dataset_of_run(client: RequestClient, cache: Path, cache_bytes: int, *, verify: bool = True) -> Iterator[Dataset]:
    """Yield the dataset of the run that `client` reaches; download it unless `cache` has it already.

    What is downloaded is always checked, a dataset that was there with `verify`. Others are removed, those used longest
    ago first, while all take more than `cache_bytes`; so is this one at the end, if it alone takes more. Raises
    OutputError if the disk is full, ArtifactError if what the shards send is no dataset.
    """
    manifest, text = fetch_manifest(client)
    needed = sum(entry["bytes"] for entry in manifest.files.values())
    with output_errors(cache, "cache"):
        cache.mkdir(parents=True, exist_ok=True)
    folder = cache / manifest.checksum
    try:
        with _lock(folder) as lock:
            while (dataset := _open(folder, lock, verify=verify)) is None:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not folder.exists():  # otherwise another process has downloaded it meanwhile
                    _make_room(cache, cache_bytes - needed, needed)
                    _download(client, manifest, text, folder)
                    verify = False
            os.utime(folder)
            yield dataset
    finally:
        if needed > cache_bytes:
            _remove_unused(folder)


def _open(folder: Path, lock: int, *, verify: bool) -> Dataset | None:
    """Open a dataset of the cache, which `lock` keeps there; None if it is missing or damaged, and then removed."""
    fcntl.flock(lock, fcntl.LOCK_SH)
    try:
        return Dataset.open(folder, verify=verify)
    except errors.ArtifactError as error:
        if folder.exists():
            logger.warning(log.line("damaged", why=error, then="it is downloaded again"))
            shutil.rmtree(folder, ignore_errors=True)
        return None


# ---- the cache


@contextlib.contextmanager
def _lock(folder: Path) -> Iterator[int]:
    """Yield the open lock file of a dataset in the cache."""
    path = folder.with_suffix(LOCK)
    with output_errors(path):
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        yield lock
    finally:
        os.close(lock)


def _make_room(cache: Path, allowed: int, needed: int) -> None:
    """Remove datasets, beginning with those used longest ago, until the others take at most `allowed` bytes."""
    if allowed < 0:
        then = "the dataset is removed at the end"
        logger.warning(log.line("cache_too_small", needed=needed, allowed=needed + allowed, cache=cache, then=then))
    there = [path for path in cache.iterdir() if OURS.fullmatch(path.name) and path.is_dir()]
    there.sort(key=lambda path: path.stat().st_mtime)
    sizes = {path: _size(path) for path in there}
    for path in there:
        if sum(sizes.values()) > max(allowed, 0) and _remove_unused(path):
            del sizes[path]
    if (free := shutil.disk_usage(cache).free) < needed:
        raise errors.OutputError(
            f"the dataset takes {needed:,} bytes, and {cache} has {free:,} left: "
            "make room or name another folder with --cache"
        )


def _size(folder: Path) -> int:
    """Return the bytes of the files in a folder, which another process may remove meanwhile."""
    size = 0
    for file in files_in(folder):
        with contextlib.suppress(FileNotFoundError):
            size += file.stat().st_size
    return size


def _remove_unused(folder: Path) -> bool:
    """Remove a dataset, or a part of one, from the cache unless a process uses it; return whether it was removed."""
    with _lock(folder) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        shutil.rmtree(folder, ignore_errors=True)
        logger.info(log.line("removed", dataset=folder))
        return True


# ---- the download


def _download(client: RequestClient, manifest: Manifest, text: bytes, folder: Path) -> None:
    """Download a dataset to `folder`. The files that an interrupted download has completed are not asked for again."""
    scratch = folder.with_name(f"{folder.name}{SCRATCH}")
    resumed = scratch.exists()
    needed = sum(entry["bytes"] for entry in manifest.files.values())
    began = client.now()
    logger.info(log.line("downloads", dataset=folder.name[:12], bytes=needed))
    with output_errors(scratch, "dataset"):
        scratch.mkdir(exist_ok=True)
        for name, entry in manifest.files.items():
            path = scratch / name
            if not path.exists() or path.stat().st_size != entry["bytes"]:
                path.parent.mkdir(parents=True, exist_ok=True)
                unfinished = path.with_name(f"{path.name}{SCRATCH}")
                fetch(client, name, entry["bytes"], unfinished)
                unfinished.rename(path)
        (scratch / MANIFEST).write_bytes(text)
    try:
        Dataset.open(scratch)
    except errors.ArtifactError:
        shutil.rmtree(scratch, ignore_errors=True)
        if resumed:  # after a power failure, files may lack what was written last: all are downloaded again
            return
        raise
    with output_errors(folder, "dataset"):
        scratch.rename(folder)
    logger.info(log.line("downloaded", dataset=folder.name[:12], bytes=needed, seconds=f"{client.now() - began:.1f}"))
