"""Divide the rows of a table among shards: contiguous ranges whose sizes differ by at most one row. No I/O."""

from dataclasses import dataclass

import numpy as np

from ..array_types import Indices


@dataclass(frozen=True)
class ShardRange:
    """Rows [first, last) of the table, all on one shard."""

    shard: int
    first: int
    last: int


@dataclass(frozen=True)
class Sharding:
    """`rows` rows over `shards` shards, of which shard s owns [bound(s), bound(s + 1))."""

    rows: int
    shards: int

    def bound(self, shard: int) -> int:
        """Return the first row of a shard; `bound(shards)` is the number of rows."""
        return self.rows * shard // self.shards

    def split(self, first: int, last: int) -> list[ShardRange]:
        """Return the parts of [first, last) in row order, one for each shard that owns some of it."""
        spans = ((s, max(first, self.bound(s)), min(last, self.bound(s + 1))) for s in range(self.shards))
        return [ShardRange(s, low, high) for s, low, high in spans if low < high]

    def split_rows(self, rows: Indices) -> list[tuple[int, slice]]:
        """Return each shard with the slice of ascending `rows` that it owns, which may be empty."""
        if self.shards == 1:
            return [(0, slice(0, len(rows)))]
        cuts = np.searchsorted(rows, [self.bound(s) for s in range(self.shards + 1)])
        return [(s, slice(int(cuts[s]), int(cuts[s + 1]))) for s in range(self.shards)]
