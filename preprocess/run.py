"""Run preprocessing so that faults and interruptions leave no partial output."""

from typing import Any

from glovewire.common.errors import GlovewireError, Interrupted, OutputError, ProcessDied
from glovewire.common.runtime.signals import signals_raise

from .config import PreprocessConfig
from .parallel.pool import disk_error
from .parallel.scratch import discard_scratch


def run(config: PreprocessConfig) -> dict[str, Any]:
    """Make the dataset that `config` describes; see Pipeline.run for the result.

    Intermediate results are kept for --resume after an interruption or the death of a process; any other fault discards
    them, unless the run itself was resumed.
    """
    from .pipeline import Pipeline

    try:
        with signals_raise():
            return Pipeline(config).run()
    except (Interrupted, ProcessDied) as error:
        raise type(error)(f"{error}; nothing was written to {config.out}; --resume continues from here") from error
    except (GlovewireError, OSError) as error:
        if not config.resume:
            discard_scratch(config.out)
        if isinstance(error, OSError):
            raise OutputError(disk_error(error)) from error
        raise
