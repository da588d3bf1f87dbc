"""Compile the loops that send rows as bfloat16: narrow rows, widen them, and take differences. No I/O.

Rounding is that of `bfloat16`: to the nearest, ties away from zero.
"""

import numpy as np

from ..array_types import Halves, Rows
from ..runtime.compiled import compiled_fast


@compiled_fast
def narrowed(value: np.float32) -> np.uint16:
    """Return a finite float32 as bfloat16."""
    return np.uint16((np.float32(value).view(np.uint32) + np.uint32(0x8000)) >> np.uint32(16))


@compiled_fast
def widened(half: np.uint16) -> np.float32:
    """Return the exact float32 of a bfloat16."""
    return np.uint32(np.uint32(half) << np.uint32(16)).view(np.float32)


@compiled_fast
def join(halves: Halves, low: Halves) -> Rows:
    """Return the float32 whose bfloat16 is `halves` and whose lower half is `low`, all of the same shape."""
    out = np.empty(halves.shape, np.float32)
    for n in range(halves.shape[0]):
        for k in range(halves.shape[1]):
            rest = np.uint32(low[n, k])
            rounded_up = (rest & np.uint32(0x8000)) << np.uint32(1)
            out[n, k] = np.uint32((np.uint32(halves[n, k]) << np.uint32(16)) - rounded_up + rest).view(np.float32)
    return out


@compiled_fast
def narrow(rows: Rows) -> Halves:
    """Return rows as bfloat16, shape (rows, width)."""
    out = np.empty(rows.shape, np.uint16)
    for n in range(rows.shape[0]):
        for k in range(rows.shape[1]):
            out[n, k] = narrowed(rows[n, k])
    return out


@compiled_fast
def widen(halves: Halves, out: Rows) -> None:
    """Write the float32 of each bfloat16 to `out`, of the same shape."""
    for n in range(halves.shape[0]):
        for k in range(halves.shape[1]):
            out[n, k] = widened(halves[n, k])


@compiled_fast
def subtract_from(rows: Rows, halves: Halves) -> None:
    """Replace `halves` by the differences `rows` - `halves`, as bfloat16; both have the same shape."""
    for n in range(rows.shape[0]):
        for k in range(rows.shape[1]):
            halves[n, k] = narrowed(rows[n, k] - widened(halves[n, k]))


@compiled_fast
def all_finite(halves: Halves) -> bool:
    """Return whether no bfloat16 of a contiguous 2-d array is NaN or infinite."""
    flat = halves.ravel()
    good = True
    for k in range(flat.size):
        good &= (flat[k] & np.uint16(0x7F80)) != np.uint16(0x7F80)
    return good
