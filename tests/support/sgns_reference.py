"""Skip-gram's loss and gradients in plain numpy, the kernels' reference; `worker.kernels.sgns` has the formula.

No I/O, no state, any float dtype.
"""

from __future__ import annotations

import numpy as np

from glovewire.common.array_types import Floats


def weights_of(weights: Floats, rows: int, negatives: float) -> Floats:
    """Weights of the pairs, shape (pairs,), followed by those of `rows` shared negatives: shape (pairs + rows,)."""
    return np.concatenate([weights, np.full(rows, negatives * weights.sum() / rows)])


def loss(u: Floats, v: Floats, n: Floats, weights: Floats, negatives: float) -> float:
    """Loss of a group: u (dim,), pairs v (pairs, dim) with weights (pairs,), shared negatives n (rows, dim)."""
    signed = np.concatenate([v @ u, -(n @ u)])
    return float(weights_of(weights, len(n), negatives) @ np.logaddexp(0.0, -signed))


def gradients(u: Floats, v: Floats, n: Floats, weights: Floats, negatives: float) -> tuple[Floats, Floats, Floats]:
    """Gradients of `loss` with respect to u (dim,), v (pairs, dim) and n (rows, dim)."""
    signs = np.concatenate([np.ones(len(v)), -np.ones(len(n))])
    others = np.concatenate([v, n])
    scale = -signs * weights_of(weights, len(n), negatives) / (1.0 + np.exp(signs * (others @ u)))
    to_others = scale[:, None] * u
    return scale @ others, to_others[: len(v)], to_others[len(v) :]
