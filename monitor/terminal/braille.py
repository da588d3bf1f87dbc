"""Plot curves in characters: braille dots, eight to a cell, or ASCII on a terminal without UTF-8. No I/O."""

import math
from collections.abc import Sequence
from itertools import pairwise

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # by row and column in a cell
_BLANK = 0x2800


def braille_plot(
    curves: Sequence[Sequence[tuple[float, float]]], width: int, height: int, *, ascii_only: bool = False
) -> tuple[list[list[tuple[str, int]]], tuple[float, float]]:
    """Plot curves of (x, y) with a logarithmic y axis into `height` rows of `width` cells.

    Returns the rows, each a list of (character, number of the curve drawn there or -1), and the limits of the y axis.
    Where curves meet, the first curve is on top. Points with y <= 0 are left out.
    """
    logarithms = [[(x, math.log(y)) for x, y in curve if y > 0] for curve in curves]
    points = [point for curve in logarithms for point in curve]
    bits = [[0] * width for _ in range(height)]
    owner = [[-1] * width for _ in range(height)]
    if not points:
        return _as_rows(bits, owner, ascii_only), (0.0, 1.0)
    left, right = min(x for x, _ in points), max(x for x, _ in points)
    low, high = min(y for _, y in points), max(y for _, y in points)
    middle, half = (low + high) / 2, max((high - low) / 2, 0.05)
    low, high = middle - half, middle + half
    for number in reversed(range(len(logarithms))):
        heights = _by_column(logarithms[number], left, right, 2 * width)
        _draw(heights, number, low, high, bits, owner)
    return _as_rows(bits, owner, ascii_only), (math.exp(low), math.exp(high))


def _by_column(curve: Sequence[tuple[float, float]], left: float, right: float, columns: int) -> list[float | None]:
    """Return the mean y of each column; interpolate columns between points; columns outside the curve are None."""
    span = (right - left) or 1.0
    columns_of: list[list[float]] = [[] for _ in range(columns)]
    for x, y in curve:
        columns_of[min(columns - 1, int((x - left) / span * columns))].append(y)
    means: list[float | None] = [sum(ys) / len(ys) if ys else None for ys in columns_of]
    known = [(column, y) for column, y in enumerate(means) if y is not None]
    for (start, y0), (end, y1) in pairwise(known):
        for column in range(start + 1, end):
            means[column] = y0 + (y1 - y0) * (column - start) / (end - start)
    return means


def _draw(
    heights: Sequence[float | None], number: int, low: float, high: float, bits: list[list[int]], owner: list[list[int]]
) -> None:
    """Set the dots of curve `number` in `bits`, and its number in `owner`; curves other than 0 are dashed."""
    rows = 4 * len(bits)
    before: int | None = None
    for column, y in enumerate(heights):
        if y is None:
            before = None
            continue
        row = round((high - y) / (high - low) * (rows - 1))
        is_gap = number > 0 and column % 4 >= 2
        for dot in range(*_joined(before, row)) if not is_gap else ():
            line, cell = dot // 4, column // 2
            if owner[line][cell] != number:
                bits[line][cell], owner[line][cell] = 0, number
            bits[line][cell] |= _DOTS[dot % 4][column % 2]
        before = row


def _joined(before: int | None, row: int) -> tuple[int, int]:
    """Return (start, end) of the dot rows to set so that the dot at `row` joins the last one; `end` is exclusive."""
    if before is None or abs(before - row) <= 1:
        return row, row + 1
    return (before + 1, row + 1) if before < row else (row, before)


def _as_rows(bits: list[list[int]], owner: list[list[int]], ascii_only: bool) -> list[list[tuple[str, int]]]:
    return [
        [
            (" " if not b else ("*" if o == 0 else "-") if ascii_only else chr(_BLANK + b), o)
            for b, o in zip(bit_row, owner_row, strict=True)
        ]
        for bit_row, owner_row in zip(bits, owner, strict=True)
    ]
