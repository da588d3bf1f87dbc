"""Flatten the spectrum of trained vectors, the last step from rows to the vectors of a run. No I/O.

A few directions hold much of the length of nearly all trained vectors, and so decide much of every cosine. Levy,
Goldberg and Dagan (2015) found the same of singular value decompositions of such matrices, and that raising the
singular values to a power below 1 helps.
"""

import numpy as np

from ..array_types import Rows

CHUNK_ROWS = 4096
_MIN_STRENGTH = 1e-6


def flatten_spectrum(vectors: Rows, power: float) -> Rows:
    """Stretch `vectors` (words, dim) by s**(power - 1) along each principal direction of strength s, in place.

    The principal directions are those of the vectors at length 1, since cosines matter; the strength of one is the root
    mean square of the coordinates along it, over that of all directions. A power of 1 changes nothing, nor do vectors
    that hold NaN or infinity, or only zeros.
    """
    if power == 1.0 or not np.isfinite(vectors).all():
        return vectors
    pieces = [slice(first, first + CHUNK_ROWS) for first in range(0, len(vectors), CHUNK_ROWS)]
    squares = np.zeros((vectors.shape[1],) * 2)
    for piece in pieces:
        unit = vectors[piece].astype(np.float64)
        unit /= np.maximum(np.linalg.norm(unit, axis=1, keepdims=True), np.finfo(np.float64).tiny)
        squares += unit.T @ unit
    mean = np.trace(squares) / len(squares)
    if mean > 0:
        strengths, directions = np.linalg.eigh(squares / mean)
        stretch = np.maximum(strengths, _MIN_STRENGTH) ** ((power - 1.0) / 2.0)
        transform = (directions * stretch) @ directions.T
        for piece in pieces:
            vectors[piece] = vectors[piece] @ transform
    return vectors
