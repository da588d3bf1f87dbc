"""One run of preprocessing, whatever its input; faults and interruptions leave nothing half-written."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from common.errors import GlovewireError, OutputError, ProcessDied

from . import scratch
from .config import PreprocessConfig


class Interrupted(GlovewireError):
    """The user stopped the run."""

    code = "interrupted"


def run(config: PreprocessConfig) -> dict[str, Any]:
    """Make the dataset that `config` asks for; see Pipeline.run.

    What was done is kept for --resume after an interruption or the death of a process; after any other fault it goes.
    """
    from .pipeline import Pipeline

    try:
        with _terminable():
            return Pipeline(config).run()
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted; nothing was written to {config.out}; --resume goes on from here") from None
    except ProcessDied as error:
        raise ProcessDied(f"{error}; nothing was written to {config.out}; --resume goes on from here") from error
    except GlovewireError:
        _discard(config)
        raise
    except OSError as error:
        _discard(config)
        from .pool import output_fault

        raise OutputError(output_fault(error)) from error


def _discard(config: PreprocessConfig) -> None:
    if not config.resume:
        scratch.discard(config.out)


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM means the same as Ctrl-C, where signals can be caught at all."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_: int, __: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
