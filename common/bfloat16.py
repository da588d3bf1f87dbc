"""Float32 in half the bytes, for gradients: sign, exponent and the first 7 bits after the point, as uint16. Pure."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

DTYPE = np.dtype("<u2")
_LOW = np.uint32(16)


def narrowed(values: npt.NDArray[np.floating]) -> npt.NDArray[np.uint16]:
    """The nearest bfloat16 of each of these finite values, ties to even: within 1/256 of it.

    What is as large as 3.4e38 becomes infinity.
    """
    with np.errstate(over="ignore"):
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    half = np.uint32(0x7FFF) + ((bits >> _LOW) & np.uint32(1))
    return ((bits + half) >> _LOW).astype(DTYPE)


def widened(values: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """The float32 that each bfloat16 is, exactly."""
    return (values.astype(np.uint32) << _LOW).view(np.float32)
