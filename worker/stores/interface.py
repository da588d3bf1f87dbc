"""Define what a trainer needs of the place where parameters live, so that its loop is the same for every store.

A store hands out blocks and rows, and takes changes. `server_store` is that on the shards of a parameter server,
`memory_store` that in this machine's memory.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import numpy as np

from glovewire.common.array_types import Indices, Rows
from glovewire.common.endings import RunEnd
from glovewire.common.errors import GlovewireError
from glovewire.common.protocol import messages as m

T = TypeVar("T")
CACHE_LINE_FLOATS = 16


@dataclass
class Reply(Generic[T]):
    """A value that arrives later, in `missing` messages."""

    value: T | None = None
    missing: int = 1
    error: GlovewireError | None = None

    @property
    def done(self) -> bool:
        """Whether it has arrived or failed."""
        return self.missing == 0 or self.error is not None

    def get(self) -> T | None:
        """Return the value of a reply that is done; raise its error."""
        if self.error is not None:
            raise self.error
        return self.value


def still_pending(replies: list[Reply[T]]) -> list[Reply[T]]:
    """Return the replies that are not done; raise the error of those that failed."""
    for reply in replies:
        if reply.done:
            reply.get()
    return [reply for reply in replies if not reply.done]


@dataclass
class Pulled:
    """Rows by number, with the version of each shard and, where rows have versions, of each row.

    `gradients` is the number of gradients of all workers that the table had taken by then.
    """

    values: Rows
    clocks: dict[int, int] = field(default_factory=dict)
    versions: Indices | None = None
    gradients: int = 0


class Store(Protocol):
    """The place where parameters live; `in_place` when pulled ranges are the parameters themselves."""

    in_place: bool

    def lease(self) -> Reply[m.Granted | m.Done]:
        """Request the next block; Done if there is none left."""

    def pull_range(self, first: int, last: int, version: int) -> Reply[Rows]:
        """Request rows [first, last) as an array of the caller's own, once they have reached `version`."""

    def pull_rows(self, rows: Indices) -> Reply[Pulled]:
        """Request rows (ascending, distinct) as an array of the caller's own; synchronous modes delay the reply."""

    def push_block(self, operation: str, lease: m.Granted, changes: Sequence[tuple[int, Rows]]) -> Reply[None]:
        """Change the rows of a block, (first row, values) each; values must not change until the reply is done."""

    def push_rows(
        self, operation: str, rows: Indices, values: Rows, rate: float, pulled: Pulled, wanted: Indices
    ) -> tuple[Reply[bool], Reply[Pulled]]:
        """Change rows (ascending, distinct), and pull the rows `wanted` next, as they are then.

        `values` must not change until the first reply is done, which tells whether a gradient was applied: it may be
        too late for its step. `pulled` has the versions that a gradient was computed from.
        """

    def report(self, report: Callable[[int, int], m.Report]) -> Reply[m.Recorded]:
        """Send a report: `report(sequence, bytes_sent)` returns the message."""

    def poll(self) -> None:
        """Handle what has arrived, without waiting."""

    def wait(self) -> None:
        """Wait until something may have arrived."""

    def flush(self) -> None:
        """Wait until every push and report is answered."""

    def leave(self, end: RunEnd) -> None:
        """End the session, passing on why training ended."""


def empty_aligned(rows: int, width: int) -> Rows:
    """Return an uninitialised float32 array of shape (rows, width) on a cache line, where vector loads cost less."""
    raw = np.empty(rows * width + CACHE_LINE_FLOATS, np.float32)
    start = -raw.ctypes.data // raw.itemsize % CACHE_LINE_FLOATS
    return raw[start : start + rows * width].reshape(rows, width)


def aligned_copy(rows: Rows) -> Rows:
    """Return a copy of rows of shape (rows, width) on a cache line."""
    copy = empty_aligned(*rows.shape)
    copy[:] = rows
    return copy
