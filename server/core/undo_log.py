"""Keep before-images of partitions while the block that changed them may have to be trained again. No I/O.

A block changes two partitions, on one shard or two. If its worker is lost after changing only one, the worker that
trains the block again needs both unchanged. A before-image is dropped once its block is complete in every table, so
there is at most one for each partition and round between the first incomplete round and the last one granted
(`leases.schedule.ROUNDS_AHEAD`).
"""

from dataclasses import dataclass, field

from glovewire.common.array_types import Array
from glovewire.common.errors import NotReady


@dataclass
class UndoLog:
    """The before-images that are kept: (round, partition) -> first row, rows at the start of the round."""

    _kept: dict[tuple[int, int], tuple[int, Array]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, round: int, partition: int, first: int, rows: Array) -> None:
        """Keep the rows, from `first` on, that `partition` had at the start of `round`."""
        self._kept[round, partition] = first, rows

    def drop_block(self, round: int, a: int, b: int) -> None:
        """Drop the images of a block, which is complete in every table."""
        for partition in (a, b):
            self._kept.pop((round, partition), None)

    def drop_before(self, round: int) -> None:
        """Drop the images of all rounds before `round`."""
        if any(kept < round for kept, _ in self._kept):
            self._kept = {key: image for key, image in self._kept.items() if key[0] >= round}

    def read(self, round: int, partition: int, first: int, last: int) -> Array:
        """Return a copy of rows [first, last) as they were at the start of `round`; NotReady if they are not kept."""
        if (image := self._kept.get((round, partition))) is None:
            raise NotReady(f"rows {first}..{last} are past version {round}")
        start, rows = image
        return rows[first - start : last - start].copy()
