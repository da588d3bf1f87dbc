"""Write checkpoints in a thread of their own, one after the other, throttled so that training hardly notices."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from glovewire.common.errors import ArtifactError, GlovewireError

from . import files, generations
from .cuts import Snapshot

PAUSE_RATIO, PAUSE_RATIO_AWAITED = 19.0, 11.0
"""Pause per CPU time of the checkpoint thread: it takes 5 % of a core, or 8 % while a client waits."""


@dataclass(frozen=True)
class WriteResult:
    """A checkpoint that is on disk after `seconds`, or the error that prevented it; `removed` are older labels."""

    label: str
    seconds: float
    error: GlovewireError | None
    removed: Sequence[str] = ()


class CheckpointWriter:
    """Writes one shard's snapshots into `run` and keeps the last `keep` automatic ones; calls `done` after each."""

    def __init__(self, run: Path, keep: int, done: Callable[[], None]) -> None:
        self._run, self._keep, self._done = run, keep, done
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._throttle = Throttle()
        self._writing: dict[str, Future[WriteResult]] = {}

    def begin(self, snapshot: Snapshot) -> None:
        """Queue a snapshot; those queued before are written without pauses from now on."""
        if self._writing:
            self._throttle.at_most(0)
        self._writing[snapshot.label] = self._thread.submit(self._write, snapshot)

    def speed_up(self) -> None:
        """Pause less until everything queued is on disk, because a client waits for it."""
        self._throttle.at_most(PAUSE_RATIO_AWAITED)

    def results(self) -> list[WriteResult]:
        """Return what has ended since the last call; raise what is not a GlovewireError."""
        found = []
        for label in [label for label, future in self._writing.items() if future.done()]:
            future = self._writing.pop(label)
            error = future.exception()
            if error is not None and not isinstance(error, GlovewireError):
                raise error
            found.append(WriteResult(label, 0.0, error) if error else future.result())
        if not self._writing:
            self._throttle.reset()
        return found

    def finish(self) -> list[WriteResult]:
        """Write everything queued without pauses, and return the `results`."""
        self._throttle.at_most(0)
        for future in self._writing.values():
            future.exception()
        return self.results()

    def close(self) -> None:
        """Write everything queued without pauses, and end the thread; twice is fine."""
        self._throttle.at_most(0)
        self._thread.shutdown()

    def _write(self, snapshot: Snapshot) -> WriteResult:
        """Write a checkpoint and remove old ones."""
        began = time.monotonic()
        self._throttle.begin()
        try:
            files.write(self._run, snapshot, self._throttle.pause)
            seconds = time.monotonic() - began
            removed = self._prune(int(snapshot.facts["shard"]), int(snapshot.facts["shards"]))
            return WriteResult(snapshot.label, seconds, None, removed)
        finally:
            self._done()

    def _prune(self, shard: int, shards: int) -> list[str]:
        """Remove old checkpoints, unless it is unreadable which one the newest generation began from."""
        try:
            generation = generations.newest(self._run)
        except ArtifactError:
            return []
        return files.prune(self._run, shard, shards, self._keep, generation.label if generation else "")


class Throttle:
    """Pauses of one thread, which calls `begin` and `pause`; any other may shorten them, also one under way.

    Writing takes a core from those who train, page by page that the system must find for it. So the thread pauses after
    each piece, for a multiple of the CPU time that the piece took.
    """

    def __init__(self, wake: threading.Event | None = None) -> None:
        self._ratio = PAUSE_RATIO
        self._wake = wake or threading.Event()
        self._since = 0.0

    def begin(self) -> None:
        """Count the CPU time of this thread from now on."""
        self._since = time.thread_time()

    def pause(self) -> None:
        """Pause for the CPU time since the last call."""
        self._wake.wait(self._ratio * (time.thread_time() - self._since))
        self._wake.clear()
        self.begin()

    def at_most(self, ratio: float) -> None:
        """Pause at most `ratio` times the CPU time until `reset`."""
        if ratio < self._ratio:
            self._ratio = ratio
            self._wake.set()

    def reset(self) -> None:
        """Pause in full again."""
        self._ratio = PAUSE_RATIO
