"""Ctrl-C and SIGTERM, once, as an error that whoever has something to put in order ends with."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

from ..errors import Interrupted

SIGNALS = (signal.SIGINT, signal.SIGTERM)
AGAIN_S = 0.2
"""After so long a Signalled that nobody has heard of is raised once more."""


class Signalled(BaseException):
    """Interrupted while it is on its way: no `except` for errors on the way may take it for one of them."""


class _Handler:
    """What SIGNALS call in a block; `said` says which has come, and that one has."""

    said = ""

    def __call__(self, number: int, _: FrameType | None) -> None:
        """Raise Signalled, once."""
        self.said = f"interrupted by {signal.Signals(number).name}"
        for each in SIGNALS:  # the way out is bounded in time; nothing may cut it short
            signal.signal(each, signal.SIG_IGN)
        signal.signal(signal.SIGALRM, self._again)
        signal.setitimer(signal.ITIMER_REAL, AGAIN_S, AGAIN_S)
        raise Signalled

    @staticmethod
    def _again(*_: object) -> None:
        """Raise it unless it is on its way: then what runs now is a `finally`, an `except` or the end of a `with`."""
        error = sys.exception()
        while error is not None and not isinstance(error, Signalled):
            error = error.__context__
        if error is None:
            raise Signalled


@contextlib.contextmanager
def signals_raise(so: str = "") -> Iterator[None]:
    """SIGINT and SIGTERM raise Signalled in the block, once, and Interrupted behind it or behind a block around it.

    `so` is what the error says beside the signal's name. In another thread than the first nothing is raised. Where
    nobody can raise, as in a finaliser or in a callback of C code, it is lost, and raised again a moment later; what
    others make of it, such as an ImportError, is an interruption still.
    """
    elsewhere = threading.current_thread() is not threading.main_thread()
    if elsewhere or all(isinstance(signal.getsignal(number), _Handler) for number in SIGNALS):
        yield  # to put them back at its end would let a second signal cut the other block's way out short
        return
    before = {number: signal.getsignal(number) for number in (*SIGNALS, signal.SIGALRM)}
    handler, tell = _Handler(), sys.unraisablehook
    sys.unraisablehook = lambda lost: None if isinstance(lost.exc_value, Signalled) else tell(lost)
    for number in SIGNALS:
        signal.signal(number, handler)
    try:
        yield
    except BaseException as error:
        if handler.said and not isinstance(error, Interrupted):  # an inner block's may say more
            raise Interrupted(handler.said + so) from None
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.unraisablehook = tell
        for number, was in before.items():
            signal.signal(number, was)


def _exit(number: int, _: FrameType | None) -> None:
    """End this process now, in the words and with the status of every other command."""
    os.write(2, f"error: interrupted by {signal.Signals(number).name}\n".encode())
    os._exit(128 + number)


@contextlib.contextmanager
def signals_exit() -> Iterator[None]:
    """In the block SIGINT and SIGTERM end the process at once, for imports that lose errors or make others of them.

    There must be nothing to put in order yet. A signal that is ignored, or that ends the process anyway, stays so.
    """
    before = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: was for number in SIGNALS if callable(was := signal.getsignal(number))}
    for number in before:
        signal.signal(number, _exit)
    try:
        yield
    finally:
        for number, was in before.items():
            signal.signal(number, was)
