"""One run of preprocessing, whatever its input; faults and interruptions leave nothing half-written."""

from __future__ import annotations

from typing import Any

from common.errors import GlovewireError, Interrupted, OutputError, ProcessDied
from common.interrupts import signals_raise

from . import scratch
from .config import PreprocessConfig


def run(config: PreprocessConfig) -> dict[str, Any]:
    """Make the dataset that `config` asks for; see Pipeline.run.

    What was done is kept for --resume after an interruption or the death of a process; after any other fault it goes.
    """
    from .pipeline import Pipeline

    try:
        with signals_raise():
            return Pipeline(config).run()
    except (Interrupted, ProcessDied) as error:
        raise type(error)(f"{error}; nothing was written to {config.out}; --resume goes on from here") from error
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
