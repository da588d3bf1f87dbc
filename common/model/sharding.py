"""Divide the rows of a table among shards: contiguous ranges whose sizes differ by at most one row. No I/O."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

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

    def split_small(
        self, first: int, last: int, most: int, rows: Indices | None = None
    ) -> Iterator[tuple[ShardRange, slice]]:
        """Yield the parts that `split` returns, cut further so that each has at most `most` (at least 1) of the `rows`.

        `rows` are ascending row numbers in [first, last), None for all of them. Each part is yielded with its slice of
        `rows`, which may be empty.
        """
        most = max(most, 1)
        for part in self.split(first, last):
            if rows is None:
                for low in range(part.first, part.last, most):
                    high = min(low + most, part.last)
                    yield ShardRange(part.shard, low, high), slice(low - first, high - first)
                continue
            start, stop = np.searchsorted(rows, [part.first, part.last]).tolist()
            cuts = [*range(start, stop, most)] or [start]
            edges = [part.first, *rows[cuts[1:]].tolist(), part.last]
            for span, low, high in zip(pairwise([*cuts, stop]), edges, edges[1:], strict=False):
                yield ShardRange(part.shard, low, high), slice(*span)

    def split_rows(self, rows: Indices) -> list[tuple[int, slice]]:
        """Return each shard with the slice of `rows` (ascending row numbers) that it owns; slices may be empty."""
        if self.shards == 1:
            return [(0, slice(0, len(rows)))]
        cuts = np.searchsorted(rows, [self.bound(s) for s in range(self.shards + 1)])
        return [(s, slice(int(cuts[s]), int(cuts[s + 1]))) for s in range(self.shards)]
