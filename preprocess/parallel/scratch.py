"""Keep the intermediate results of a run in a scratch folder beside the dataset, so that the run can be resumed.

The folder is locked while a run is alive, records which job it belongs to, and holds pieces. A piece is committed once
its `.json` file exists; files of pieces that were never committed are removed.
"""

import fcntl
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glovewire.common.errors import GlovewireError, Interrupted, OutputError, ProcessDied
from glovewire.common.storage.artifacts import atomic

SEGMENT, LEARNED, COUNTED, PART = "segment", "learned", "counted", "part"
"""Kinds of pieces: segments of the word stream, what was learned from them, counted pairs, parts of the matrix."""
_LOCK, _RECORD = "lock", "job.json"


@dataclass(frozen=True)
class ScratchFolder:
    """Scratch folder of a run; pieces are named KIND-NAME."""

    folder: Path

    def committed(self, kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the name and facts of every committed piece of a kind, in the order of names."""
        for path in sorted(self.folder.glob(f"{kind}-*.json")):
            yield path.stem, json.loads(path.read_text(encoding="utf-8"))

    def facts(self, name: str) -> dict[str, Any] | None:
        """Return the facts of a piece, or None if it has not been committed."""
        return dict(self.committed(name.partition("-")[0])).get(name)

    def commit(self, name: str, facts: dict[str, Any]) -> None:
        """Commit a piece with its facts."""
        with atomic(self.folder / f"{name}.json", flush=False) as scratch:
            scratch.write_text(json.dumps(facts), encoding="utf-8")

    def sweep(self, kind: str) -> None:
        """Remove the files of pieces of a kind that were not committed."""
        names = {name for name, _ in self.committed(kind)}
        for path in (*self.folder.glob(f"{kind}-*"), *self.folder.glob(f".{kind}-*")):
            if path.name.split(".")[0] not in names:  # "" for `.NAME.PID.partial`
                path.unlink()


@contextmanager
def locked(out: Path) -> Iterator[Path]:
    """Lock the scratch folder of the dataset `out` and yield it; one that stays empty is removed.

    Raises OutputError, and removes nothing, if another live process holds the lock.
    """
    folder = scratch_path(out)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOCK).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise OutputError(
                f"another `glovewire preprocess` is writing {out}: wait for it or name another --out"
            ) from error
        try:
            yield folder
        finally:
            if [path.name for path in folder.glob("*")] == [_LOCK]:
                shutil.rmtree(folder)


@contextmanager
def open_scratch(out: Path, job: dict[str, Any], *, resume: bool) -> Iterator[ScratchFolder]:
    """Open and lock the scratch folder of the dataset `out`; empty it unless `resume` is set and it records `job`.

    It and the downloaded text are removed when the block succeeds, and kept after an interruption or the death of a
    process. Other faults discard them unless `resume` is set. Raises as `locked` does.
    """
    with locked(out) as folder:
        try:
            _begin(folder, json.dumps(job, sort_keys=True, default=str), resume=resume)
            yield ScratchFolder(folder)
        except (Interrupted, ProcessDied):
            raise
        except (GlovewireError, OSError):
            if not resume:
                _discard(out)
            raise
        _discard(out)


def _begin(folder: Path, job: str, *, resume: bool) -> None:
    """Empty the folder unless `resume` is set and it records `job`."""
    record = folder / _RECORD
    if not (resume and record.exists() and record.read_text(encoding="utf-8") == job):
        record.unlink(missing_ok=True)  # first, so that no run continues from incomplete files
        for path in folder.iterdir():
            if path.name != _LOCK:
                path.unlink()
        record.write_text(job, encoding="utf-8")


def scratch_path(out: Path) -> Path:
    """Return the path of the scratch folder of `out`."""
    return out.parent / f".{out.name}.preprocess"


def texts_path(out: Path) -> Path:
    """Return the path of the folder of text that is downloaded for `out`."""
    return out.parent / f".{out.name}.texts"


def _discard(out: Path) -> None:
    (scratch_path(out) / _RECORD).unlink(missing_ok=True)  # first, as in `_begin`
    for folder in (scratch_path(out), texts_path(out)):
        shutil.rmtree(folder, ignore_errors=True)
