"""Decides what SIGINT and SIGTERM do to a process, and ends it with its parent. No other module installs handlers.

A command's handlers are one of three kinds. `signals_raise`: an exception, for work that is put in order on its way
out. `stop_on_signals`: a call, for a loop that ends by itself. `signals_exit`: the end at once, for imports.
"""

import contextlib
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from types import FrameType

from ..errors import Interrupted

SIGNALS = (signal.SIGINT, signal.SIGTERM)
PARENT_VARIABLE = "GLOVEWIRE_PARENT"
AGAIN_S = 0.2
"""A Signalled that was lost is raised again after this time."""
_PR_SET_PDEATHSIG = 1


def _install(
    handler: Callable[[int, FrameType | None], None], numbers: Iterable[signal.Signals] = SIGNALS
) -> Callable[[], None]:
    """Install a handler; return the function that puts the previous ones back."""
    before = {number: signal.signal(number, handler) for number in numbers}

    def restore() -> None:
        for number, was in before.items():
            signal.signal(number, was)

    return restore


# ---- an exception


class Signalled(BaseException):
    """An interruption on its way out; no Exception, so that no handler of errors catches it."""


class _Raise:
    """The handler of `signals_raise`; `message` names the signal once it has come."""

    message = ""

    def __call__(self, number: int, _: FrameType | None) -> None:
        """Raise Signalled, once."""
        self.message = f"interrupted by {signal.Signals(number).name}"
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
    """Raise Signalled in the block at the first SIGINT or SIGTERM, and Interrupted behind it.

    Of nested blocks the outermost converts. `so` follows the signal's name in the error. Does nothing outside the main
    thread. Where an exception is lost, as in a finaliser or a callback of C code, it is raised again a moment later;
    another error made of it, such as an ImportError, still counts as the interruption.
    """
    elsewhere = threading.current_thread() is not threading.main_thread()
    if elsewhere or all(isinstance(signal.getsignal(number), _Raise) for number in SIGNALS):
        yield  # restoring handlers at its end would let a second signal cut the outer block's way out short
        return
    handler, report = _Raise(), sys.unraisablehook
    sys.unraisablehook = lambda lost: None if isinstance(lost.exc_value, Signalled) else report(lost)
    alarm = signal.getsignal(signal.SIGALRM)
    restore = _install(handler)
    try:
        yield
    except BaseException as error:
        if handler.message and not isinstance(error, Interrupted):  # an inner block's may say more
            raise Interrupted(handler.message + so) from None
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.unraisablehook = report
        restore()
        signal.signal(signal.SIGALRM, alarm)


# ---- a call


def stop_on_signals(stop: Callable[[], None]) -> Callable[[], None]:
    """Call `stop` at the first SIGINT or SIGTERM; a second one kills. Returns what puts the handlers back."""

    def first(_: int, __: FrameType | None) -> None:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        stop()

    return _install(first)


@contextlib.contextmanager
def signals_noted() -> Iterator[Callable[[], bool]]:
    """Yield a function that tells whether SIGINT or SIGTERM has come in the block; a second one kills."""
    came = threading.Event()
    restore = stop_on_signals(came.set)
    try:
        yield came.is_set
    finally:
        restore()


# ---- the end


def _exit(number: int, _: FrameType | None) -> None:
    """End this process now, with the line and the status of every other command."""
    os.write(2, f"error: interrupted by {signal.Signals(number).name}\n".encode())
    os._exit(128 + number)


@contextlib.contextmanager
def signals_exit() -> Iterator[None]:
    """End the process at once at SIGINT or SIGTERM in the block, for imports that lose or replace exceptions.

    There must be nothing to clean up yet. A signal that is ignored, or that ends the process anyway, stays so.
    """
    numbers: list[signal.Signals] = []
    if threading.current_thread() is threading.main_thread():
        numbers = [number for number in SIGNALS if callable(signal.getsignal(number))]
    restore = _install(_exit, numbers)
    try:
        yield
    finally:
        restore()


def exit_on_sigterm_as_first_process() -> None:
    """Handle SIGTERM as process 1 of a container, to which Linux delivers no signal without a handler."""
    if os.getpid() == 1:
        _install(lambda number, _: sys.exit(128 + number), [signal.SIGTERM])


# ---- parents and children


def parent_token(last_signal: signal.Signals) -> str:
    """Return the PARENT_VARIABLE of a child: this process's id, and the signal that the child gets when it ends."""
    return f"{os.getpid()}:{int(last_signal)}"


def die_with_parent() -> None:
    """End when the glovewire process that started this one does, however that ends, if one did."""
    parent, _, number = os.environ.pop(PARENT_VARIABLE, "").partition(":")
    try:
        pid, last_signal = int(parent), signal.Signals(int(number))
    except ValueError:  # unset, or not set by glovewire
        return
    if not _die_with(pid, last_signal):
        sys.exit(1)


def serve_parent(pid: int) -> None:
    """Set up a forked worker: its parent alone gets Ctrl-C; SIGTERM, or the death of the parent `pid`, ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if not _die_with(pid, signal.SIGKILL):
        os._exit(1)


def _die_with(pid: int, last_signal: signal.Signals) -> bool:
    """Ask Linux for a signal when the parent ends; return whether `pid` still is the parent.

    Elsewhere the parent's own clean-up, or a closed pipe, must do.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(last_signal))
    return os.getppid() == pid
