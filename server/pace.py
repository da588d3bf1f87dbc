"""Work that nobody waits for, done so that those who work beside it hardly notice.

A thread that writes a checkpoint takes a processor from those who train, page by page that the system has to find for
it. So it rests after each piece, as many times as long as the piece has kept a processor busy.
"""

from __future__ import annotations

import threading
import time

RESTS = 19
"""So a twentieth of one processor is taken."""


class Pace:
    """Of one thread that calls `begin` and `rest`; any other may say `hurry` or `ease`."""

    def __init__(self) -> None:
        self._awaited = threading.Event()
        self._since = 0.0

    def begin(self) -> None:
        """What this thread does from now on counts."""
        self._since = time.thread_time()

    def rest(self) -> None:
        """Rest for what was done since the last time, unless there is a hurry."""
        self._awaited.wait(RESTS * (time.thread_time() - self._since))
        self.begin()

    def hurry(self) -> None:
        """Somebody waits: rest no more."""
        self._awaited.set()

    def ease(self) -> None:
        """Nobody waits any more."""
        self._awaited.clear()
