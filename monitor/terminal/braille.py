"""A curve in characters: braille dots, eight to a cell, or plain ASCII where a terminal has nothing better. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # by row and column in a cell
_BLANK = 0x2800


def chart(
    curves: Sequence[Sequence[tuple[float, float]]], width: int, height: int, *, ascii_only: bool = False
) -> tuple[list[list[tuple[str, int]]], tuple[float, float]]:
    """Draw curves of (x, y > 0) on a logarithmic scale into `height` rows of `width` cells.

    Returns the rows, each a list of (character, number of the curve that is drawn there, or -1), and the range of y.
    Where curves meet, the first one is seen. Points with y <= 0 are left out.
    """
    good = [[(x, math.log(y)) for x, y in curve if y > 0] for curve in curves]
    points = [point for curve in good for point in curve]
    bits = [[0] * width for _ in range(height)]
    owner = [[-1] * width for _ in range(height)]
    if not points:
        return _as_rows(bits, owner, ascii_only), (0.0, 1.0)
    left, right = min(x for x, _ in points), max(x for x, _ in points)
    low, high = min(y for _, y in points), max(y for _, y in points)
    middle, half = (low + high) / 2, max((high - low) / 2, 0.05)
    low, high = middle - half, middle + half
    for number in reversed(range(len(good))):
        heights = _by_column(good[number], left, right, 2 * width)
        _trace(heights, number, low, high, bits, owner)
    return _as_rows(bits, owner, ascii_only), (math.exp(low), math.exp(high))


def _by_column(curve: Sequence[tuple[float, float]], left: float, right: float, columns: int) -> list[float | None]:
    """The mean y in each column; columns between points get what lies between."""
    span = (right - left) or 1.0
    sums: list[list[float]] = [[] for _ in range(columns)]
    for x, y in curve:
        sums[min(columns - 1, int((x - left) / span * columns))].append(y)
    found: list[float | None] = [sum(ys) / len(ys) if ys else None for ys in sums]
    known = [column for column, y in enumerate(found) if y is not None]
    for start, end in pairwise(known):
        y0, y1 = found[start] or 0.0, found[end] or 0.0
        for column in range(start + 1, end):
            found[column] = y0 + (y1 - y0) * (column - start) / (end - start)
    return found


def _trace(
    heights: Sequence[float | None],
    number: int,
    low: float,
    high: float,
    bits: list[list[int]],
    owner: list[list[int]],
) -> None:
    rows = 4 * len(bits)
    before: int | None = None
    for column, y in enumerate(heights):
        if y is None:
            before = None
            continue
        row = round((high - y) / (high - low) * (rows - 1))
        rest = number > 0 and column % 4 >= 2  # curves behind the first are dashed
        for dot in range(*_between(before, row)) if not rest else ():
            line, cell = dot // 4, column // 2
            if owner[line][cell] != number:
                bits[line][cell], owner[line][cell] = 0, number
            bits[line][cell] |= _DOTS[dot % 4][column % 2]
        before = row


def _between(before: int | None, row: int) -> tuple[int, int]:
    """Rows that join the last dot with this one, so that steep curves do not fall apart."""
    if before is None or abs(before - row) <= 1:
        return row, row + 1
    return (before + 1, row + 1) if before < row else (row, before)


def _as_rows(bits: list[list[int]], owner: list[list[int]], ascii_only: bool) -> list[list[tuple[str, int]]]:
    return [
        [(_character(b, o, ascii_only), o) for b, o in zip(bit_row, owner_row, strict=True)]
        for bit_row, owner_row in zip(bits, owner, strict=True)
    ]


def _character(bits: int, owner: int, ascii_only: bool) -> str:
    if not bits:
        return " "
    if ascii_only:
        return "*" if owner == 0 else "-"
    return chr(_BLANK + bits)
