"""The modes of minibatch training: which pulls wait, and which gradients are carried out together. Pure.

Every worker pushes one gradient a step to every shard, be it of no rows, so every shard decides by itself and all come
to the same. A worker that has left or is lost is not waited for. What waits is bounded: in gradients by the mode, in
bytes by MAX_WAITING_BYTES.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from glovewire.common.errors import BadRequest, LimitExceeded
from glovewire.common.protocol.messages import Pull, Push

MAX_WAITING_BYTES = 1 << 30


class Fate(Enum):
    """What becomes of a push: it is carried out, it was before, or it came too late and is dropped."""

    NEW = 0
    REPEATED = 1
    LATE = 2


class Arrived(NamedTuple):
    """A push and the number of the worker that it came from."""

    worker: int
    push: Push


class Asynchronous:
    """Every push is a change of its own, in the order of arrival.

    `updates` counts changes so far: the version of all rows. `gradients` counts the pushes in them. No worker's pull is
    answered before `expected` workers have joined, or `begin` was called.
    """

    operations: tuple[str, ...] = ("add", "gradient")

    def __init__(self, expected: int = 0, updates: int = 0, gradients: int = 0) -> None:
        self.updates, self.gradients = updates, gradients
        self._expected = expected
        self._steps: dict[int, int] = {}
        self._waiting: list[Arrived] = []

    @property
    def missing(self) -> int:
        """Workers that are still to join before the first step."""
        return max(self._expected - len(self._steps), 0)

    @property
    def steps(self) -> int:
        """No worker has made more steps than there are gradients."""
        return self.gradients

    def begin(self) -> None:
        """Wait for no further worker."""
        self._expected = 0

    def joined(self, worker: int) -> None:
        """A worker takes part from now on; it stands where the slowest stands."""
        self._steps[worker] = min(self._steps.values(), default=0)
        if not self.missing:
            self.begin()

    def left(self, worker: int, *, lost: bool) -> None:
        """A worker is gone. What waits of one that is lost is dropped: other shards may never have got it."""
        self._steps.pop(worker, None)
        if lost:
            self._waiting = [each for each in self._waiting if each.worker != worker]

    def may_pull(self, pull: Pull, worker: int) -> bool:
        """Yes to whoever only looks; to workers as the mode has it."""
        del pull
        return worker not in self._steps or (not self.missing and self._may_step(worker))

    def admit(self, push: Push, worker: int) -> Fate:
        """Take a push that is no repeat: it is carried out when it is `due`. Raises when it may not be."""
        if push.operation not in self.operations:
            raise BadRequest(f"in this mode a push is one of {', '.join(self.operations)}")
        if self._is_late(push, worker):
            return Fate.LATE
        waiting = sum(each.push.values.nbytes for each in self._waiting) if self._waiting else 0
        if waiting + push.values.nbytes > MAX_WAITING_BYTES:
            raise LimitExceeded(f"{MAX_WAITING_BYTES >> 20} MiB of gradients wait at this server already")
        self._steps[worker] = self._steps.get(worker, 0) + 1
        self._waiting.append(Arrived(worker, push))
        return Fate.NEW

    def due(self) -> list[Arrived]:
        """The pushes whose turn has come, by worker; they count as one change from now on. Empty when none is due."""
        if not self._waiting:
            return []
        size = self._size()
        group, self._waiting = self._waiting[:size], self._waiting[size:]
        if group:
            self.updates += 1
            self.gradients += len(group)
        return sorted(group, key=lambda each: (each.worker, each.push.sequence))

    def version(self, first: int) -> int:
        """Changes so far."""
        del first
        return self.updates

    def _may_step(self, worker: int) -> bool:
        del worker
        return True

    def _is_late(self, push: Push, worker: int) -> bool:
        del push, worker
        return False

    def _size(self) -> int:
        """How many of those that wait are due."""
        return min(len(self._waiting), 1)


class StaleSynchronous(Asynchronous):
    """Nobody begins a step that is more than `bound` steps ahead of the slowest worker's (Ho et al. 2013)."""

    operations = ("gradient",)

    def __init__(self, bound: int, expected: int = 0, updates: int = 0, gradients: int = 0) -> None:
        super().__init__(expected, updates, gradients)
        self._bound = bound

    def _may_step(self, worker: int) -> bool:
        return self._steps[worker] - min(self._steps.values()) <= self._bound


class SoftSynchronous(Asynchronous):
    """A change is made of floor(workers / splits) gradients of any workers (n-softsync, Zhang et al. 2015)."""

    operations = ("gradient",)

    def __init__(self, splits: int, expected: int = 0, updates: int = 0, gradients: int = 0) -> None:
        super().__init__(expected, updates, gradients)
        self._splits = splits

    def _size(self) -> int:
        size = max(len(self._steps) // self._splits, 1)
        return size if len(self._waiting) >= size else 0


class Synchronous(Asynchronous):
    """A change is made of one gradient of every worker, without the `backup` slowest (Chen et al. 2016)."""

    operations = ("gradient",)

    def __init__(self, backup: int = 0, expected: int = 0, updates: int = 0, gradients: int = 0) -> None:
        super().__init__(expected, updates, gradients)
        self._backup = backup

    @property
    def steps(self) -> int:
        """Every change is a step of every worker."""
        return self.updates

    def _may_step(self, worker: int) -> bool:
        return worker not in self._in()

    def _is_late(self, push: Push, worker: int) -> bool:
        if not 0 <= push.version <= self.updates:
            raise BadRequest(f"a gradient names the version of its rows, 0 to {self.updates}, not {push.version}")
        if worker in self._in():
            raise BadRequest("one gradient a worker and step: pull the rows of the next step first")
        return push.version < self.updates

    def _size(self) -> int:
        if self.missing or len(self._steps.keys() - self._in()) > self._backup:
            return 0
        return len(self._waiting)

    def _in(self) -> set[int]:
        return {each.worker for each in self._waiting}
