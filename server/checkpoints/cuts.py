"""A cut of the table without stopping it: each partition is copied when it reaches the round of the cut.

Every shard does this by itself. In exclusive order all arrive at the same state of the whole training. Blocks in any
order are cut when every block of the rounds before is known to be in the table; some of later rounds are in it, too.
Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from glovewire.common.array_types import Rows
from glovewire.common.errors import BadRequest, NotReady
from glovewire.common.protocol.messages import Push

from ..consistency.blocks import AsynchronousBlocks, ExclusiveBlocks
from ..consistency.interface import Consistency
from ..sessions import Peer
from ..table.table import Table

MAX_ASKERS = 256
MAX_UNWRITTEN = 4
LAST_CHECKPOINT = "the run is ending and leaves its final checkpoint"
FINAL = "final"
SUMMARY = "summary"
"""The fact of a final checkpoint that tells how the generation ended."""

Blocks = ExclusiveBlocks | AsynchronousBlocks


def final_label(generation: int) -> str:
    """Return the label of the final checkpoint of a generation; each generation has its own."""
    return f"{FINAL}-{generation:06d}" if generation else FINAL


@dataclass(frozen=True)
class Snapshot:
    """What a checkpoint of one shard holds: its rows and the facts that resume it."""

    label: str
    first: int
    rows: Rows
    facts: dict[str, Any]
    versions: npt.NDArray[np.int64] | None = None


class Cut:
    """The rows of one shard as they are after `round` rounds; `complete` once every partition got there."""

    def __init__(self, round: int, table: Table, blocks: Blocks) -> None:
        self.round = round
        self.rows = np.empty(table.shape, table.dtype)
        self._table, self._blocks = table, blocks
        self._missing = {p for p in range(len(blocks.rounds)) if self._span(p)[0] < self._span(p)[1]}
        if any(blocks.rounds[p] > round for p in self._missing):
            raise NotReady(f"some rows are past round {round} already: ask for a later one")
        for partition in sorted(self._missing):
            self.offer(partition)

    @property
    def complete(self) -> bool:
        """Whether `rows` is the cut."""
        return not self._missing

    def offer(self, partition: int) -> None:
        """Look at a partition after each of its rounds, in exclusive order before the next."""
        if partition in self._missing and self._blocks.rounds[partition] >= self.round:
            first, last = self._span(partition)
            self.rows[first - self._table.first : last - self._table.first] = self._table.between(first, last)
            self._missing.discard(partition)

    def _span(self, partition: int) -> tuple[int, int]:
        first = max(int(self._blocks.bounds[partition]), self._table.first)
        return first, min(int(self._blocks.bounds[partition + 1]), self._table.last)


class Cuts:
    """Every checkpoint of one shard that is planned, asked for, or ready to be written."""

    def __init__(
        self,
        table: Table,
        consistency: Consistency,
        epochs: int,
        every: int,
        facts: Callable[[], dict[str, Any]],
    ) -> None:
        self._table, self._consistency, self._every, self._facts = table, consistency, every, facts
        self._blocks = consistency if isinstance(consistency, Blocks) else None
        self._rounds = 0 if self._blocks is None else epochs * len(self._blocks.rounds)
        self._cuts: list[Cut] = []
        self._ready: list[Snapshot] = []
        self._askers: list[tuple[str, Peer, int]] = []
        self._unwritten: set[str] = set()
        self._on_disk: set[str] = set()
        self._asked: set[str] = set()
        self._taken: int | None = None
        self._planned = 0
        self._plan()

    @property
    def in_order(self) -> bool:
        """Whether the rows of a partition go through one round after the other."""
        return isinstance(self._blocks, ExclusiveBlocks)

    @property
    def round(self) -> int:
        """The round that all rows have reached, -1 when they are apart or there are no rounds."""
        if self._blocks is None or len(rounds := np.unique(self._blocks.rounds[self._ours()])) != 1:
            return -1
        return int(rounds[0])

    @property
    def awaited(self) -> bool:
        """Whether somebody has asked for a checkpoint and not heard of it yet."""
        return bool(self._askers)

    def _ours(self) -> npt.NDArray[np.int64]:
        """Partitions that have rows on this shard."""
        assert self._blocks is not None
        bounds = np.clip(self._blocks.bounds, self._table.first, self._table.last)
        return np.flatnonzero(np.diff(bounds))

    def request(self, round: int, peer: Peer, number: int) -> str | None:
        """Somebody asks for a cut after `round` rounds (-1: soon) and wants to hear of it.

        Of minibatches it is the table as it is now, and `round` the number under which all shards are asked for it.
        Returns the label of a checkpoint that is on disk already, None when its asker hears later. Raises NotReady
        when the table is past the round, or when so many copies of it are wanted already that more would fill memory;
        BadRequest for minibatches without a number.
        """
        if any((peer, number) == asker[1:] for asker in self._askers):
            return None
        if len(self._askers) >= MAX_ASKERS:
            raise NotReady(f"{MAX_ASKERS} requests for checkpoints wait already: ask again later")
        if self._blocks is None and round < 0:
            raise BadRequest("minibatches have no rounds: give a checkpoint of them a number, the same to every shard")
        if self._blocks is None:
            label = f"asked-{self._facts()['generation']:06d}-{round:010d}"
        else:
            soon = int(self._blocks.rounds.max()) + 2
            label = self._label(round := min(round if round >= 0 else soon, self._rounds))
        if label in self._on_disk:
            return label
        self._asked.add(label)
        if label not in self._unwritten:
            self._may_copy()
            if self._blocks is None:
                self._add(self.snapshot(label, self._table.values.copy()))
            else:
                self._cut_at(round)
        self._askers.append((label, peer, number))
        return None

    def offer(self, push: Push) -> None:
        """A push was applied: in exclusive order a partition has come a round further."""
        if isinstance(self._blocks, ExclusiveBlocks) and self._cuts:
            self._advance([self._blocks.partition(push.first, push.last)])

    def whole(self, floor: int) -> None:
        """Every block of the rounds before `floor` is in the table: without an order all that is known."""
        if isinstance(self._blocks, AsynchronousBlocks) and self._blocks.advance_floor(min(floor, self._rounds)):
            self._advance(range(len(self._blocks.rounds)))

    def after(self, updates: int) -> None:
        """Without rounds: so many updates (of minibatches, gradients) are in; take what is due, if there is room.

        Every shard counts the same ones, so that the parts of a checkpoint bear one name, however they came together.
        """
        if self._blocks is not None or not self._every:
            return
        before = (updates - 1) // self._every if self._taken is None else self._taken
        self._taken = updates // self._every
        label = f"update-{self._taken * self._every:08d}"
        if self._taken > before and label not in self._unwritten and len(self._unwritten) < MAX_UNWRITTEN:
            self._add(self.snapshot(label, self._table.values.copy()))

    def take(self) -> list[Snapshot]:
        """Checkpoints that are ready to be written."""
        ready, self._ready = self._ready, []
        return ready

    def written(self, label: str, *, on_disk: bool = True) -> list[tuple[Peer, int]]:
        """A checkpoint was written, or could not be: who asked for it, peer and request number."""
        asked = [(peer, number) for name, peer, number in self._askers if name == label]
        self._askers = [asker for asker in self._askers if asker[0] != label]
        self._unwritten.discard(label)
        if on_disk:
            self._on_disk.add(label)
        return asked

    def gone(self, labels: Sequence[str]) -> None:
        """Checkpoints were removed from disk."""
        self._on_disk.difference_update(labels)

    def give_up(self) -> list[tuple[Peer, int]]:
        """The run is over: those who asked for cuts that will not come, peer and request number."""
        hopeless = {self._label(cut.round) for cut in self._cuts}
        asked = [(peer, number) for name, peer, number in self._askers if name in hopeless]
        self._askers = [asker for asker in self._askers if asker[0] not in hopeless]
        return asked

    def snapshot(self, label: str, rows: Rows, round: int = -1) -> Snapshot:
        """`rows` with the facts that resume them."""
        facts = {**self._facts(), "label": label, "round": round, "asked": label in self._asked}
        versions = None if self._table.versions is None else self._table.versions.copy()
        return Snapshot(label, self._table.first, rows, facts, versions)

    def _plan(self) -> None:
        """Plan the next automatic checkpoint when the first partition has come to the one before.

        Nobody can be past it then, and every shard plans the same rounds. One is left out where the disk is too slow.
        """
        if self._blocks is None or not self._every:
            return
        self._planned = (int(self._blocks.rounds.max()) // self._every + 1) * self._every
        is_new = self._label(self._planned) not in self._unwritten and len(self._unwritten) < MAX_UNWRITTEN
        if self._planned < self._rounds and is_new:
            self._cut_at(self._planned)

    def _advance(self, partitions: Sequence[int]) -> None:
        """Partitions have come further: take what the cuts wait for."""
        assert self._blocks is not None
        for cut in self._cuts:
            for partition in partitions:
                cut.offer(partition)
        if any(self._blocks.rounds[partition] >= self._planned for partition in partitions):
            self._plan()
        self._collect()

    def _may_copy(self) -> None:
        if len(self._unwritten) >= MAX_UNWRITTEN:
            raise NotReady(f"{MAX_UNWRITTEN} checkpoints are on their way already: ask again when they are written")

    def _cut_at(self, round: int) -> None:
        assert self._blocks is not None
        self._cuts.append(Cut(round, self._table, self._blocks))
        self._unwritten.add(self._label(round))
        self._collect()

    def _collect(self) -> None:
        complete = [cut for cut in self._cuts if cut.complete]
        self._cuts = [cut for cut in self._cuts if not cut.complete]
        for cut in complete:
            self._add(self.snapshot(self._label(cut.round), cut.rows, cut.round))

    def _add(self, snapshot: Snapshot) -> None:
        self._ready.append(snapshot)
        self._unwritten.add(snapshot.label)

    @staticmethod
    def _label(round: int) -> str:
        return f"round-{round:08d}"
