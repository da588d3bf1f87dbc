"""Define the errors of Glovewire: one base class, one subclass per fault.

`code` crosses the wire in a `Refused` message; `exit_status` is the exit status of a command. A message is one line
that says what is wrong and, if there is one, names the remedy.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from types import ModuleType
from typing import Any, ClassVar, cast

from .endings import Ending, RunEnd


class GlovewireError(Exception):
    """Base of every expected error; a command prints its message as one line and exits with `exit_status`."""

    code: ClassVar[str] = "error"
    exit_status: ClassVar[int] = 1


class UsageError(GlovewireError):
    """An option has an invalid value."""

    code = "usage"
    exit_status = 2


class MissingExtra(GlovewireError):
    """A feature needs an optional dependency that is not installed."""

    code = "missing-extra"


class CorpusError(GlovewireError):
    """The corpus is missing, empty, binary, not UTF-8, damaged or out of reach."""

    code = "corpus"


class OutputError(GlovewireError):
    """An output path exists already, cannot be written, or the disk is full."""

    code = "output"


class ArtifactError(GlovewireError):
    """A dataset, checkpoint or run on disk is missing, truncated, altered or of another version."""

    code = "artifact"


class UnknownWord(GlovewireError):
    """A word is not in the vocabulary of the vectors."""

    code = "unknown-word"


class MalformedFile(GlovewireError):
    """A file that the user named cannot be read or has the wrong format."""

    code = "malformed-file"


class DatasetMismatch(GlovewireError):
    """A worker and its server have different datasets."""

    code = "dataset-mismatch"


class ModelMismatch(GlovewireError):
    """A worker and its server have different tensors."""

    code = "model-mismatch"


class ProtocolError(GlovewireError):
    """Received frames are not a message of this protocol and version."""

    code = "protocol"


class VersionMismatch(ProtocolError):
    """The peer speaks another version of the protocol."""

    code = "version-mismatch"


class LimitExceeded(ProtocolError):
    """A message is larger, deeper or longer than the protocol allows."""

    code = "limit"


class BadRequest(GlovewireError):
    """A well-formed message asks for something impossible: unknown table, row out of range, wrong shape."""

    code = "bad-request"


class NotFinite(GlovewireError):
    """A value is NaN or infinite."""

    code = "not-finite"


class UnknownSession(GlovewireError):
    """The server does not know this worker (any more): it must say hello again."""

    code = "unknown-session"


class OutOfOrder(GlovewireError):
    """A push or report arrived before the one that must precede it, lost or late: both must be sent again."""

    code = "out-of-order"


class LeaseLost(GlovewireError):
    """The lease of a push has been granted to another worker."""

    code = "lease-lost"


class NotReady(GlovewireError):
    """The request is valid but cannot be served now: ask again."""

    code = "not-ready"


class RunOver(GlovewireError):
    """The server is ending the run, for the reason `ending`, and takes no new work."""

    code = "finishing"

    def __init__(self, ending: Ending = Ending.OVER, text: str = "") -> None:
        super().__init__(text or f"the run is over ({ending})")
        self.ending = ending

    @property
    def end(self) -> RunEnd:
        """How the run ended; the text of a failure names its cause."""
        return RunEnd(self.ending, str(self) if self.ending is Ending.FAILED else "")


class DeadlineExceeded(GlovewireError):
    """A peer did not answer in time; the message names it."""

    code = "deadline"


class BindError(GlovewireError):
    """An address cannot be bound: in use, not of this machine, or malformed."""

    code = "bind"


class KeyFileError(GlovewireError):
    """A key file is missing, damaged, or readable by others."""

    code = "key-file"


class NotAdmitted(GlovewireError):
    """The ends of a connection disagree on keys: one has none, or another than the peer expects."""

    code = "not-admitted"


class TrainingDiverged(GlovewireError):
    """The loss or a row became NaN or infinite."""

    code = "diverged"


class Interrupted(GlovewireError):
    """SIGINT (Ctrl-C) or SIGTERM arrived."""

    code = "interrupted"


class ProcessDied(GlovewireError):
    """A process that a run needs ended unexpectedly."""

    code = "process-died"


def leaves(base: type[GlovewireError] = GlovewireError) -> dict[str, type[GlovewireError]]:
    """Return `base` and all its subclasses by wire code."""
    found = {base.code: base}
    for child in base.__subclasses__():
        found.update(leaves(child))
    return found


def from_wire(code: str, text: str, ending: str = "") -> GlovewireError:
    """Return the error that a peer named by `code`, of the base class if unknown; `ending` is that of a RunOver."""
    if code == RunOver.code:
        return RunOver(Ending(ending) if ending in set(Ending) else Ending.OVER, text)
    return leaves().get(code, GlovewireError)(text)


def parse_ending(ending: str, text: str) -> RunEnd:
    """Return the ending that a message names, with its text, cut at 200 characters; BadRequest for an unknown one."""
    if ending not in set(Ending):
        raise BadRequest(f"an ending is one of {', '.join(Ending)}, not {ending[:40]!r}")
    return RunEnd(Ending(ending), text[:200])


def require(problems: list[str]) -> None:
    """Raise one UsageError that names every problem, if there are any."""
    if problems:
        raise UsageError("; ".join(problems))


def require_extra(module: str, extra: str, option: str) -> None:
    """Raise MissingExtra with the command to install `module`, if `option` needs it and it is not there."""
    if find_spec(module) is None:
        raise MissingExtra(f"{option} needs {module}: pip install 'glovewire[{extra}]'")


@contextmanager
def hidden(*names: str) -> Iterator[None]:
    """Make imports of the modules `names` fail inside the block.

    For libraries that load others for features that we do not use, at a cost in memory and time per process.
    """
    modules: dict[str, ModuleType | None] = cast(Any, sys.modules)
    loaded = {name: modules.pop(name) for name in names if name in modules}
    modules.update(dict.fromkeys(names))  # None makes the import fail
    try:
        yield
    finally:
        for name in names:
            del modules[name]
        modules.update(loaded)
