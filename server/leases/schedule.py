"""Decide which strip is trained next, and which worker holds which. No I/O, no clock.

Strips are granted in the order of their rounds, and their pulls wait for the rows. Waiting follows that order, so
leases never wait in a cycle, whichever workers hold them. A strip whose holder is lost is granted before all
others, because they may depend on it.

Of the next few strips, a worker gets one whose entries it has, so that each worker downloads only its share.
"""

import heapq
from collections.abc import Set

from glovewire.common.model.rounds import Rounds

from .patience import Held

LEASES_PER_WORKER = 4
"""Strips in training, prefetched, and on their way back; a worker has the rows of their partitions in memory."""


MAX_ROUNDS = 1 << 62


class Schedule:
    """All rounds of a training, from round `start` on: earlier ones have been trained.

    A granted round is less than one sweep after the first that is incomplete, which bounds the before-images on a
    shard, and it is before `limit`.
    """

    def __init__(self, rounds: Rounds, start: int = 0) -> None:
        self.rounds = rounds
        self.completed, self.limit = 0, MAX_ROUNDS
        self._next, self._end = start, rounds.total
        self._returned: list[int] = []
        self._skipped: list[int] = []
        self._has: dict[str, Set[int]] = {}
        self.held: dict[int, Held] = {}
        """The leases that have not ended, by number."""
        self._next_lease = 1

    @property
    def complete(self) -> bool:
        """Return whether every round has been trained."""
        return self._next >= self._end and not self.held and not self._returned and not self._skipped

    @property
    def round(self) -> int:
        """Return the round after the last that has been granted; no partition can be past it."""
        return self._next

    def stop(self) -> None:
        """Train no round after the last that has been granted, so that every partition ends at the same one."""
        self._end = min(self._end, self._next)

    @property
    def low_water(self) -> int:
        """Return the first round that is not trained yet."""
        return min([self._next, *self._returned, *self._skipped, *(round for round, _ in self.held.values())])

    def grant(self, worker: str, most: int = LEASES_PER_WORKER, has: Set[int] = frozenset()) -> tuple[int, int] | None:
        """Return a lease (its number and round) for `worker`, None while the worker must wait.

        A worker holds at most `most`, but a strip that those may wait for is granted in any case: one that was taken
        back from another worker, or skipped. `has` are the strips whose entries the worker has; empty if all have all.
        """
        self._has[worker] = has
        if self._returned:
            return self._hold(heapq.heappop(self._returned), worker)
        last = min(self._end, self.limit, self.low_water + self.rounds.partitions)
        few = 1 + len(self._has) // 2
        ready = [*self._skipped, *range(self._next, min(last, self._next + few))]
        if not ready:
            return None
        own = [round for round, holder in self.held.values() if holder == worker]
        waits = any(round > ready[0] for round in own)
        if len(own) >= most and not waits:
            return None
        round = ready[0] if waits else self._chosen(worker, [round for round in ready if round < ready[0] + few])
        self._skipped = [each for each in self._skipped if each != round] + list(range(self._next, round))
        self._next = max(self._next, round + 1)
        return self._hold(round, worker)

    def finish(self, lease: int) -> int:
        """End a lease, count its strip as trained, and return the round."""
        self.completed += 1
        return self.held.pop(lease)[0]

    def release(self, worker: str) -> list[int]:
        """Take back every lease of a worker that left or was lost; return their rounds, which are granted first."""
        self._has.pop(worker, None)
        leases = [lease for lease, (_, holder) in self.held.items() if holder == worker]
        rounds = [self.held.pop(lease)[0] for lease in leases]
        for round in rounds:
            heapq.heappush(self._returned, round)
        return rounds

    def _chosen(self, worker: str, ready: list[int]) -> int:
        """Return the first round, or, if other workers have its entries, the next one whose entries this worker has."""
        first, strip = ready[0], self.rounds.strip
        if not any(strip(first) in has for has in self._has.values()):
            return first
        return next((round for round in ready if strip(round) in self._has[worker]), first)

    def _hold(self, round: int, worker: str) -> tuple[int, int]:
        lease = self._next_lease
        self._next_lease += 1
        self.held[lease] = (round, worker)
        return lease, round
