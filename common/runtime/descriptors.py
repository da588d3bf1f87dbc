"""Raise this process's limit on open files, count how many are left, and retry what failed because none were."""

import errno
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ..errors import GlovewireError, OutputError

PATIENCE_S = 10.0
AGAIN_S = 0.05

T = TypeVar("T")


def raise_limit() -> None:
    """Raise the soft limit of open files to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def left() -> int:
    """Return how many more files this process may open."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0] - len(list(Path("/proc/self/fd").iterdir()))


def is_shortage(error: BaseException | None) -> bool:
    """Return whether `error`, or the error that caused it, says that too many files are open."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            return True
        error = error.__cause__
    return False


def patiently(action: Callable[[], T], patience_s: float = PATIENCE_S) -> T:
    """Return the result of `action`; while it fails because too many files are open, retry for up to `patience_s`."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return action()
        except (OSError, GlovewireError) as error:
            if not is_shortage(error):
                raise
            if time.monotonic() > deadline:
                text = f"too many files are open, for {patience_s:g} s: raise the limit (ulimit -n)"
                raise OutputError(f"{error}; {text}") from error
        time.sleep(AGAIN_S)
