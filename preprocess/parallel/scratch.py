"""The folder where a run keeps what it has done so far, beside the dataset to be.

It is locked while a run is alive, says which job it belongs to, and holds committed pieces: a piece counts once its
`.json` is there, and files of pieces that never came so far are swept away. Knows nothing of what the files hold.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glovewire.common.errors import OutputError
from glovewire.common.storage.artifacts import atomic

SEGMENT, COUNTED, PART = "segment", "counted", "part"
"""Kinds of pieces: segments of the stream, counted pairs, and parts of the matrix."""
_JOB, _LOCK = "job", "lock"


@dataclass(frozen=True)
class Scratch:
    """The run's folder; pieces are named KIND-NAME."""

    folder: Path

    def kept(self, kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Name and facts of every committed piece of a kind, in the order of names."""
        for path in sorted(self.folder.glob(f"{kind}-*.json")):
            yield path.stem, json.loads(path.read_text(encoding="utf-8"))

    def commit(self, name: str, facts: dict[str, Any]) -> None:
        """Make a piece count."""
        with atomic(self.folder / f"{name}.json", flush=False) as scratch:
            scratch.write_text(json.dumps(facts), encoding="utf-8")

    def sweep(self, kind: str) -> None:
        """Remove files of pieces of this kind that were not committed."""
        names = {name for name, _ in self.kept(kind)}
        for path in (*self.folder.glob(f"{kind}-*"), *self.folder.glob(f".{kind}-*")):
            if path.name.split(".")[0] not in names:  # "" for `.NAME.PID.partial`
                path.unlink()

    def drop(self, kind: str) -> None:
        """Remove everything of a kind."""
        for path in self.folder.glob(f"{kind}-*"):
            path.unlink()


@contextmanager
def opened(out: Path, job: dict[str, Any], *, resume: bool) -> Iterator[Scratch]:
    """The scratch folder of the dataset `out`: as left by the same job when resuming, otherwise empty.

    It is removed when the block ends well, and kept when it does not, unless the caller drops it with `discard`.
    Raises OutputError if another live process has it.
    """
    folder = place(out)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOCK).open("a") as lock:
        _lock(lock.fileno(), out)
        text = json.dumps(job, sort_keys=True, default=str)
        record = folder / f"{_JOB}.json"
        if not (resume and record.exists() and record.read_text(encoding="utf-8") == text):
            _empty(folder)
            record.write_text(text, encoding="utf-8")
        yield Scratch(folder)
        discard(out)


def place(out: Path) -> Path:
    """Where the scratch folder of `out` is."""
    return out.parent / f".{out.name}.preprocess"


def discard(out: Path) -> None:
    """Remove the scratch folder."""
    shutil.rmtree(place(out), ignore_errors=True)


def _lock(handle: int, out: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise OutputError(f"another `glovewire preprocess` is writing {out} at the moment") from error


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.name != _LOCK:
            os.unlink(path)
