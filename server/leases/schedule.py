"""Decide which block may be trained next, and which worker holds which. No I/O, no clock.

A block is granted only after its predecessors (the blocks of the previous round on either partition) were granted; its
pulls then wait for the rows. So leases never wait in a cycle, whichever workers hold them. A block whose holder is lost
is granted before all others, because they may depend on it.
"""

import heapq
from collections import Counter
from dataclasses import dataclass, field

from glovewire.common.model.rounds import Pair, epoch_rounds

LOOKAHEAD_ROUNDS = 3
ROUNDS_AHEAD = 8
"""No block is granted this many rounds after the first that is incomplete, which bounds the before-images on a shard.

Workers that can all be busy, one for two partitions, hold no more rounds than that at LEASES_PER_WORKER each.
"""
LEASES_PER_WORKER = 8
"""Most of these blocks are trained and being pushed: a worker asks for more when few are left to train."""


@dataclass(frozen=True, order=True)
class Block:
    """One visit of block (a, b), in global round `round`, when both partitions are at version `round`."""

    round: int
    a: int
    b: int


MAX_ROUNDS = 1 << 62


@dataclass
class Schedule:
    """All visits of a training of `epochs` epochs over `partitions` partitions, from global round `start` on.

    `completed` counts the blocks trained. No block of round `limit` or later is granted.
    """

    partitions: int
    epochs: int
    seed: int
    start: int = 0
    completed: int = 0
    limit: int = MAX_ROUNDS
    _ungranted: dict[int, list[Pair]] = field(default_factory=dict)
    _returned: list[Block] = field(default_factory=list)
    _held: dict[int, tuple[Block, str]] = field(default_factory=dict)
    _next_lease: int = 1

    def __post_init__(self) -> None:
        """Start at round `start`: all earlier rounds have been trained."""
        self._granted_rounds = [self.start] * self.partitions
        self._last_holder = [""] * self.partitions
        self._leases_on = [0] * self.partitions
        self._leases_of: Counter[str] = Counter()
        self._first_round = self.start
        self._end = self.partitions * self.epochs
        self._left = self._blocks_from(self.start)

    @property
    def complete(self) -> bool:
        """Return whether every block of every epoch has been trained."""
        return self._left == 0

    @property
    def round(self) -> int:
        """Return the first round of which no block has been granted; no partition can be past it."""
        return max(self._granted_rounds)

    def stop(self) -> None:
        """Train only the rounds that have begun, so that every partition ends at the same one."""
        self._end = min(self._end, self.round)
        ungranted = sum(len(self._pairs(number)) for number in range(self._first_round, self._end))
        self._left = ungranted + len(self._held) + len(self._returned)

    @property
    def low_water(self) -> int:
        """Return the first round with a block that is not trained yet."""
        rounds = [block.round for block, _ in self._held.values()] + [block.round for block in self._returned]
        return min([*rounds, self._first_ungranted()])

    def _first_ungranted(self) -> int:
        while self._first_round < self._end and not self._pairs(self._first_round):
            self._ungranted.pop(self._first_round)
            self._first_round += 1
        return self._first_round

    def epoch_of(self, block: Block) -> int:
        """Return the epoch (from 0) of a visit."""
        return block.round // self.partitions

    def grant(self, worker: str) -> tuple[int, Block] | None:
        """Return a lease (its number and block) for `worker`, None while the worker must wait.

        A worker holds at most LEASES_PER_WORKER, but a block taken back from another one is always granted: all others
        may depend on it.
        """
        if self._returned:
            return self._hold(heapq.heappop(self._returned), worker)
        if self._leases_of[worker] >= LEASES_PER_WORKER:
            return None
        best = min(self._candidates(), key=lambda block: self._cost(block, worker), default=None)
        if best is None:
            return None
        self._ungranted[best.round].remove((best.a, best.b))
        for partition in {best.a, best.b}:
            self._granted_rounds[partition] = best.round + 1
        return self._hold(best, worker)

    def holder(self, lease: int) -> str | None:
        """Return the worker that holds a lease, None when it has ended."""
        return self._held[lease][1] if lease in self._held else None

    def held_in(self, round: int) -> dict[int, tuple[Block, str]]:
        """Return the block and the worker of each lease of a round, by lease."""
        return {lease: held for lease, held in self._held.items() if held[0].round == round}

    def block(self, lease: int) -> Block:
        """Return the block of a lease that has a holder."""
        return self._held[lease][0]

    def finish(self, lease: int) -> Block:
        """End a lease, count its block as trained, and return the block."""
        self._left -= 1
        self.completed += 1
        return self._end_lease(lease)

    def release(self, worker: str) -> list[Block]:
        """Take back every lease of a worker that left or was lost; return their blocks, which are granted first."""
        leases = [lease for lease, (_, holder) in self._held.items() if holder == worker]
        blocks = [self._end_lease(lease) for lease in leases]
        for block in blocks:
            heapq.heappush(self._returned, block)
        return blocks

    def _blocks_from(self, start: int) -> int:
        per_epoch = self.partitions * (self.partitions + 1) // 2
        epoch, offset = divmod(start, self.partitions)
        if epoch >= self.epochs:
            return 0
        first = sum(map(len, epoch_rounds(self.partitions, self.seed, epoch)[offset:])) if offset else per_epoch
        return first + (self.epochs - epoch - 1) * per_epoch

    def _hold(self, block: Block, worker: str) -> tuple[int, Block]:
        lease = self._next_lease
        self._next_lease += 1
        self._held[lease] = (block, worker)
        self._leases_of[worker] += 1
        for partition in {block.a, block.b}:
            self._leases_on[partition] += 1
            self._last_holder[partition] = worker
        return lease, block

    def _end_lease(self, lease: int) -> Block:
        block, worker = self._held.pop(lease)
        self._leases_of[worker] -= 1
        if not self._leases_of[worker]:
            del self._leases_of[worker]
        for partition in {block.a, block.b}:
            self._leases_on[partition] -= 1
        return block

    def _candidates(self) -> list[Block]:
        """Return the ungranted blocks of the next rounds whose predecessors have all been granted."""
        first = self._first_ungranted()
        last = min(first + LOOKAHEAD_ROUNDS, self.low_water + ROUNDS_AHEAD, self._end, self.limit)
        return [
            Block(number, a, b)
            for number in range(first, last)
            for a, b in self._pairs(number)
            if self._granted_rounds[a] == number == self._granted_rounds[b]
        ]

    def _pairs(self, number: int) -> list[Pair]:
        """Return the ungranted blocks of a round."""
        if number not in self._ungranted:
            epoch, offset = divmod(number, self.partitions)
            for index, pairs in enumerate(epoch_rounds(self.partitions, self.seed, epoch)[offset:], number):
                self._ungranted.setdefault(index, list(pairs))
        return self._ungranted[number]

    def _cost(self, block: Block, worker: str) -> tuple[int, int, int]:
        """Return a block's rank, lowest first: partitions leased to others, round, -partitions `worker` had last."""
        foreign = own = 0
        for partition in {block.a, block.b}:
            if self._last_holder[partition] == worker:
                own += 1
            elif self._leases_on[partition]:
                foreign += 1
        return foreign, block.round, -own
