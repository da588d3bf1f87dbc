"""Which block may be trained next, and who holds which. Decides only: no clock of its own, no I/O.

Blocks are granted in an order in which every predecessor (the block of the round before on either partition) has been
granted earlier; the pulls themselves wait for the rows. So leases never form a cycle, whoever holds them. A block
whose holder is lost goes back to the front, before anything that depends on it.
"""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass, field

from glovewire.common.model.rounds import Pair, epoch_rounds

LOOKAHEAD_ROUNDS = 3
LEASES_PER_WORKER = 8
"""Most of them are trained and on their way back: a worker asks while it has few that are still to be trained."""


@dataclass(frozen=True, order=True)
class Block:
    """One visit: block (a, b) in global round `round`; both partitions must be at version `round`."""

    round: int
    a: int
    b: int


@dataclass
class Schedule:
    """All visits of a training of `epochs` epochs over `partitions` partitions, from global round `start` on."""

    partitions: int
    epochs: int
    seed: int
    start: int = 0
    completed: int = 0
    _waiting: dict[int, list[Pair]] = field(default_factory=dict)
    _returned: list[Block] = field(default_factory=list)
    _held: dict[int, tuple[Block, str]] = field(default_factory=dict)
    _next_lease: int = 1

    def __post_init__(self) -> None:
        """Begin at `start`: everything before it has been trained."""
        self._granted_to = [self.start] * self.partitions  # partition -> rounds granted
        self._last_holder = [""] * self.partitions
        self._leases_on = [0] * self.partitions
        self._leases_of: Counter[str] = Counter()
        self._floor = self.start  # first round that may still have ungranted blocks
        self._end = self.partitions * self.epochs
        self._left = self._blocks_from(self.start)

    @property
    def rounds(self) -> int:
        """Global rounds to be trained: of all epochs, or fewer after `stop`."""
        return self._end

    @property
    def complete(self) -> bool:
        """Whether every block of every epoch has been trained."""
        return self._left == 0

    @property
    def round(self) -> int:
        """The highest round of which a block has been granted, plus one: a cut here is still ahead of everybody."""
        return max(self._granted_to)

    def stop(self) -> None:
        """Train only the rounds that have been begun, so that every partition ends at the same one."""
        self._end = min(self._end, max(self._granted_to))
        ungranted = sum(len(self._pairs(number)) for number in range(self._floor, self._end))
        self._left = ungranted + len(self._held) + len(self._returned)

    @property
    def floor(self) -> int:
        """The first round that has a block that is not trained yet."""
        rounds = [block.round for block, _ in self._held.values()] + [block.round for block in self._returned]
        return min([*rounds, self._first_ungranted()])

    def _first_ungranted(self) -> int:
        while self._floor < self.rounds and not self._pairs(self._floor):
            self._waiting.pop(self._floor)
            self._floor += 1
        return self._floor

    def epoch_of(self, block: Block) -> int:
        """Epoch (from 0) of a visit."""
        return block.round // self.partitions

    def grant(self, worker: str) -> tuple[int, Block] | None:
        """A lease (its number and block) for `worker`, or None while it must wait.

        A worker holds at most LEASES_PER_WORKER, but a returned block is always granted: all else may wait for it.
        """
        if self._returned:
            return self._hold(heapq.heappop(self._returned), worker)
        if self._leases_of[worker] >= LEASES_PER_WORKER:
            return None
        best = min(self._candidates(), key=lambda block: self._cost(block, worker), default=None)
        if best is None:
            return None
        self._waiting[best.round].remove((best.a, best.b))
        for partition in {best.a, best.b}:
            self._granted_to[partition] = best.round + 1
        return self._hold(best, worker)

    def holder(self, lease: int) -> str | None:
        """Who holds a lease, or None when it has ended."""
        return self._held[lease][1] if lease in self._held else None

    def block(self, lease: int) -> Block:
        """The block of a lease that stands."""
        return self._held[lease][0]

    def finish(self, lease: int) -> Block:
        """Count the block of a lease as trained."""
        self._left -= 1
        self.completed += 1
        return self._let_go(lease)

    def release(self, worker: str) -> list[Block]:
        """Take back every lease of a worker that left or was lost."""
        mine = [lease for lease, (_, holder) in self._held.items() if holder == worker]
        blocks = [self._let_go(lease) for lease in mine]
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

    def _let_go(self, lease: int) -> Block:
        block, worker = self._held.pop(lease)
        self._leases_of[worker] -= 1
        if not self._leases_of[worker]:
            del self._leases_of[worker]
        for partition in {block.a, block.b}:
            self._leases_on[partition] -= 1
        return block

    def _candidates(self) -> list[Block]:
        """Ungranted blocks of the next rounds whose predecessors have all been granted."""
        self._first_ungranted()
        found = []
        for number in range(self._floor, min(self._floor + LOOKAHEAD_ROUNDS, self.rounds)):
            for a, b in self._pairs(number):
                if self._granted_to[a] == number == self._granted_to[b]:
                    found.append(Block(number, a, b))
        return found

    def _pairs(self, number: int) -> list[Pair]:
        if number not in self._waiting:
            epoch, offset = divmod(number, self.partitions)
            for index, pairs in enumerate(epoch_rounds(self.partitions, self.seed, epoch)[offset:], number):
                self._waiting.setdefault(index, list(pairs))
        return self._waiting[number]

    def _cost(self, block: Block, worker: str) -> tuple[int, int, int]:
        """Blocks that wait for nobody else first, then early rounds, then those whose rows the worker has."""
        foreign = mine = 0
        for partition in {block.a, block.b}:
            if self._last_holder[partition] == worker:
                mine += 1
            elif self._leases_on[partition]:
                foreign += 1
        return foreign, block.round, -mine
