"""Keep before-images of rows while a block of the last rounds may have to be trained again. No I/O.

A block changes two partitions, on one shard or two. If its worker is lost after changing only one, the worker that
trains the block again needs both unchanged. A before-image is dropped once its block is complete in every table.
"""

from dataclasses import dataclass, field

from glovewire.common.array_types import Array
from glovewire.common.errors import NotReady


@dataclass(frozen=True, eq=False)
class BeforeImage:
    """Rows from `first` on as they were at the start of `round`, before the push under `lease`."""

    lease: int
    first: int
    round: int
    rows: Array


@dataclass
class UndoLog:
    """The before-images that are kept, newest last."""

    _kept: list[BeforeImage] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, image: BeforeImage) -> None:
        """Keep the before-image of a push."""
        self._kept.append(image)

    def drop_lease(self, lease: int) -> None:
        """Drop the images of the block of `lease`, which is complete in every table."""
        self._kept = [kept for kept in self._kept if kept.lease != lease]

    def drop_before(self, round: int) -> None:
        """Drop the images of all rounds before `round`."""
        if self._kept and any(kept.round < round for kept in self._kept):
            self._kept = [kept for kept in self._kept if kept.round >= round]

    def read(self, first: int, last: int, round: int) -> Array:
        """Return a copy of rows [first, last) as they were at the start of `round`; NotReady if they are not kept."""
        for kept in self._kept:
            if kept.round == round and kept.first <= first and last <= kept.first + len(kept.rows):
                return kept.rows[first - kept.first : last - kept.first].copy()
        raise NotReady(f"rows {first}..{last} are past version {round}")
