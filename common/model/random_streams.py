"""Every random stream of a training: independent for each purpose, a function of the seed and a number alone.

Philox is counter-based, so any process can draw any stream without drawing those before it.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class Purpose(IntEnum):
    """What is drawn; streams of different purposes share nothing."""

    ROWS = 1
    ROUNDS = 2
    TILES = 3
    BATCHES = 4
    LATENCY = 5


def stream(seed: int, purpose: Purpose, number: int, part: int = 0) -> np.random.Generator:
    """The stream `number` (0 to 2**56 - 1) of a purpose, from the beginning of one of its 2**64 parts."""
    key = [seed, (int(purpose) << 56) + number]
    return np.random.Generator(np.random.Philox(key=key, counter=[0, part, 0, 0]))
