"""Skip-gram with negative sampling (Mikolov et al. 2013) on weighted pairs, in plain numpy: the kernels' reference.

A group is one row u against the rows v of its pairs, each with a weight w, and against shared negatives n:

    loss = - sum_k w_k log s(u . v_k) - (K sum_k w_k / M) sum_m log s(-u . n_m),   s(x) = 1 / (1 + exp(-x))

with K negatives for each pair, estimated from M rows. The weight of a pair is GloVe's, of what is left of its count
when frequent words are thinned out. Pure: no I/O, no state, any float dtype.
"""

from __future__ import annotations

import numpy as np

from common.array_types import Floats


def kept(frequencies: Floats, sample: float) -> Floats:
    """What thinning leaves of each word: min(1, sqrt(sample / f)) for fractions f of the text.

    Source: the "subsampling of frequent words" of Mikolov et al. 2013.
    """
    return np.sqrt(sample / np.maximum(frequencies, sample))


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
