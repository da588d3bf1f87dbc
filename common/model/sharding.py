"""Divide the rows of a table among shards: contiguous ranges whose sizes differ by at most one row. No I/O."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..array_types import Indices


@dataclass(frozen=True)
class ShardRange:
    """Rows [first, last) of the table, all owned by `shard`."""

    shard: int
    first: int
    last: int


@dataclass(frozen=True)
class Sharding:
    """Division of `rows` rows among `shards` shards: shard s owns rows [bound(s), bound(s + 1))."""

    rows: int
    shards: int

    def bound(self, shard: int) -> int:
        """Return the first row of a shard; `bound(shards)` is the number of rows."""
        return self.rows * shard // self.shards

    def range(self, shard: int) -> tuple[int, int]:
        """Return the first row of a shard and the row after its last."""
        return self.bound(shard), self.bound(shard + 1)

    def split(self, first: int, last: int) -> list[ShardRange]:
        """Cut rows [first, last) at shard bounds; return the parts in row order, one per shard that owns any."""
        spans = ((s, max(first, self.bound(s)), min(last, self.bound(s + 1))) for s in range(self.shards))
        return [ShardRange(s, low, high) for s, low, high in spans if low < high]

    def split_small(self, first: int, last: int, most: int) -> Iterator[ShardRange]:
        """Yield the parts that `split` returns, cut further into parts of at most `most` rows (at least 1)."""
        most = max(most, 1)
        for part in self.split(first, last):
            for low in range(part.first, part.last, most):
                yield ShardRange(part.shard, low, min(low + most, part.last))

    def split_rows(self, rows: Indices) -> list[tuple[int, slice]]:
        """Return each shard with the slice of `rows` (ascending row numbers) that it owns; slices may be empty."""
        if self.shards == 1:
            return [(0, slice(0, len(rows)))]
        cuts = np.searchsorted(rows, [self.bound(s) for s in range(self.shards + 1)])
        return [(s, slice(int(cuts[s]), int(cuts[s + 1]))) for s in range(self.shards)]
