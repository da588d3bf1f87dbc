"""How stale pushes are when they are applied: counts in bins 0, 1, 2-3, 4-7 and so on by powers of two. Pure.

The staleness of a push is what the version of its rows has grown by since they were pulled: how many changes it knows
nothing of. Exclusive order makes it 0; the asynchronous modes make it a distribution that one wants to see.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

BINS = 14
"""The last bin holds everything from 4,096 on."""
_LOWEST = 1 << np.arange(BINS - 1)
"""The least staleness of each bin but the first."""


class Histogram:
    """Counts pushes by staleness; bounded, whatever comes."""

    def __init__(self) -> None:
        self.counts = [0] * BINS
        self.last = 0

    def count(self, tau: int, times: int = 1) -> None:
        """So many pushes were applied that knew nothing of `tau` changes; less than none is none."""
        self.last = max(tau, 0)
        self.counts[min(self.last.bit_length(), BINS - 1)] += times

    def count_all(self, ages: npt.NDArray[np.int64]) -> None:
        """Count each of many, none below 0."""
        bins = np.bincount(np.searchsorted(_LOWEST, ages, "right"), minlength=BINS)
        self.counts = [count + int(more) for count, more in zip(self.counts, bins, strict=True)]

    @property
    def pushes(self) -> int:
        """Pushes counted."""
        return sum(self.counts)

    def as_fields(self) -> dict[str, int]:
        """Bin -> pushes, in order, up to the last bin that has any: `{"0": 12, "1": 3, "2-3": 1}`."""
        used = max((bin for bin, count in enumerate(self.counts) if count), default=-1) + 1
        return {label(bin): self.counts[bin] for bin in range(used)}


def label(bin: int) -> str:
    """What a bin is called: `0`, `1`, `2-3`, ..., `4096+`."""
    if bin < 2:
        return str(bin)
    low = 1 << (bin - 1)
    return f"{low}+" if bin == BINS - 1 else f"{low}-{2 * low - 1}"
