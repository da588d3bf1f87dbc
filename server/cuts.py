"""A consistent cut of the table without stopping it: each partition is copied when it reaches the round of the cut.

Every shard does this by itself and arrives at the same state of the whole training. Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from common.errors import NotReady
from common.messages import Push

from .consistency import Consistency, ExclusiveBlocks
from .sessions import Peer
from .table import Table

MAX_ASKERS = 256
MAX_UNWRITTEN = 4

Rows = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Snapshot:
    """What a checkpoint of one shard holds: its rows and the facts that resume it."""

    label: str
    first: int
    rows: Rows
    facts: dict[str, Any]
    versions: npt.NDArray[np.int64] | None = None


class Cut:
    """The rows of one shard as they are after exactly `round` rounds; `complete` once every partition got there."""

    def __init__(self, round: int, table: Table, order: ExclusiveBlocks, bounds: npt.NDArray[np.int64]) -> None:
        self.round = round
        self.rows = np.empty_like(table.values)
        self._table, self._order, self._bounds = table, order, bounds
        self._missing = {p for p in range(len(bounds) - 1) if self._span(p)[0] < self._span(p)[1]}
        if any(order.rounds[p] > round for p in self._missing):
            raise NotReady(f"some rows are past round {round} already: ask for a later one")
        for partition in sorted(self._missing):
            self.offer(partition)

    @property
    def complete(self) -> bool:
        """Whether `rows` is the cut."""
        return not self._missing

    def offer(self, partition: int) -> None:
        """Look at a partition after each of its rounds, before the next."""
        if partition in self._missing and self._order.rounds[partition] == self.round:
            low, high = self._span(partition)
            self.rows[low:high] = self._table.values[low:high]
            self._missing.discard(partition)

    def _span(self, partition: int) -> tuple[int, int]:
        low = max(int(self._bounds[partition]), self._table.first)
        high = min(int(self._bounds[partition + 1]), self._table.last)
        return low - self._table.first, high - self._table.first


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
        self._order = consistency if isinstance(consistency, ExclusiveBlocks) else None
        self._rounds = 0 if self._order is None else epochs * len(self._order.rounds)
        self._cuts: list[Cut] = []
        self._ready: list[Snapshot] = []
        self._askers: list[tuple[str, Peer, int]] = []
        self._unwritten: set[str] = set()
        self._on_disk: set[str] = set()
        self._asked: set[str] = set()
        self._count = 0
        self._taken: int | None = None
        self._planned = 0
        if every and self._order is not None:  # a resumed run is past some of its checkpoints
            self._planned = int(self._order.rounds.min()) // every * every
        self._plan()

    @property
    def in_order(self) -> bool:
        """Whether rows go through rounds, so that consistent cuts exist."""
        return self._order is not None

    @property
    def round(self) -> int:
        """The round that all rows have reached, -1 when they are apart or have no order."""
        if self._order is None or len(rounds := np.unique(self._order.rounds[self._ours()])) != 1:
            return -1
        return int(rounds[0])

    def _ours(self) -> npt.NDArray[np.int64]:
        """Partitions that have rows on this shard."""
        assert self._order is not None
        bounds = np.clip(self._order.bounds, self._table.first, self._table.last)
        return np.flatnonzero(np.diff(bounds))

    def request(self, round: int, peer: Peer, number: int) -> str | None:
        """Somebody asks for a cut after `round` rounds (-1: soon; without an order: now) and wants to hear of it.

        Returns the label of a checkpoint that is on disk already, None when its asker hears later. Raises NotReady
        when the table is past the round, or when so many copies of it are wanted already that more would fill memory.
        """
        if any((peer, number) == asker[1:] for asker in self._askers):
            return None
        if len(self._askers) >= MAX_ASKERS:
            raise NotReady(f"{MAX_ASKERS} requests for checkpoints wait already: ask again later")
        if self._order is None:
            self._may_copy()
            self._count += 1
            label = f"asked-{self._count:06d}"
            self._asked.add(label)
            self._add(self.snapshot(label, self._table.values.copy()))
        else:
            soon = int(self._order.rounds.max()) + 2
            label = self._label(round := min(round if round >= 0 else soon, self._rounds))
            if label in self._on_disk:
                return label
            self._asked.add(label)
            if label not in self._unwritten:
                self._may_copy()
                self._cut_at(round)
        self._askers.append((label, peer, number))
        return None

    def offer(self, push: Push) -> None:
        """A push was applied: take what the cuts wait for."""
        if self._order is not None and self._cuts:
            partition = self._order.partition(push.first, push.last)
            for cut in self._cuts:
                cut.offer(partition)
            if self._order.rounds[partition] == self._planned:
                self._plan()
            self._collect()

    def after(self, updates: int) -> None:
        """Without an order: so many updates (of minibatches, gradients) are in; take what is due, if there is room.

        Every shard counts the same ones, so that the parts of a checkpoint bear one name, however they came together.
        """
        if self._order is not None or not self._every:
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

        Nobody can be past it then, and every shard plans the same rounds.
        """
        self._planned += self._every
        is_due = bool(self._every) and self._planned < self._rounds
        if is_due and self._label(self._planned) not in self._unwritten:
            self._cut_at(self._planned)

    def _may_copy(self) -> None:
        if len(self._unwritten) >= MAX_UNWRITTEN:
            raise NotReady(f"{MAX_UNWRITTEN} checkpoints are on their way already: ask again when they are written")

    def _cut_at(self, round: int) -> None:
        assert self._order is not None
        self._cuts.append(Cut(round, self._table, self._order, self._order.bounds))
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
