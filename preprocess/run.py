"""One run of preprocessing, whatever its input; faults and interruptions leave nothing half-written."""

from __future__ import annotations

from typing import Any

from glovewire.common.errors import GlovewireError, Interrupted, OutputError, ProcessDied
from glovewire.common.runtime.signals import signals_raise

from .config import PreprocessConfig
from .parallel import scratch


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
        from .parallel.pool import output_fault

        raise OutputError(output_fault(error)) from error


def _discard(config: PreprocessConfig) -> None:
    if not config.resume:
        scratch.discard(config.out)
