"""The last step from rows to the vectors of a run: directions that most words share count less. Pure.

A few directions hold much of the length of nearly all trained vectors, and so decide much of every cosine. Levy,
Goldberg and Dagan (2015) found the same of singular value decompositions of such matrices, and that taking the singular
values to a power below 1 helps.
"""

from __future__ import annotations

import numpy as np

from ..array_types import Rows

_ROWS_AT_ONCE = 4096
_LEAST = 1e-6


def evened(vectors: Rows, power: float) -> Rows:
    """`vectors` (words, dim), each stretched by s**(power - 1) along each direction of strength s; in place.

    Directions are the principal ones of the vectors at length 1, since cosines are what counts; a strength is the root
    mean square of their coordinates there, over that of all directions. A power of 1 changes nothing. Rows that hold
    something that is no number, or nothing but zeros, stay as they are.
    """
    if power == 1.0 or not np.isfinite(vectors).all():
        return vectors
    pieces = [slice(first, first + _ROWS_AT_ONCE) for first in range(0, len(vectors), _ROWS_AT_ONCE)]
    squares = np.zeros((vectors.shape[1],) * 2)
    for piece in pieces:
        unit = vectors[piece].astype(np.float64)
        unit /= np.maximum(np.linalg.norm(unit, axis=1, keepdims=True), np.finfo(np.float64).tiny)
        squares += unit.T @ unit
    mean = np.trace(squares) / len(squares)
    if mean > 0:
        strengths, directions = np.linalg.eigh(squares / mean)
        stretch = np.maximum(strengths, _LEAST) ** ((power - 1.0) / 2.0)
        turn = (directions * stretch) @ directions.T
        for piece in pieces:
            vectors[piece] = vectors[piece] @ turn
    return vectors
