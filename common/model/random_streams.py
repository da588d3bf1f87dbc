"""Make the independent random streams of a training: each is a function of (seed, purpose, number).

Philox is counter-based, so any process can draw from any stream without generating the earlier ones.
"""

from enum import IntEnum

import numpy as np


class Purpose(IntEnum):
    """What a stream is for; streams of different purposes are independent."""

    ROWS = 1
    TILES = 3
    BATCHES = 4
    LATENCY = 5


def stream(seed: int, purpose: Purpose, number: int, part: int = 0) -> np.random.Generator:
    """Return a generator for stream `number` (0 to 2**56 - 1) of a purpose, at the start of `part` (0 to 2**64 - 1)."""
    key = [seed, (int(purpose) << 56) + number]
    return np.random.Generator(np.random.Philox(key=key, counter=[0, part, 0, 0]))
