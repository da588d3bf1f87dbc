"""Writes checkpoints while others train: in a thread of its own, one after the other, at ease unless somebody waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from glovewire.common.errors import ArtifactError, GlovewireError

from . import files as checkpoint
from . import generations
from .cuts import Snapshot


@dataclass(frozen=True)
class Written:
    """A checkpoint that is on disk after `seconds`, or the error for which it is not; old ones are `gone` then."""

    label: str
    seconds: float
    error: GlovewireError | None
    gone: Sequence[str] = ()


class Writer:
    """Writes one shard's snapshots into `run` and keeps the last `keep` automatic ones; calls `done` after each."""

    def __init__(self, run: Path, keep: int, done: Callable[[], None]) -> None:
        self._run, self._keep, self._done = run, keep, done
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._pace = Pace()
        self._writing: dict[str, Future[Written]] = {}

    def begin(self, snapshot: Snapshot) -> None:
        """Write a snapshot once those that were begun before are on disk: they hurry from now on."""
        if self._writing:
            self._pace.hurry()
        self._writing[snapshot.label] = self._thread.submit(self._write, snapshot)

    def step_out(self) -> None:
        """Rest less until all that was begun is on disk: somebody has asked."""
        self._pace.step_out()

    def written(self) -> list[Written]:
        """What has ended since the last call; raises what is no GlovewireError."""
        found = []
        for label in [label for label, future in self._writing.items() if future.done()]:
            future = self._writing.pop(label)
            error = future.exception()
            if error is not None and not isinstance(error, GlovewireError):
                raise error
            found.append(Written(label, 0.0, error) if error else future.result())
        if not self._writing:
            self._pace.ease()
        return found

    def finish(self) -> list[Written]:
        """The same once nothing is being written any more."""
        self._pace.hurry()
        for future in self._writing.values():
            future.exception()
        return self.written()

    def close(self) -> None:
        """Write what was begun, without rest, and end the thread; twice is fine."""
        self._pace.hurry()
        self._thread.shutdown()

    def _write(self, snapshot: Snapshot) -> Written:
        """Write a checkpoint and remove old ones."""
        began = time.monotonic()
        self._pace.begin()
        try:
            checkpoint.write(self._run, snapshot, self._pace.rest)
            taken_s = time.monotonic() - began
            gone = self._prune(int(snapshot.facts["shard"]), int(snapshot.facts["shards"]))
            return Written(snapshot.label, taken_s, None, gone)
        finally:
            self._done()

    def _prune(self, shard: int, shards: int) -> list[str]:
        """Remove old checkpoints, if it can be read which one the newest generation began from; their labels."""
        try:
            generation = generations.newest(self._run)
        except ArtifactError:
            return []
        return checkpoint.prune(self._run, shard, shards, self._keep, generation.label if generation else "")


# ---- Work done so that those who work beside it hardly notice, or notice little when somebody waits for it.
#
# A thread that writes a checkpoint takes a processor from those who train, page by page that the system has to find for
# it. So it rests after each piece, as many times as long as the piece has kept a processor busy.
#

RESTS, RESTS_WHEN_ASKED = 19, 11
"""So a twentieth of one processor is taken, or a twelfth."""


class Pace:
    """Of one thread that calls `begin` and `rest`; any other may say how many rests there are to be."""

    def __init__(self) -> None:
        self._rests: float = RESTS
        self._wake = threading.Event()
        self._since = 0.0

    def begin(self) -> None:
        """What this thread does from now on counts."""
        self._since = time.thread_time()

    def rest(self) -> None:
        """Rest for what was done since the last time; the rest that is under way ends when there are to be fewer."""
        self._wake.wait(self._rests * (time.thread_time() - self._since))
        self._wake.clear()
        self.begin()

    def step_out(self) -> None:
        """Somebody has asked for it and waits, and others go on beside: rest less."""
        self._at_most(RESTS_WHEN_ASKED)

    def hurry(self) -> None:
        """Nothing goes on without it: rest no more."""
        self._at_most(0)

    def ease(self) -> None:
        """Nobody waits any more."""
        self._rests = RESTS

    def _at_most(self, rests: float) -> None:
        if rests < self._rests:
            self._rests = rests
            self._wake.set()
