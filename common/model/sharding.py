"""Which server owns which rows: contiguous ranges that differ by at most one row. Pure arithmetic, no I/O."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Part:
    """A contiguous piece of a range: rows [first, last) of the table, all on one shard."""

    shard: int
    first: int
    last: int


@dataclass(frozen=True)
class Sharding:
    """`rows` rows over `shards` servers; shard s owns [bounds(s), bounds(s + 1)). Nothing is lost by the remainder."""

    rows: int
    shards: int

    def bound(self, shard: int) -> int:
        """First row of a shard; `bound(shards)` is the number of rows."""
        return self.rows * shard // self.shards

    def split(self, first: int, last: int) -> list[Part]:
        """The pieces of [first, last) in row order, one for each shard that owns some of it."""
        spans = ((s, max(first, self.bound(s)), min(last, self.bound(s + 1))) for s in range(self.shards))
        return [Part(s, low, high) for s, low, high in spans if low < high]

    def split_rows(self, rows: npt.NDArray[np.int64]) -> list[tuple[int, slice]]:
        """For ascending `rows`: each shard, and the slice of `rows` that it owns, which may be empty."""
        if self.shards == 1:
            return [(0, slice(0, len(rows)))]
        cuts = np.searchsorted(rows, [self.bound(s) for s in range(self.shards + 1)])
        return [(s, slice(int(cuts[s]), int(cuts[s + 1]))) for s in range(self.shards)]
