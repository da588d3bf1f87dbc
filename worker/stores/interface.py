"""Define the interface of a parameter store, so that the training loops are the same for every store.

A store grants blocks, returns rows and takes changes. The store in `server_store` keeps rows on the shards of a
parameter server, the store in `memory_store` in this machine's memory.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from glovewire.common.array_types import Array, Indices, Rows
from glovewire.common.client.pending import Pending
from glovewire.common.endings import RunEnd
from glovewire.common.protocol import messages as m

CACHE_LINE_FLOATS = 16


@dataclass
class Pulled:
    """Pulled rows, with the version of each shard (`clocks`) and, in modes that keep row versions, of each row.

    `gradients` is the number of gradients, by all workers, applied to the table before the pull.
    """

    values: Array
    clocks: dict[int, int] = field(default_factory=dict)
    versions: Indices | None = None
    gradients: int = 0

    def take(self, shard: int, span: slice, message: m.Message) -> None:
        """Store the rows of one shard's reply at `span`."""
        if isinstance(message, m.Rows):
            self.values[span] = message.values
            self.clocks[shard] = message.version
            self.gradients = message.gradients if shard == 0 else self.gradients
            if message.versions is None:
                self.versions = None
            elif self.versions is not None:
                self.versions[span] = message.versions


class Change(NamedTuple):
    """New values of, or differences for, rows [first, last) of a partition; if given, only `rows` have changed."""

    first: int
    last: int
    values: Array
    rows: Indices | None = None


class BatchStore(Protocol):
    """What a store does for training by minibatches."""

    def now(self) -> float:
        """Return the time of a monotonic clock, in seconds."""

    def pull_rows(self, rows: Indices) -> Pending[Pulled]:
        """Request a copy of rows (ascending, distinct); synchronous modes delay the reply."""

    def push_rows(
        self, operation: str, rows: Indices, values: Rows, rate: float, pulled: Pulled, wanted: Indices
    ) -> tuple[Pending[bool], Pending[Pulled]]:
        """Push changes to rows (ascending, distinct), then pull the rows `wanted`.

        Returns two replies: whether the gradient was applied (False: too late for its step), and the rows. `values`
        must not change until the first reply is done. `pulled` has the versions that the gradient was computed from.
        """

    def report(self, report: Callable[[int, int], m.Report]) -> Pending[m.Recorded]:
        """Send a report: `report(sequence, bytes_sent)` returns the message."""

    def wait(self) -> None:
        """Wait until a message arrives or a short time has passed, and handle what has arrived."""

    def flush(self) -> None:
        """Wait until every push and report is answered."""


class Store(BatchStore, Protocol):
    """A parameter store; with `in_place`, `pull_range` returns all rows [first, last) themselves, not a copy."""

    in_place: bool

    def lease(self, has: npt.NDArray[np.uint8] | None = None) -> Pending[m.Granted | m.Done]:
        """Request the next strip; the reply is Done once no strip is left. `has` is as in `messages.Lease`."""

    def pull_range(
        self, first: int, last: int, version: int, rows: Indices | None = None, *, bfloat16: bool = False
    ) -> Pending[Array]:
        """Request rows [first, last), or those in `rows` (ascending, distinct); the reply waits for their `version`.

        The reply is float32 or, with `bfloat16`, bfloat16, which a store with `in_place` does not support.
        """

    def push_range(self, operation: str, lease: m.Granted, change: Change) -> Pending[int]:
        """Push a change to one partition of a strip; its values must not change until the reply is done.

        The reply is the XOR of the receipts, for the report.
        """

    def poll(self) -> None:
        """Handle what has arrived, without waiting."""

    def leave(self, end: RunEnd) -> None:
        """End the session and tell the servers why training ended (`end`)."""


def empty_aligned(rows: int, width: int) -> Rows:
    """Return an uninitialised float32 array (rows, width) aligned to a cache line, which makes vector loads faster."""
    raw = np.empty(rows * width + CACHE_LINE_FLOATS, np.float32)
    start = -raw.ctypes.data // raw.itemsize % CACHE_LINE_FLOATS
    return raw[start : start + rows * width].reshape(rows, width)
