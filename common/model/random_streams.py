"""Make the random streams of a training: one per purpose and number, independent, a function of the seed alone.

Philox is counter-based, so any process can draw any stream without drawing those before it.
"""

from enum import IntEnum

import numpy as np


class Purpose(IntEnum):
    """What a stream is for; streams of different purposes are independent."""

    ROWS = 1
    ROUNDS = 2
    TILES = 3
    BATCHES = 4
    LATENCY = 5


def stream(seed: int, purpose: Purpose, number: int, part: int = 0) -> np.random.Generator:
    """Return stream `number` (0 to 2**56 - 1) of a purpose, at the start of one of its 2**64 parts."""
    key = [seed, (int(purpose) << 56) + number]
    return np.random.Generator(np.random.Philox(key=key, counter=[0, part, 0, 0]))
