"""The order in which words are written for other programs: Stanford's and word2vec's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def most_frequent_first(words: Sequence[str], counts: npt.NDArray[np.int64]) -> list[int]:
    """The places of `words` by falling count (shape (words,)), ties in byte order."""
    return sorted(range(len(words)), key=lambda place: (-int(counts[place]), words[place].encode()))
