"""Rows in one piece, or in several that are exchanged whole: what has arrived takes a place and is not copied."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from common.array_types import Array, Indices

from . import kernels


class Pages:
    """Takes `rows` (rows, width) over. `bounds` are where pages begin and end, counted from the first row.

    With several pages none is ever changed in place: whoever has been given one may keep it.
    """

    def __init__(self, rows: Array, bounds: Sequence[int] = ()) -> None:
        cuts = sorted({0, *bounds, len(rows)})
        self.shape: tuple[int, int] = rows.shape[0], rows.shape[1]
        self.dtype = rows.dtype
        self._starts = np.array(cuts[:-1] or [0])
        self._pages = [rows] if len(cuts) <= 2 else _divided(rows, cuts)

    @property
    def divided(self) -> bool:
        """Whether there are several."""
        return len(self._pages) > 1

    def whole(self) -> Array:
        """All rows as one array: the one that they are in, or a copy of all pages."""
        return np.concatenate(self._pages) if self.divided else self._pages[0]

    def join(self) -> Array:
        """The same, and they stay in that array; never is more than a page there twice."""
        if self.divided:
            rows = np.empty(self.shape, self.dtype)
            for number, start in enumerate(self._starts.tolist()):
                page, self._pages[number] = self._pages[number], rows[:0]
                rows[start : start + len(page)] = page
            self._starts, self._pages = self._starts[:1], [rows]
        return self._pages[0]

    def between(self, low: int, high: int) -> Array:
        """Rows [low, high): part of a page, or a copy when they are in several."""
        number = int(np.searchsorted(self._starts, low, "right")) - 1
        page, start = self._pages[number], int(self._starts[number])
        if high > start + len(page):
            page = np.concatenate(self._pages[number : int(np.searchsorted(self._starts, high))])
        return page[low - start : high - start]

    def gather(self, rows: Indices, first: int = 0) -> Array:
        """A copy of the given rows, in their order; they are counted from `first`."""
        if not self.divided:
            return kernels.gather(self._pages[0], kernels.aligned(rows), first)
        rows, found = rows - first, np.empty((len(rows), self.shape[1]), self.dtype)
        numbers = np.searchsorted(self._starts, rows, "right") - 1
        for number in np.unique(numbers).tolist():
            here = numbers == number
            found[here] = self._pages[number][rows[here] - self._starts[number]]
        return found

    def replace(self, low: int, rows: Array) -> Array:
        """Put `rows` at [low, ...) and return what was there. A page takes them as they are, and must not be split."""
        if not self.divided:
            before = self._pages[0][low : low + len(rows)].copy()
            self._pages[0][low : low + len(rows)] = rows
            return before
        number = int(np.searchsorted(self._starts, low))
        before, self._pages[number] = self._pages[number], rows
        assert len(before) == len(rows)
        return before


def _divided(rows: Array, cuts: Sequence[int]) -> list[Array]:
    """Pages of their own, from the last to the first: what is copied is cut off, so that memory holds all but once."""
    pages = []
    rows = rows if rows.flags.owndata else rows.copy()
    for low in reversed(cuts[:-1]):
        pages.append(rows[low:].copy())
        rows.resize((low, rows.shape[1]), refcheck=False)
    return pages[::-1]
