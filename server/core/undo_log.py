"""Rows as they were before the last rounds, while a block of those rounds may have to be trained again.

A block changes two partitions, on one shard or two. When its worker is lost in between, whoever trains it again needs
both as they were. What is kept goes as soon as the block is known to be in the table whole. No I/O, no clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from glovewire.common.array_types import Array
from glovewire.common.errors import NotReady


@dataclass(frozen=True, eq=False)
class Before:
    """Rows from `first` on, as they were at the start of `round`."""

    lease: int
    first: int
    round: int
    rows: Array


@dataclass
class Undo:
    """What is kept, newest last."""

    _kept: list[Before] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, before: Before) -> None:
        """Keep rows that a push is about to change."""
        self._kept.append(before)

    def reported(self, lease: int) -> None:
        """The block of a lease is in the table whole."""
        self._kept = [kept for kept in self._kept if kept.lease != lease]

    def read(self, first: int, last: int, round: int) -> Array:
        """A copy of rows [first, last) as they were at the start of `round`; NotReady when they are not kept."""
        for kept in self._kept:
            if kept.round == round and kept.first <= first and last <= kept.first + len(kept.rows):
                return kept.rows[first - kept.first : last - kept.first].copy()
        raise NotReady(f"rows {first}..{last} are past version {round}")

    def forget(self, floor: int) -> None:
        """Every block of the rounds before `floor` is in the table whole."""
        if self._kept and any(kept.round < floor for kept in self._kept):
            self._kept = [kept for kept in self._kept if kept.round >= floor]
