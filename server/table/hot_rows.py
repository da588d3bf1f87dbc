"""Which rows are pushed most: a counter a row, and one for each range that is pushed whole. No clock, no I/O.

Blocks push whole partitions, so there the ranges are what one asks for; minibatches push rows by number.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from glovewire.common.protocol.messages import Push

from . import kernels

MAX_RANGES = 4096


class Heat:
    """Counts pushes to rows [first, first + rows); four bytes a row."""

    def __init__(self, first: int, rows: int) -> None:
        self._first = first
        self._by_row = np.zeros(rows, np.uint32)
        self._by_range: Counter[tuple[int, int]] = Counter()
        self._rows_pushed = False

    def count(self, push: Push) -> None:
        """A push that the table has checked was applied; a row that stands in it twice counts twice."""
        if push.rows is not None:
            kernels.count(self._by_row, kernels.aligned(push.rows), self._first)
            self._rows_pushed = True
        elif push.first < push.last and (len(self._by_range) < MAX_RANGES or (push.first, push.last) in self._by_range):
            self._by_range[push.first, push.last] += 1

    def hottest(self, most: int = 8) -> dict[str, int]:
        """Rows (`17`, or `0-4095` for a range pushed whole) -> pushes, the most pushed first."""
        ranges = {f"{first}-{last - 1}": n for (first, last), n in self._by_range.most_common(most)}
        both = sorted({**self._hottest_rows(most), **ranges}.items(), key=lambda item: -item[1])
        return dict(both[:most])

    def _hottest_rows(self, most: int) -> dict[str, int]:
        if not self._rows_pushed:
            return {}
        count = min(most, len(self._by_row))
        best = np.argpartition(self._by_row, -count)[-count:]
        return {str(self._first + int(row)): int(self._by_row[row]) for row in best if self._by_row[row]}
