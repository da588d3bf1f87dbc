"""Every fault that Glovewire names: one base, one leaf per fault.

`code` is what crosses the wire in a `Refused` message; `exit_status` is what a command ends with.
A message is one line, says what is wrong and, where there is one, the way out. Nothing here formats tracebacks.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from types import ModuleType
from typing import Any, ClassVar, cast

from .endings import Ending, RunEnd


class GlovewireError(Exception):
    """Base of every expected fault; a command prints its message as one line and exits with `exit_status`."""

    code: ClassVar[str] = "error"
    exit_status: ClassVar[int] = 1


class UsageError(GlovewireError):
    """A flag, environment variable or file entry has a value that cannot be meant."""

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
    """A word is not in the vocabulary of the vectors that are asked about it."""

    code = "unknown-word"


class MalformedFile(GlovewireError):
    """A file that the user named cannot be read or does not have the form that is asked for."""

    code = "malformed-file"


class DatasetMismatch(GlovewireError):
    """A worker's dataset is not the server's."""

    code = "dataset-mismatch"


class ModelMismatch(GlovewireError):
    """A worker's tensors are not the server's: another architecture."""

    code = "model-mismatch"


class ProtocolError(GlovewireError):
    """Frames that are not a message of this protocol and version."""

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
    """NaN or infinity where numbers are needed."""

    code = "not-finite"


class UnknownSession(GlovewireError):
    """The server does not know this worker (any more): say hello again."""

    code = "unknown-session"


class OutOfOrder(GlovewireError):
    """A push or report came before the one that must precede it, which was lost or is late: send both again."""

    code = "out-of-order"


class LeaseLost(GlovewireError):
    """The lease under which a push was made has gone to somebody else."""

    code = "lease-lost"


class NotReady(GlovewireError):
    """The request is fine but cannot be served now; ask again."""

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
    """Nobody answered in time; the message names whom we waited for."""

    code = "deadline"


class BindError(GlovewireError):
    """An address cannot be bound: in use, not ours, or malformed."""

    code = "bind"


class KeyFileError(GlovewireError):
    """A file of keys is missing, damaged, or open to others."""

    code = "key-file"


class NotAdmitted(GlovewireError):
    """The two ends of a connection do not agree on keys: one has none, or a key is not the one that is known."""

    code = "not-admitted"


class TrainingDiverged(GlovewireError):
    """The loss or a row became NaN or infinite."""

    code = "diverged"


class Interrupted(GlovewireError):
    """Somebody pressed Ctrl-C or sent SIGTERM."""

    code = "interrupted"


class ProcessDied(GlovewireError):
    """A process that a run needs ended by itself."""

    code = "process-died"


def leaves(base: type[GlovewireError] = GlovewireError) -> dict[str, type[GlovewireError]]:
    """Every error class below and including `base`, by its wire code."""
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


# ---- Libraries that may be there or not: one clear line that says how to get them, and how others do without them.


def require_extra(module: str, extra: str, option: str) -> None:
    """MissingExtra naming the command to install, when `module` is not there; `option` is what needs it."""
    if find_spec(module) is None:
        raise MissingExtra(f"{option} needs {module}: pip install 'glovewire[{extra}]'")


@contextmanager
def hidden(*names: str) -> Iterator[None]:
    """While this lasts, an import of the modules `names` says that there are none.

    For libraries that load others only to offer more, which takes memory and time in each of our processes.
    """
    modules: dict[str, ModuleType | None] = cast(Any, sys.modules)
    here = {name: modules.pop(name) for name in names if name in modules}
    modules.update(dict.fromkeys(names))  # None is Python's own mark of a module that is not there
    try:
        yield
    finally:
        for name in names:
            del modules[name]
        modules.update(here)


def require(problems: list[str]) -> None:
    """Raise one UsageError that names every problem at once, if there is any."""
    if problems:
        raise UsageError("; ".join(problems))
