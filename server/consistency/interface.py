"""Say what a consistency mode promises the core, and make the mode that the options ask for. No I/O, no clock."""

from dataclasses import dataclass
from typing import Protocol

from glovewire.common.array_types import Indices
from glovewire.common.model.options import CONSISTENCIES, Mode, TrainingOptions
from glovewire.common.protocol.messages import Pull, Push

from .blocks import AsynchronousBlocks, ExclusiveBlocks
from .minibatch import Admission, Asynchronous, PendingPush, SoftSynchronous, StaleSynchronous, Synchronous

OBSERVER = -1
"""Worker number of a session that only reads."""


class Consistency(Protocol):
    """Decides when a pull may be answered and a push applied; workers go by the numbers that shard 0 gave them."""

    @property
    def missing(self) -> int:
        """Return how many workers must still join before any may start."""

    @property
    def gradients(self) -> int:
        """Return the number of gradients in the table."""

    @property
    def steps(self) -> int:
        """Return an upper bound of the steps of any worker; a worker that joins draws its batches from there on."""

    def begin(self) -> None:
        """Stop waiting for workers that have not joined."""

    def joined(self, worker: int) -> None:
        """Count a worker in from now on."""

    def left(self, worker: int, *, lost: bool) -> None:
        """Count a worker out, which has said goodbye or is `lost`."""

    def may_pull(self, pull: Pull, worker: int) -> bool:
        """Return whether to answer now; a refused pull is asked about again when something has changed."""

    def admit(self, push: Push, worker: int) -> Admission:
        """Take a push, to be applied by `next_update`; raise if it can never be applied."""

    def next_update(self) -> list[PendingPush]:
        """Return the pushes to apply now as one update, in order and all of one operation; empty if none are ready."""

    def version(self, first: int) -> int:
        """Return the version to report with rows that begin at `first`."""


@dataclass(frozen=True)
class Reached:
    """Progress of a training when its server starts: rounds of blocks, or updates and the gradients in them."""

    round: int = 0
    updates: int = 0
    gradients: int = 0


BEGINNING = Reached()


def make_consistency(options: TrainingOptions, bounds: Indices, reached: Reached, workers: int = 1) -> Consistency:
    """Return the mode that the options ask for; `bounds` are the partitions' first rows.

    Synchronous modes start once `workers` workers have joined.
    """
    mode = Mode.parse(options.consistency, CONSISTENCIES[options.schedule])
    counts = (reached.updates, reached.gradients)
    match mode.kind:
        case "exclusive":
            return ExclusiveBlocks(bounds, reached.round)
        case "sync":
            return Synchronous(options.backup, workers, *counts)
        case "ssp":
            return StaleSynchronous(int(mode.number), workers, *counts)
        case "softsync":
            return SoftSynchronous(int(mode.number), workers, *counts)
        case _ if options.schedule == "blocks":
            return AsynchronousBlocks(bounds, reached.round)
        case _:
            return Asynchronous(0, 0, *counts)
