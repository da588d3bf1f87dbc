"""Count which rows are pushed most: one counter per row, and one per range of rows. No I/O, no clock.

Strips push ranges of rows, in which nearly every row changes; minibatches push rows by number.
"""

from collections import Counter

import numpy as np

from glovewire.common.protocol.messages import Push

from . import kernels

MAX_RANGES = 4096


class HotRows:
    """Counts of pushes to rows [first, first + rows); four bytes per row."""

    def __init__(self, first: int, rows: int) -> None:
        self._first = first
        self._by_row = np.zeros(rows, np.uint32)
        self._by_range: Counter[tuple[int, int]] = Counter()
        self._rows_pushed = False

    def count(self, push: Push) -> None:
        """Count a push that the table has checked; a row that occurs twice in it counts twice."""
        if push.rows is not None and push.first == push.last:
            kernels.count_rows(self._by_row, kernels.aligned(push.rows), self._first)
            self._rows_pushed = True
        elif push.first < push.last and (len(self._by_range) < MAX_RANGES or (push.first, push.last) in self._by_range):
            self._by_range[push.first, push.last] += 1

    def hottest(self, most: int = 8) -> dict[str, int]:
        """Return pushes by row (`17`, or `0-4095` for a range), the `most` frequent ones in descending order."""
        counts: Counter[str] = Counter()
        if self._rows_pushed:
            size = min(most, len(self._by_row))
            best = np.argpartition(self._by_row, -size)[-size:].tolist()
            counts.update({str(self._first + row): int(self._by_row[row]) for row in best if self._by_row[row]})
        counts.update({f"{first}-{last - 1}": n for (first, last), n in self._by_range.most_common(most)})
        return dict(counts.most_common(most))
