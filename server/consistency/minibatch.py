"""Decide in minibatch training which pulls wait and which gradients make one update. No I/O, no clock.

Every worker pushes one gradient per step to every shard, even a gradient without rows there, so every shard decides by
itself and all come to the same result. No shard waits for a worker that has left or is lost. The mode bounds how many
gradients wait, and MAX_WAITING_BYTES how many bytes.
"""

from enum import Enum
from typing import NamedTuple

from glovewire.common.errors import BadRequest, LimitExceeded
from glovewire.common.protocol.messages import Pull, Push

MAX_WAITING_BYTES = 1 << 30


class Admission(Enum):
    """What becomes of a push: it will be applied, was applied before, or came too late for its step and is dropped."""

    NEW = 0
    REPEATED = 1
    LATE = 2


class PendingPush(NamedTuple):
    """A push and the number of the worker that sent it."""

    worker: int
    push: Push


class Asynchronous:
    """Makes every push an update of its own, in order of arrival; the other modes change parts of this.

    `updates` counts the updates so far, which is the version of all rows; `gradients` counts the pushes in them. No
    worker's pull is answered before `expected` workers have joined or `begin` was called. `parameter` is the mode's
    number: bound (ssp), splits (softsync) or backup workers (sync).
    """

    operations: tuple[str, ...] = ("add", "gradient")

    def __init__(self, parameter: int = 0, expected: int = 0, updates: int = 0, gradients: int = 0) -> None:
        self._parameter = parameter
        self.updates, self.gradients = updates, gradients
        self._expected = expected
        self._steps: dict[int, int] = {}
        self._waiting: list[PendingPush] = []

    @property
    def missing(self) -> int:
        """Return how many workers must still join before the first step."""
        return max(self._expected - len(self._steps), 0)

    @property
    def steps(self) -> int:
        """Return an upper bound on the steps of any worker: the number of gradients."""
        return self.gradients

    def begin(self) -> None:
        """Stop waiting for workers that have not joined."""
        self._expected = 0

    def joined(self, worker: int) -> None:
        """Count a worker in, at the step of the slowest."""
        self._steps[worker] = min(self._steps.values(), default=0)
        if not self.missing:
            self.begin()

    def left(self, worker: int, *, lost: bool) -> None:
        """Count a worker out; if it is `lost`, drop its waiting pushes, which other shards may never have received."""
        self._steps.pop(worker, None)
        if lost:
            self._waiting = [pending for pending in self._waiting if pending.worker != worker]

    def may_pull(self, _: Pull, worker: int) -> bool:
        """Return whether to answer: an observer at once, a worker once the mode lets it take its next step."""
        return worker not in self._steps or (not self.missing and self._may_step(worker))

    def admit(self, push: Push, worker: int) -> Admission:
        """Queue a push that is no repeat for `next_update`, unless it is late; raise if it can never be applied."""
        if push.operation not in self.operations:
            raise BadRequest(f"in this mode a push is one of {', '.join(self.operations)}")
        if self._is_late(push, worker):
            return Admission.LATE
        waiting = sum(pending.push.values.nbytes for pending in self._waiting) if self._waiting else 0
        if waiting + push.values.nbytes > MAX_WAITING_BYTES:
            raise LimitExceeded(f"{MAX_WAITING_BYTES >> 20} MiB of gradients wait at this server already")
        self._steps[worker] = self._steps.get(worker, 0) + 1
        self._waiting.append(PendingPush(worker, push))
        return Admission.NEW

    def next_update(self) -> list[PendingPush]:
        """Take the waiting pushes that make the next update, ordered by worker; empty while there are too few."""
        if not self._waiting:
            return []
        size = self._ready()
        group, self._waiting = self._waiting[:size], self._waiting[size:]
        if group:
            self.updates += 1
            self.gradients += len(group)
        return sorted(group, key=lambda pending: (pending.worker, pending.push.sequence))

    def version(self, _: int) -> int:
        """Return the number of updates so far."""
        return self.updates

    def waits_for(self) -> list[int]:
        """Return the workers whose next gradient another worker waits for."""
        return []

    def _may_step(self, _: int) -> bool:
        return True

    def _is_late(self, _: Push, __: int) -> bool:
        return False

    def _ready(self) -> int:
        """Return how many of the waiting pushes make an update now."""
        return min(len(self._waiting), 1)


class StaleSynchronous(Asynchronous):
    """Lets no worker start a step more than `parameter` steps ahead of the slowest worker's (Ho et al. 2013)."""

    operations = ("gradient",)

    def waits_for(self) -> list[int]:
        """See Asynchronous."""
        slowest = min(self._steps.values(), default=0)
        if all(map(self._may_step, self._steps)):
            return []
        return [worker for worker, steps in self._steps.items() if steps == slowest]

    def _may_step(self, worker: int) -> bool:
        return self._steps[worker] - min(self._steps.values()) <= self._parameter


class SoftSynchronous(Asynchronous):
    """Makes an update of floor(workers / parameter) gradients from any workers (n-softsync, Zhang et al. 2015)."""

    operations = ("gradient",)

    def _ready(self) -> int:
        size = max(len(self._steps) // self._parameter, 1)
        return size if len(self._waiting) >= size else 0


class Synchronous(Asynchronous):
    """Makes an update of one gradient per worker, without those of the `parameter` slowest (Chen et al. 2016)."""

    operations = ("gradient",)

    @property
    def steps(self) -> int:
        """Return the number of updates: each is a step of every worker."""
        return self.updates

    def waits_for(self) -> list[int]:
        """See Asynchronous."""
        return [] if self.missing or not self._waiting else sorted(self._steps.keys() - self._pushed())

    def _may_step(self, worker: int) -> bool:
        return worker not in self._pushed()

    def _is_late(self, push: Push, worker: int) -> bool:
        if not 0 <= push.version <= self.updates:
            raise BadRequest(f"a gradient names the version of its rows, 0 to {self.updates}, not {push.version}")
        if worker in self._pushed():
            raise BadRequest("one gradient per worker and step: pull the rows of the next step first")
        return push.version < self.updates

    def _ready(self) -> int:
        if self.missing or len(self._steps.keys() - self._pushed()) > self._parameter:
            return 0
        return len(self._waiting)

    def _pushed(self) -> set[int]:
        """Return the workers whose gradient for this step has arrived and waits."""
        return {pending.worker for pending in self._waiting}
