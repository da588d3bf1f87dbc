"""Arrays of rows that begin on a cache line: vector loads from them cost less. Nothing else."""

from __future__ import annotations

import numpy as np

from common.array_types import Rows

LINE_FLOATS = 16


def aligned(rows: int, width: int) -> Rows:
    """An uninitialised float32 array of shape (rows, width)."""
    raw = np.empty(rows * width + LINE_FLOATS, np.float32)
    start = -raw.ctypes.data // raw.itemsize % LINE_FLOATS
    return raw[start : start + rows * width].reshape(rows, width)


def copied(rows: Rows) -> Rows:
    """A copy of rows of shape (rows, width)."""
    copy = aligned(*rows.shape)
    copy[:] = rows
    return copy
