"""Where the parameters live, behind one interface: the trainer's loop is the same for every store.

A store hands out work, rows and the right to change them. That on the shards of a parameter server is in `remote`, that
in this machine's memory in `memory`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import numpy as np

from glovewire.common.array_types import Indices, Rows
from glovewire.common.endings import RunEnd
from glovewire.common.errors import GlovewireError
from glovewire.common.protocol import messages as m

T = TypeVar("T")


@dataclass
class Reply(Generic[T]):
    """Something that was asked for and arrives later."""

    value: T | None = None
    missing: int = 1
    error: GlovewireError | None = None

    @property
    def done(self) -> bool:
        """Whether it is here, or failed."""
        return self.missing == 0 or self.error is not None

    def get(self) -> T | None:
        """The value of a reply that is done; raises what went wrong."""
        if self.error is not None:
            raise self.error
        return self.value


def settled(replies: list[Reply[T]]) -> list[Reply[T]]:
    """The replies that are still to come; raises what went wrong with those that are here."""
    for reply in replies:
        if reply.done:
            reply.get()
    return [reply for reply in replies if not reply.done]


@dataclass
class Pulled:
    """Rows by number, and how they stood: the version of each shard, of each row where rows have one.

    `gradients` counts those in the table by then, of all workers.
    """

    values: Rows
    clocks: dict[int, int] = field(default_factory=dict)
    versions: Indices | None = None
    gradients: int = 0


class Store(Protocol):
    """What a trainer asks of the place where parameters live; `in_place` when pulled ranges are the parameters."""

    in_place: bool

    def lease(self) -> Reply[m.Granted | m.Done]:
        """The next block, or word that there is none left."""

    def pull_range(self, first: int, last: int, version: int) -> Reply[Rows]:
        """Rows [first, last) as the caller's own array, once they have reached `version`."""

    def pull_rows(self, rows: Indices) -> Reply[Pulled]:
        """The given rows (ascending, distinct) as the caller's own array; where workers go in step, when it is time."""

    def push_block(self, operation: str, lease: m.Granted, changes: Sequence[tuple[int, Rows]]) -> Reply[None]:
        """Change the rows of a block, (first row, values) each; values must stay as they are until it is done."""

    def push_rows(
        self, operation: str, rows: Indices, values: Rows, rate: float, pulled: Pulled, wanted: Indices
    ) -> tuple[Reply[bool], Reply[Pulled]]:
        """Change the given rows (ascending, distinct), and pull those `wanted` next, as they are after it.

        `values` must stay as they are until the first reply is done. A gradient says by `pulled` how the rows stood;
        the reply tells whether it counts: it may be late for its step.
        """

    def report(self, report: Callable[[int, int], m.Report]) -> Reply[m.Recorded]:
        """Tell what training brought: `report(sequence, bytes_sent)` is the message."""

    def poll(self) -> None:
        """Take in what has arrived, without waiting."""

    def wait(self) -> None:
        """Return when something may have arrived."""

    def flush(self) -> None:
        """Return when everything pushed and reported is in."""

    def leave(self, end: RunEnd) -> None:
        """End the session, passing on why training ended."""


# ---- Arrays of rows that begin on a cache line: vector loads from them cost less. Nothing else.

LINE_FLOATS = 16


def aligned(rows: int, width: int) -> Rows:
    """An uninitialised float32 array of shape (rows, width)."""
    raw = np.empty(rows * width + LINE_FLOATS, np.float32)
    start = -raw.ctypes.data // raw.itemsize % LINE_FLOATS
    return raw[start : start + rows * width].reshape(rows, width)


def copied(rows: Rows) -> Rows:
    """A copy of rows of shape (rows, width)."""
    copy = aligned(*rows.shape)
    copy[:] = rows
    return copy
