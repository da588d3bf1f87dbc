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


def stream(seed: int, purpose: Purpose, number: int) -> np.random.Generator:
    """The stream `number` (0 to 2**56 - 1) of a purpose."""
    return np.random.Generator(np.random.Philox(key=[seed, (int(purpose) << 56) + number]))
