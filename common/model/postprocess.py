"""Flatten the spectrum of trained vectors before they are written to the run folder. No I/O.

Nearly all trained vectors have large components along the same few directions, which dominate their cosines. Levy,
Goldberg and Dagan (2015) observed this in singular value decompositions of co-occurrence matrices, and found that
raising the singular values to a power below 1 improves the vectors.
"""

from collections.abc import Iterator

import numpy as np

from ..array_types import Rows

CHUNK_ROWS = 4096
_MIN_STRENGTH = 1e-6


def flatten_spectrum(vectors: Rows, power: float) -> Rows:
    """Scale `vectors`, shape (words, dim), in place by s**(power - 1) along each principal direction; return them.

    The principal directions are those of the vectors scaled to length 1. The strength s of a direction is the root mean
    square of their coordinates along it, divided by the root mean square over all directions. A power of 1, and vectors
    that contain NaN or infinity or are all zero, leave `vectors` unchanged.
    """
    for _ in flattened_in_pieces(vectors, power):
        pass
    return vectors


def flattened_in_pieces(vectors: Rows, power: float) -> Iterator[None]:
    """Do what `flatten_spectrum` does, but yield after each CHUNK_ROWS rows, so that the caller can do other work."""
    pieces = [slice(first, first + CHUNK_ROWS) for first in range(0, len(vectors), CHUNK_ROWS)]
    if power == 1.0 or not all(np.isfinite(vectors[piece]).all() for piece in pieces):
        return
    squares = np.zeros((vectors.shape[1],) * 2)
    for piece in pieces:
        unit = vectors[piece].astype(np.float64)
        unit /= np.maximum(np.linalg.norm(unit, axis=1, keepdims=True), np.finfo(np.float64).tiny)
        squares += unit.T @ unit
        yield
    mean = np.trace(squares) / len(squares)
    if mean > 0:
        strengths, directions = np.linalg.eigh(squares / mean)
        stretch = np.maximum(strengths, _MIN_STRENGTH) ** ((power - 1.0) / 2.0)
        transform = (directions * stretch) @ directions.T
        for piece in pieces:
            vectors[piece] = vectors[piece] @ transform
            yield
