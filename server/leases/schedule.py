"""Decide which strip is trained next, and which worker holds which. No I/O, no clock.

Strips are granted in the order of their rounds; its pulls then wait for the rows. Waiting follows that order, so leases
never wait in a cycle, whichever workers hold them. A strip whose holder is lost is granted before all others, because
they may depend on it.
"""

import heapq
from collections import Counter

from glovewire.common.model.rounds import Rounds

LEASES_PER_WORKER = 4
"""Strips in training, prefetched, and on their way back; a worker has the rows of their partitions in memory."""


MAX_ROUNDS = 1 << 62


class Schedule:
    """All rounds of a training, from round `start` on: earlier ones have been trained.

    No round is granted one epoch or more after the first that is incomplete, which bounds the before-images on a shard;
    none of round `limit` or later either.
    """

    def __init__(self, rounds: Rounds, start: int = 0) -> None:
        self.rounds = rounds
        self.completed, self.limit = 0, MAX_ROUNDS
        self._next, self._end = start, rounds.total
        self._returned: list[int] = []
        self._held: dict[int, tuple[int, str]] = {}
        self._leases_of: Counter[str] = Counter()
        self._next_lease = 1

    @property
    def complete(self) -> bool:
        """Return whether every round has been trained."""
        return self._next >= self._end and not self._held and not self._returned

    @property
    def round(self) -> int:
        """Return the first round that has not been granted; no partition can be past it."""
        return self._next

    def stop(self) -> None:
        """Train only the rounds that have been granted, so that every partition ends at the same one."""
        self._end = min(self._end, self._next)

    @property
    def low_water(self) -> int:
        """Return the first round that is not trained yet."""
        return min([self._next, *self._returned, *(round for round, _ in self._held.values())])

    def grant(self, worker: str, most: int = LEASES_PER_WORKER) -> tuple[int, int] | None:
        """Return a lease (its number and round) for `worker`, None while the worker must wait.

        A worker holds at most `most`, but a strip taken back from another one is always granted: all others
        may depend on it.
        """
        if self._returned:
            return self._hold(heapq.heappop(self._returned), worker)
        last = min(self._end, self.limit, self.low_water + self.rounds.partitions)
        if self._leases_of[worker] >= most or self._next >= last:
            return None
        self._next += 1
        return self._hold(self._next - 1, worker)

    def holder(self, lease: int) -> str | None:
        """Return the worker that holds a lease, None when it has ended."""
        return self._held[lease][1] if lease in self._held else None

    def held_in(self, round: int) -> dict[int, tuple[int, str]]:
        """Return the round and the worker of the lease of a round, by lease."""
        return {lease: held for lease, held in self._held.items() if held[0] == round}

    def round_of(self, lease: int) -> int:
        """Return the round of a lease that has a holder."""
        return self._held[lease][0]

    def finish(self, lease: int) -> int:
        """End a lease, count its strip as trained, and return the round."""
        self.completed += 1
        return self._end_lease(lease)

    def release(self, worker: str) -> list[int]:
        """Take back every lease of a worker that left or was lost; return their rounds, which are granted first."""
        leases = [lease for lease, (_, holder) in self._held.items() if holder == worker]
        rounds = [self._end_lease(lease) for lease in leases]
        for round in rounds:
            heapq.heappush(self._returned, round)
        return rounds

    def _hold(self, round: int, worker: str) -> tuple[int, int]:
        lease = self._next_lease
        self._next_lease += 1
        self._held[lease] = (round, worker)
        self._leases_of[worker] += 1
        return lease, round

    def _end_lease(self, lease: int) -> int:
        round, worker = self._held.pop(lease)
        self._leases_of[worker] -= 1
        if not self._leases_of[worker]:
            del self._leases_of[worker]
        return round
