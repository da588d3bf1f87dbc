"""Plot curves in characters: braille dots, eight to a cell, or ASCII on a terminal without UTF-8. No I/O."""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # by row and column in a cell
_BLANK = 0x2800


def braille_plot(
    curves: Sequence[Sequence[tuple[float, float]]], width: int, height: int, *, ascii_only: bool = False
) -> tuple[list[list[tuple[str, int]]], tuple[float, float]]:
    """Plot curves of (x, y) with a logarithmic y axis into `height` rows of `width` cells.

    Returns the rows, each a list of (character, number of the curve drawn there or -1), and the limits of the y axis.
    Where curves meet, the first curve is on top. The other curves are dashed. Points with y <= 0 are left out.
    """
    logarithms = [[(x, math.log(y)) for x, y in curve if y > 0] for curve in curves]
    points = [point for curve in logarithms for point in curve]
    cells: dict[tuple[int, int], tuple[int, int]] = {}  # (line, column): number of the curve, bits of its dots
    limits = 0.0, 1.0
    if points:
        left, right = min(x for x, _ in points), max(x for x, _ in points)
        low, high = min(y for _, y in points), max(y for _, y in points)
        middle, half = (low + high) / 2, max((high - low) / 2, 0.05)
        low, high = middle - half, middle + half
        limits = math.exp(low), math.exp(high)
        for number in reversed(range(len(logarithms))):
            heights = _by_column(logarithms[number], left, right, 2 * width)
            for row, column in _dots(heights, low, high, 4 * height, dashed=number > 0):
                cell = row // 4, column // 2
                owner, bits = cells.get(cell, (number, 0))
                cells[cell] = number, (bits if owner == number else 0) | _DOTS[row % 4][column % 2]
    drawn = ([cells.get((line, column), (-1, 0)) for column in range(width)] for line in range(height))
    return [[(_character(owner, bits, ascii_only), owner) for owner, bits in line] for line in drawn], limits


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


def _dots(
    heights: Sequence[float | None], low: float, high: float, rows: int, *, dashed: bool
) -> Iterator[tuple[int, int]]:
    """Yield the (row, column) of every dot of a curve."""
    before: int | None = None
    for column, y in enumerate(heights):
        row = None if y is None else round((high - y) / (high - low) * (rows - 1))
        if row is not None and not (dashed and column % 4 >= 2):
            last = row if before is None else before
            joined = range(min(row, last + 1), max(row + 1, last))  # from the dot to the one before it
            yield from ((each, column) for each in joined)
        before = row


def _character(owner: int, bits: int, ascii_only: bool) -> str:
    if not bits:
        return " "
    if ascii_only:
        return "-" if owner else "*"
    return chr(_BLANK + bits)
