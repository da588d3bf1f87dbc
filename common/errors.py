"""Define the errors of Glovewire: one base class, one subclass per fault.

`code` names the error in a `Refused` message; `exit_status` is the exit status of a command. An error's message is one
line that says what is wrong and, if there is a remedy, names it.
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

    def __init_subclass__(cls, *, code: str) -> None:
        cls.code = code


class UsageError(GlovewireError, code="usage"):
    """An option has an invalid value."""

    exit_status = 2


class MissingExtra(GlovewireError, code="missing-extra"):
    """An optional dependency that a feature needs is not installed."""


class CorpusError(GlovewireError, code="corpus"):
    """The corpus is missing, empty, binary, not UTF-8, damaged or unreachable."""


class OutputError(GlovewireError, code="output"):
    """An output path exists already, cannot be written, or the disk is full."""


class ArtifactError(GlovewireError, code="artifact"):
    """A dataset, checkpoint or run on disk is missing, truncated, altered or of another version."""


class StoreError(GlovewireError, code="store"):
    """A store that a URL names refuses access, fails or does not answer."""


class SystemLimit(GlovewireError, code="system-limit"):
    """A limit of this machine, container or process (`ulimit`) allows too little memory or too few open files."""


class UnknownWord(GlovewireError, KeyError, code="unknown-word"):
    """A word is not in the vocabulary of the vectors; a KeyError, as in a dictionary."""

    __str__ = Exception.__str__  # a KeyError would show its message in quotes


class MalformedFile(GlovewireError, code="malformed-file"):
    """A file that the user named cannot be read or has the wrong format."""


class DatasetMismatch(GlovewireError, code="dataset-mismatch"):
    """A worker and its server have different datasets."""


class ModelMismatch(GlovewireError, code="model-mismatch"):
    """A worker and its server have different tensors."""


class ProtocolError(GlovewireError, code="protocol"):
    """Received frames are not a message of this protocol and version."""


class VersionMismatch(ProtocolError, code="version-mismatch"):
    """The peer speaks another version of the protocol."""


class LimitExceeded(ProtocolError, code="limit"):
    """A message is larger, deeper or longer than the protocol allows."""


class BadRequest(GlovewireError, code="bad-request"):
    """A well-formed message asks for something impossible: unknown table, row out of range, wrong shape."""


class NotFinite(GlovewireError, code="not-finite"):
    """A value is NaN or infinite."""


class UnknownSession(GlovewireError, code="unknown-session"):
    """The server has no session for this client, which must send Hello again."""


class OutOfOrder(GlovewireError, code="out-of-order"):
    """A push or report arrived, but not the one before it: the client must retransmit both."""


class LeaseLost(GlovewireError, code="lease-lost"):
    """The lease of a push has been granted to another worker."""


class NotReady(GlovewireError, code="not-ready"):
    """The request is valid but cannot be served now; the client may send it again later."""


class RunOver(GlovewireError, code="finishing"):
    """The server is ending the run, for the reason `ending`, and accepts no new work."""

    def __init__(self, ending: Ending = Ending.OVER, text: str = "") -> None:
        super().__init__(text or f"the run is over ({ending})")
        self.ending = ending

    @property
    def end(self) -> RunEnd:
        """Return how the run ended, with this error's message as the text if it failed."""
        return RunEnd(self.ending, str(self) if self.ending is Ending.FAILED else "")


class DeadlineExceeded(GlovewireError, code="deadline"):
    """A peer did not answer in time; the message names the peer."""


class BindError(GlovewireError, code="bind"):
    """An address cannot be bound: in use, not of this machine, or malformed."""


class KeyFileError(GlovewireError, code="key-file"):
    """A key file or allow-list is missing, damaged, or accessible to other users."""


class NotAdmitted(GlovewireError, code="not-admitted"):
    """A connection failed authentication: one end has no key, or not the key that its peer expects."""


class NotPermitted(GlovewireError, code="not-permitted"):
    """The role of the client's key does not include this request, or the name that it gives."""


class TrainingDiverged(GlovewireError, code="diverged"):
    """The loss or a row became NaN or infinite."""


class Interrupted(GlovewireError, code="interrupted"):
    """SIGINT (Ctrl-C) or SIGTERM arrived."""


class ProcessDied(GlovewireError, code="process-died"):
    """A process that a run needs ended unexpectedly."""


def leaves(base: type[GlovewireError] = GlovewireError) -> dict[str, type[GlovewireError]]:
    """Return `base` and all its subclasses by wire code."""
    found = {base.code: base}
    for child in base.__subclasses__():
        found.update(leaves(child))
    return found


def from_wire(code: str, text: str, ending: str = "") -> GlovewireError:
    """Return the error for a peer's `code` (GlovewireError if unknown); `ending` is used by RunOver alone."""
    if code == RunOver.code:
        return RunOver(Ending(ending) if ending in set(Ending) else Ending.OVER, text)
    return leaves().get(code, GlovewireError)(text)


def parse_ending(ending: str, text: str) -> RunEnd:
    """Return a message's `ending` and `text`, cut at 200 characters, as a RunEnd; BadRequest for an unknown ending."""
    if ending not in set(Ending):
        raise BadRequest(f"an ending is one of {', '.join(Ending)}, not {ending[:40]!r}")
    return RunEnd(Ending(ending), text[:200])


def require(problems: list[str]) -> None:
    """Raise one UsageError that lists all `problems`, unless there are none."""
    if problems:
        raise UsageError("; ".join(problems))


def require_extra(module: str, extra: str, option: str) -> None:
    """Raise MissingExtra, with the pip command, if `module`, which `option` needs, is not installed."""
    if find_spec(module) is None:
        raise MissingExtra(f"{option} needs {module}: pip install 'glovewire[{extra}]'")


@contextmanager
def hidden(*names: str) -> Iterator[None]:
    """Make imports of the modules `names` fail inside the block.

    Some libraries import others for features that we do not use, which costs each process memory and time.
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
