"""May this pull be answered now, when is this push carried out? One small class a mode; decides only, no clock, no I/O.

Pulls that may not be answered are parked by the core and asked about again after every push. Blocks in exclusive order
are here; the modes of minibatches in `modes`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from glovewire.common.errors import BadRequest, LeaseLost
from glovewire.common.model.options import CONSISTENCIES, Mode, TrainingOptions
from glovewire.common.protocol.messages import NO_VERSION, Pull, Push

from .minibatch import Arrived, Asynchronous, Fate, SoftSynchronous, StaleSynchronous, Synchronous

OBSERVER = -1
"""The number of whoever only looks, where a worker's number is asked for."""


class Consistency(Protocol):
    """What the core asks a mode. Workers go by the numbers that shard 0 gave them."""

    @property
    def missing(self) -> int:
        """Workers that are still to join before any may begin."""

    @property
    def gradients(self) -> int:
        """Gradients in the table."""

    @property
    def steps(self) -> int:
        """No worker has made more steps than these: whoever joins draws its batches from there on."""

    def begin(self) -> None:
        """Wait for no worker that has not joined."""

    def joined(self, worker: int) -> None:
        """A worker takes part from now on."""

    def left(self, worker: int, *, lost: bool) -> None:
        """A worker is gone, having said so or not."""

    def may_pull(self, pull: Pull, worker: int) -> bool:
        """Whether to answer now."""

    def admit(self, push: Push, worker: int) -> Fate:
        """Take a push, for when it is due; raises if it may not be carried out at all."""

    def due(self) -> list[Arrived]:
        """Pushes to carry out now as one change, in this order; those of a mode are all of one operation."""

    def version(self, first: int) -> int:
        """Version to report with rows that begin at `first`."""


class ExclusiveBlocks:
    """Every partition goes through the rounds one by one: a pull names the round that it needs, a push ends it.

    A push for a round that is over repeats what another worker did under a lease that had moved: training a block is
    a function of its rows, so it is the same bytes and is not applied again.

    `bounds` are those of the whole table, cut to the rows of this shard: a push must bring all of a partition that
    the shard has, because it ends the round.
    """

    def __init__(self, bounds: npt.NDArray[np.int64], start: int) -> None:
        self.bounds = bounds
        self.missing = self.gradients = self.steps = 0
        self._admitted: list[Arrived] = []
        self.rounds = np.full(len(bounds) - 1, start, np.int64)

    def partition(self, first: int, last: int) -> int:
        """The partition that holds rows [first, last); BadRequest when they are none, not here, or of several."""
        if not self.bounds[0] <= first < last <= self.bounds[-1]:
            raise BadRequest(f"rows {first}..{last} are not on this shard")
        partition = int(np.searchsorted(self.bounds, first, "right")) - 1
        if last > self.bounds[partition + 1]:
            raise BadRequest("in exclusive order a push or pull stays inside one partition")
        return partition

    def begin(self) -> None:
        """Nobody is waited for."""

    def joined(self, worker: int) -> None:
        """Order is that of the blocks, whoever trains them."""

    def left(self, worker: int, *, lost: bool) -> None:
        """The schedule gives its blocks to others."""

    def may_pull(self, pull: Pull, worker: int) -> bool:
        """Yes once the partition has reached the version; without a version at once."""
        del worker
        if pull.version == NO_VERSION:
            return True
        if pull.rows is not None:
            raise BadRequest("in exclusive order rows by number have no version")
        return bool(self.rounds[self.partition(pull.first, pull.last)] >= pull.version)

    def admit(self, push: Push, worker: int) -> Fate:
        """Assignments of a whole partition only, and only from the round that it is in."""
        if push.operation != "assign" or push.rows is not None:
            raise BadRequest("in exclusive order a push assigns the rows of one partition")
        partition = self.partition(push.first, push.last)
        if (push.first, push.last) != (self.bounds[partition], self.bounds[partition + 1]):
            raise BadRequest("in exclusive order a push brings every row of a partition that is on this shard")
        current = self.rounds[partition]
        if push.version > current:
            raise LeaseLost(f"the rows are at version {current}, the push comes from version {push.version}")
        if push.version < current:
            return Fate.REPEATED
        self._admitted.append(Arrived(worker, push))
        return Fate.NEW

    def due(self) -> list[Arrived]:
        """What was admitted, at once; its partition enters the next round."""
        if not self._admitted:
            return []
        arrived = self._admitted.pop(0)
        self.rounds[self.partition(arrived.push.first, arrived.push.last)] += 1
        return [arrived]

    def version(self, first: int) -> int:
        """Rounds that the partition has been through; NO_VERSION for rows that are not here."""
        if not self.bounds[0] <= first < self.bounds[-1]:
            return NO_VERSION
        return int(self.rounds[self.partition(first, first + 1)])


class AsynchronousBlocks(Asynchronous):
    """Differences of blocks are added as they come, and nobody waits.

    `rounds` is how far each partition is at least: every block of the rounds before is in the table whole.
    """

    def __init__(self, bounds: npt.NDArray[np.int64], start: int) -> None:
        super().__init__()
        self.bounds = bounds
        self.rounds = np.full(len(bounds) - 1, start, np.int64)

    def whole(self, floor: int) -> bool:
        """Every block of the rounds before `floor` is in the table; whether that is more than was known."""
        further = floor > self.rounds[0]
        self.rounds[:] = max(floor, self.rounds[0])
        return bool(further)


@dataclass(frozen=True)
class Reached:
    """How far a training is when its server starts: rounds of blocks, or changes and the gradients in them."""

    round: int = 0
    updates: int = 0
    gradients: int = 0


BEGINNING = Reached()


def make(options: TrainingOptions, bounds: npt.NDArray[np.int64], reached: Reached, workers: int = 1) -> Consistency:
    """The mode that the options ask for; `bounds` are the partitions' first rows.

    Modes that go in step begin when so many `workers` have joined.
    """
    mode = Mode.parse(options.consistency, CONSISTENCIES[options.schedule])
    so_far = (reached.updates, reached.gradients)
    match mode.kind:
        case "exclusive":
            return ExclusiveBlocks(bounds, reached.round)
        case "sync":
            return Synchronous(options.backup, workers, *so_far)
        case "ssp":
            return StaleSynchronous(int(mode.number), workers, *so_far)
        case "softsync":
            return SoftSynchronous(int(mode.number), workers, *so_far)
        case _ if options.schedule == "blocks":
            return AsynchronousBlocks(bounds, reached.round)
        case _:
            return Asynchronous(0, *so_far)
