"""Ctrl-C and SIGTERM, once, as an error that whoever has something to put in order ends with."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

from .errors import Interrupted

SIGNALS = (signal.SIGINT, signal.SIGTERM)
AGAIN_S = 0.2
"""After so long a Signalled that nobody has heard of is raised once more."""


class Signalled(BaseException):
    """Interrupted while it is on its way: no `except` for errors on the way may take it for one of them."""


@contextlib.contextmanager
def signals_raise(so: str = "") -> Iterator[None]:
    """SIGINT and SIGTERM raise Signalled in the block, once, and Interrupted behind it or behind a block around it.

    `so` is what the error says beside the signal's name. In another thread than the first nothing is raised. Where
    nobody can raise, as in a finaliser or in a callback of C code, it is lost, and raised again a moment later.
    """
    elsewhere = threading.current_thread() is not threading.main_thread()
    if elsewhere or all(signal.getsignal(number) is _interrupt for number in SIGNALS):
        yield  # to put them back at its end would let a second signal cut the other block's way out short
        return
    before = {number: signal.getsignal(number) for number in (*SIGNALS, signal.SIGALRM)}
    tell = sys.unraisablehook
    sys.unraisablehook = lambda lost: None if isinstance(lost.exc_value, Signalled) else tell(lost)
    for number in SIGNALS:
        signal.signal(number, _interrupt)
    try:
        yield
    except Interrupted:  # an inner block's, which may say more
        raise
    except BaseException as error:
        if signalled := _behind(error):
            raise Interrupted(f"{signalled}{so}") from None
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.unraisablehook = tell
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, _: FrameType | None) -> None:
    what = f"interrupted by {signal.Signals(number).name}"
    for each in SIGNALS:  # the way out is bounded in time; nothing may cut it short
        signal.signal(each, signal.SIG_IGN)

    def again(*_: object) -> None:
        if not _behind(sys.exception()):  # else this runs in a `finally`, an `except` or the end of a `with` of it
            raise Signalled(what)

    signal.signal(signal.SIGALRM, again)
    signal.setitimer(signal.ITIMER_REAL, AGAIN_S, AGAIN_S)
    raise Signalled(what)


def _behind(error: BaseException | None) -> Signalled | None:
    """The Signalled that an error is, came up on the way of, or was made of, as Python does while it makes a class."""
    while error is not None and not isinstance(error, Signalled):
        error = error.__context__
    return error
