"""Write checkpoints in a separate thread, one after the other, throttled to leave the CPU to training."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

from glovewire.common.errors import ArtifactError, GlovewireError
from glovewire.common.runtime.descriptors import patiently

from . import files, generations
from .cuts import Snapshot, WriteResult

PAUSE_RATIO, PAUSE_RATIO_AWAITED = 19.0, 11.0
"""Seconds of pause per CPU second of the checkpoint thread, which takes 5 % of a core, 8 % while a client waits."""


class CheckpointWriter:
    """Writes one shard's snapshots into `run` and keeps the last `keep` automatic ones; calls `done` after each."""

    def __init__(self, run: Path, keep: int, done: Callable[[], None]) -> None:
        self._run, self._keep, self._done = run, keep, done
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._throttle = Throttle()
        self._writing: dict[str, Future[WriteResult]] = {}

    def begin(self, snapshot: Snapshot) -> None:
        """Queue a snapshot; if others are queued, write without pauses until the queue is empty."""
        if self._writing:
            self._throttle.at_most(0)
        self._writing[snapshot.label] = self._thread.submit(patiently, partial(self._write, snapshot))

    def speed_up(self) -> None:
        """Pause less until everything queued is on disk, because a client waits for it."""
        self._throttle.at_most(PAUSE_RATIO_AWAITED)

    def results(self) -> list[WriteResult]:
        """Return the writes that ended since the last call; raise the error of a write if it is no GlovewireError."""
        found = []
        for label in [label for label, future in self._writing.items() if future.done()]:
            future = self._writing.pop(label)
            error = future.exception()
            if error is not None and not isinstance(error, GlovewireError):
                raise error
            found.append(WriteResult(label, error=error) if error else future.result())
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
        """Write everything queued without pauses, and end the thread; may be called twice."""
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
            return WriteResult(snapshot.label, seconds, removed)
        finally:
            self._done()

    def _prune(self, shard: int, shards: int) -> list[str]:
        """Remove old checkpoints, none if the disk does not tell which are needed; return the labels removed."""
        try:
            generation = generations.newest(self._run)
            return files.prune(self._run, shard, shards, self._keep, generation.label if generation else "")
        except ArtifactError:
            return []


class Throttle:
    """Pauses one thread, which calls `begin` and `pause`; other threads may shorten its pauses, even the current one.

    Writing takes CPU time from training, much of it in the system, which finds memory pages for the file. So the thread
    pauses after each piece, for a multiple of the CPU time that the piece took.
    """

    def __init__(self, wake: threading.Event | None = None) -> None:
        self._ratio = PAUSE_RATIO
        self._wake = wake or threading.Event()
        self._since = 0.0

    def begin(self) -> None:
        """Measure the CPU time of the calling thread from now on."""
        self._since = time.thread_time()

    def pause(self) -> None:
        """Pause for a multiple, the current ratio, of the CPU time since the last `begin` or `pause`."""
        self._wake.wait(self._ratio * (time.thread_time() - self._since))
        self._wake.clear()
        self.begin()

    def at_most(self, ratio: float) -> None:
        """Pause at most `ratio` times the CPU time until `reset`."""
        if ratio < self._ratio:
            self._ratio = ratio
            self._wake.set()

    def reset(self) -> None:
        """Return to the ratio PAUSE_RATIO."""
        self._ratio = PAUSE_RATIO
