"""Define the reasons why a run, or one client's part in it, ends."""

from enum import StrEnum
from typing import NamedTuple


class Ending(StrEnum):
    """Why a run, or a client's part in it, ended; has the same value on the wire, in the run folder and in `--json`."""

    COMPLETE = "complete"
    """All epochs or steps are trained."""
    ASKED = "asked"
    """A client asked the server to end the run."""
    STOPPED = "stopped"
    """A signal ended the server; the run continues when the server is started again."""
    FAILED = "failed"
    """A loss or a row became NaN or infinite."""
    INTERRUPTED = "interrupted"
    """A signal ended this worker; the run continues without it."""
    LEFT = "left"
    """This client closed its session before the end; the run continues without it."""
    OVER = "over"
    """The run had ended before this process joined it."""


LASTING = (Ending.COMPLETE, Ending.ASKED)
"""Endings after which no process is restarted, so each waits until the rows of all shards are saved."""


class RunEnd(NamedTuple):
    """An ending and, in `text`, an explanation for people, "" if there is none; programs do not parse it."""

    ending: Ending
    text: str = ""

    def as_fields(self) -> dict[str, str]:
        """Return `ending` and, unless it is empty, `ending_text`, for `--json` and manifests."""
        return {"ending": self.ending.value} | ({"ending_text": self.text} if self.text else {})

    def __str__(self) -> str:
        return f"{self.ending}: {self.text}" if self.text else self.ending.value
