"""Handle SIGINT and SIGTERM, and end a process when its parent ends. No other module installs signal handlers.

A command handles signals in one of three ways. `signals_raise` raises an exception, so that the work cleans up.
`stop_on_signals` calls a function, for a loop that then ends by itself. `signals_exit` ends the process at once, for
imports.
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
"""Interval at which a Signalled that was swallowed is raised again."""
_PR_SET_PDEATHSIG = 1


@contextlib.contextmanager
def _restored(numbers: Iterable[signal.Signals] = SIGNALS) -> Iterator[None]:
    """Restore the handlers of signals `numbers` at the end of the block, which may install others."""
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        yield
    finally:
        for number, was in before.items():
            signal.signal(number, was)


# ---- raising an exception


class Signalled(BaseException):
    """Raised by a signal in a `signals_raise` block; a BaseException, so that `except Exception` does not catch it."""


_held = 0
"""How many `signals_held` blocks the main thread is in."""


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
    """Hold back Signalled inside the block; one that is due is raised within AGAIN_S after its end.

    For code that must not be interrupted half-way. An example is `Popen.poll`: an exception between the acquisition of
    its lock and its `try` leaves the lock held forever.
    """
    global _held
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _held += 1
    try:
        yield
    finally:
        _held -= 1


class _Raise:
    """The handler of `signals_raise`; `message` names the signal received, "" before that."""

    message = ""

    def __init__(self) -> None:
        self._process = os.getpid()

    def __call__(self, number: int, _: FrameType | None) -> None:
        """Ignore further signals and raise Signalled; exit if just forked, since the parent does the clean-up."""
        if os.getpid() != self._process:
            os._exit(128 + number)
        self.message = f"interrupted by {signal.Signals(number).name}"
        for each in SIGNALS:  # clean-up takes a bounded time; nothing may interrupt it
            signal.signal(each, signal.SIG_IGN)
        signal.signal(signal.SIGALRM, self._again)
        signal.setitimer(signal.ITIMER_REAL, AGAIN_S, AGAIN_S)
        if not _held:
            raise Signalled

    @staticmethod
    def _again(*_: object) -> None:
        """Raise Signalled again, unless it is held or being handled, by `except`, `finally` or a `with`."""
        error = sys.exception()
        while error is not None and not isinstance(error, Signalled):
            error = error.__context__
        if error is None and not _held:
            raise Signalled


@contextlib.contextmanager
def signals_raise(so: str = "") -> Iterator[None]:
    """Raise Signalled in the block at the first SIGINT or SIGTERM; turn it into Interrupted at the end of the block.

    Of nested blocks, only the outermost does this. `so` is appended to the error's message. Does nothing outside the
    main thread. If Signalled is swallowed, as in a finaliser or a callback of C code, it is raised again after AGAIN_S,
    and the traceback that the interpreter or Cython would print is suppressed. If other code turns it into another
    error, such as an ImportError, the block still raises Interrupted.
    """
    elsewhere = threading.current_thread() is not threading.main_thread()
    if elsewhere or all(isinstance(signal.getsignal(number), _Raise) for number in SIGNALS):
        yield  # restoring handlers at its end would let a second signal interrupt the outer block's clean-up
        return
    handler, report, print_error = _Raise(), sys.unraisablehook, sys.excepthook
    sys.unraisablehook = lambda lost: None if isinstance(lost.exc_value, Signalled) else report(lost)
    sys.excepthook = lambda kind, error, trace: (
        None if isinstance(error, Signalled) else print_error(kind, error, trace)  # PyErr_Print() calls it
    )
    with _restored((*SIGNALS, signal.SIGALRM)):
        try:
            for number in SIGNALS:
                signal.signal(number, handler)
            yield
        except BaseException as error:
            if handler.message and not isinstance(error, Interrupted):  # an inner block's error may say more
                raise Interrupted(handler.message + so) from None
            raise
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            sys.unraisablehook, sys.excepthook = report, print_error


# ---- calling a function


def stop_on_signals(stop: Callable[[], None]) -> None:
    """Call `stop` at the first SIGINT or SIGTERM; a second one kills."""

    def first(_: int, __: FrameType | None) -> None:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        stop()

    for number in SIGNALS:
        signal.signal(number, first)


@contextlib.contextmanager
def signals_noted() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether SIGINT or SIGTERM has arrived in the block; a second one kills."""
    came = threading.Event()
    with _restored():
        stop_on_signals(came.set)
        yield came.is_set


class _Overdue(SystemExit):
    """Raised in an `ends_soon` block; a SystemExit, because asyncio swallows any other exception of a callback."""


@contextlib.contextmanager
def ends_soon(stopped: Callable[[], bool], after_s: float) -> Iterator[None]:
    """Leave the block if it is still running `after_s` to twice `after_s` seconds after `stopped()` has become true."""
    overdue = False

    def check(*_: object) -> None:
        nonlocal overdue
        if overdue:
            raise _Overdue
        overdue = stopped()

    before = signal.signal(signal.SIGALRM, check)
    signal.setitimer(signal.ITIMER_REAL, after_s, after_s)
    try:
        with contextlib.suppress(_Overdue):
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# ---- exiting


def _exit(number: int, _: FrameType | None) -> None:
    """Print the line of an interruption on stderr and end the process at once with status 128 + `number`."""
    os.write(2, f"error: interrupted by {signal.Signals(number).name}\n".encode())
    os._exit(128 + number)


@contextlib.contextmanager
def signals_exit() -> Iterator[None]:
    """End the process at once at SIGINT or SIGTERM in the block, for imports that lose or replace exceptions.

    There must be nothing to clean up yet. A signal without a Python handler (ignored, or default) keeps its action.
    """
    numbers: list[signal.Signals] = []
    if threading.current_thread() is threading.main_thread():
        numbers = [number for number in SIGNALS if callable(signal.getsignal(number))]
    with _restored(numbers):
        for number in numbers:
            signal.signal(number, _exit)
        yield


def exit_on_sigterm_as_first_process() -> None:
    """Exit on SIGTERM if this is process 1 of a container, to which Linux delivers only signals that have a handler."""
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


# ---- parents and children


def parent_token(last_signal: signal.Signals) -> str:
    """Return a child's PARENT_VARIABLE: the id of this process, and the signal that the child gets when it ends."""
    return f"{os.getpid()}:{int(last_signal)}"


def die_with_parent() -> None:
    """End this process when the glovewire process that started it ends; do nothing if none did."""
    parent, _, number = os.environ.pop(PARENT_VARIABLE, "").partition(":")
    try:
        pid, last_signal = int(parent), signal.Signals(int(number))
    except ValueError:  # unset, or not set by glovewire
        return
    if not _die_with(pid, last_signal):
        sys.exit(1)


def serve_parent(pid: int) -> None:
    """Set up signals in a forked worker: ignore SIGINT, end at SIGTERM and when the parent `pid` ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if not _die_with(pid, signal.SIGKILL):
        os._exit(1)


def _die_with(pid: int, last_signal: signal.Signals) -> bool:
    """Ask Linux to send `last_signal` to this process when its parent ends; return whether `pid` is still its parent.

    On other systems, the parent's own clean-up or a closed pipe must end the child.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(last_signal))
    return os.getppid() == pid
