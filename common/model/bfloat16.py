"""Convert to bfloat16, the upper 16 bits of a float32, and back, with whole arrays of numpy. No I/O.

`bfloat16_kernels` has the same conversions for compiled loops, which a client of dense models need not load.
"""

import numpy as np

from ..array_types import Floats, Halves, Rows

BFLOAT16 = np.dtype("<u2")
"""The upper 16 bits of a float32 (sign, exponent, 7 fraction bits), as an unsigned integer."""


def to_bfloat16(values: Floats) -> Halves:
    """Round finite values to bfloat16: relative error up to 1/256, infinity from about 3.4e38 on.

    Ties are rounded away from zero, so that the lower half of a float32 says by itself whether it was rounded up.
    """
    with np.errstate(over="ignore"):
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + np.uint32(0x8000)) >> np.uint32(16)).astype(BFLOAT16)


def from_bfloat16(values: Halves) -> Rows:
    """Return the exact float32 of each bfloat16."""
    return (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
