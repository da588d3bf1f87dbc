"""Why a run, or one process's part in it, ended."""

from __future__ import annotations

from enum import StrEnum


class Ending(StrEnum):
    """The reason; it travels as it is over the wire, in the run folder and in `--json`, with a text beside it."""

    COMPLETE = "complete"
    """All epochs or steps are trained."""
    ASKED = "asked"
    """A client asked the server to finish."""
    STOPPED = "stopped"
    """A signal ended the server; started again, it continues."""
    FAILED = "failed"
    """A loss or a row became NaN or infinite."""
    INTERRUPTED = "interrupted"
    """A signal ended this worker; the run continues without it."""
    OVER = "over"
    """The run had ended before this process came."""
