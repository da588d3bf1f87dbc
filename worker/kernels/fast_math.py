"""Compute logarithm, exponential and GloVe weight of a float32, and the stride for visiting the groups of a tile."""

import math
from typing import Any

import numpy as np

from glovewire.common.runtime.compiled import compiled, compiled_fast

LN_2 = np.float32(0.6931471805599453)


@compiled_fast
def log(x: Any) -> Any:
    """Return the natural logarithm of a positive normal float32, to about 1e-7: exponent plus atanh series."""
    bits = np.float32(x).view(np.int32)
    exponent = np.float32((bits >> 23) - 127)
    mantissa = np.int32((bits & 0x7FFFFF) | 0x3F800000).view(np.float32)
    high = mantissa > np.float32(1.4142135)
    mantissa = np.float32(0.5) * mantissa if high else mantissa
    exponent = exponent + np.float32(1) if high else exponent
    t = (mantissa - np.float32(1)) / (mantissa + np.float32(1))
    q = t * t
    tail = np.float32(1 / 5) + q * (np.float32(1 / 7) + q * np.float32(1 / 9))
    return exponent * LN_2 + np.float32(2) * t * (np.float32(1) + q * (np.float32(1 / 3) + q * tail))


@compiled_fast
def exp(x: Any) -> Any:
    """Return the exponential of a float32 between -80 and 0, to about 1e-6: power of two and Taylor series."""
    whole = np.floor(x * np.float32(1 / 0.6931471805599453) + np.float32(0.5))
    f = x - whole * LN_2
    tail = np.float32(1 / 24) + f * (np.float32(1 / 120) + f * np.float32(1 / 720))
    series = np.float32(1) + f * (np.float32(1) + f * (np.float32(0.5) + f * (np.float32(1 / 6) + f * tail)))
    return np.int32((np.int32(whole) + 127) << 23).view(np.float32) * series


@compiled_fast
def glove_weight(log_x: Any, log_max: Any, alpha: Any) -> Any:
    """Return GloVe's weight min(1, (x / x_max)^alpha) from the logarithms of x and x_max."""
    return exp(min(max(alpha * (log_x - log_max), np.float32(-80)), np.float32(0)))


@compiled
def coprime_stride(seed: int, size: int) -> int:
    """Return a stride of about 0.6 x `size`, chosen by `seed`; being coprime to `size`, it visits all places."""
    found = int(size * (0.55 + 0.1 * ((seed * 2654435761) % 4096) / 4096.0)) | 1
    while math.gcd(found, size) != 1:
        found += 1
    return found
