"""Work done so that those who work beside it hardly notice, or notice little when somebody waits for it.

A thread that writes a checkpoint takes a processor from those who train, page by page that the system has to find for
it. So it rests after each piece, as many times as long as the piece has kept a processor busy.
"""

from __future__ import annotations

import threading
import time

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
