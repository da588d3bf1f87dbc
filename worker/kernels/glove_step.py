"""Compute one GloVe step of a row against a few other rows, inlined into the loops of `worker.kernels.glove`."""

from typing import Any, NamedTuple

import numpy as np

from glovewire.common.runtime.compiled import inlined_fast
from glovewire.common.runtime.simd import clamp_at_zero, gather, inverse_sqrt, lane_sum, load, scatter, store

from .simd_rows import LANES, dots, update

ADAGRAD_ROW, ADAGRAD, SGD = 0, 1, 2
EPSILON = np.float32(1e-12)

Losses = tuple[Any, Any]


class GloveRole(NamedTuple):
    """Rows of one partition, float32 of shape (rows, width), and the first columns of one role (word or context).

    `norms` holds v . v for the vector v of each row in this role; steps keep `norms` up to date.
    """

    rows: Any
    vector: Any
    bias: Any
    state: Any
    bias_state: Any
    norms: Any


class GloveParams(NamedTuple):
    """Parameters of a step: `span` is the length of a padded vector, `inverse` one over the length of a vector."""

    optimizer: Any
    rate: Any
    span: Any
    inverse: Any


@inlined_fast
def step_group(
    one: GloveRole, others: GloveRole, i: Any, js: Any, logs: Any, weights: Any, params: GloveParams
) -> Losses:
    """Step row i against the rows `js` by gradients at the old values; return loss and bias-only loss.

    `js` is a tuple of distinct row numbers, without i where both roles are the same columns; `logs` and `weights` are
    SIMD vectors of the same length. For plain SGD and for row-wise AdaGrad.
    """
    width, rows_i, rows_j = one.rows.shape[1], one.rows, others.rows
    at = i * width + one.vector
    dot, squares_i = dots(rows_i, at, rows_j, js, width, others.vector, params.span)
    bias = gather(rows_j, js, width, others.bias)
    bias_only = bias + rows_i[i, one.bias] - logs
    residual = bias_only + dot
    g = weights * residual
    norms = gather(others.norms, js, 1, 0)
    rate_i = bias_rate_i = params.rate
    steps = bias_steps = g * params.rate
    if params.optimizer == ADAGRAD_ROW:
        squares = g * g
        state = gather(rows_j, js, width, others.state) + squares * (squares_i * params.inverse)
        bias_state = gather(rows_j, js, width, others.bias_state) + squares
        scatter(rows_j, js, width, others.state, state)
        scatter(rows_j, js, width, others.bias_state, bias_state)
        steps = steps * inverse_sqrt(state + EPSILON)
        bias_steps = bias_steps * inverse_sqrt(bias_state + EPSILON)
        rows_i[i, one.state] += lane_sum(squares * norms) * params.inverse
        rows_i[i, one.bias_state] += lane_sum(squares)
        rate_i /= np.sqrt(rows_i[i, one.state] + EPSILON)
        bias_rate_i /= np.sqrt(rows_i[i, one.bias_state] + EPSILON)
    scatter(rows_j, js, width, others.bias, bias - bias_steps)
    rows_i[i, one.bias] -= bias_rate_i * lane_sum(g)
    # Never below zero: with shared memory another process may have changed the row meanwhile.
    scatter(others.norms, js, 1, 0, clamp_at_zero(norms + steps * (steps * squares_i - dot * np.float32(2))))
    one.norms[i] = update(rows_i, at, rows_j, js, width, others.vector, params.span, g * rate_i, steps, None)
    return lane_sum(g * residual), lane_sum(weights * bias_only * bias_only)


@inlined_fast
def step_elementwise(
    one: GloveRole, others: GloveRole, i: Any, j: Any, log_x: Any, weight: Any, params: GloveParams
) -> Losses:
    """Step row i against row j by element-wise AdaGrad; return loss and bias-only loss."""
    width, rows_i, rows_j = one.rows.shape[1], one.rows, others.rows
    at_i, at_j = i * width + one.vector, j * width + others.vector
    state_i, state_j = i * width + one.state, j * width + others.state
    dot, _ = dots(rows_i, at_i, rows_j, (j,), width, others.vector, params.span)
    bias_only = rows_i[i, one.bias] + rows_j[j, others.bias] - log_x
    residual = bias_only + lane_sum(dot)
    g = weight * residual
    for k in range(0, params.span, LANES):
        u, v = load(rows_i, at_i + k, LANES), load(rows_j, at_j + k, LANES)
        gu, gv = v * g, u * g
        us, vs = load(rows_i, state_i + k, LANES) + gu * gu, load(rows_j, state_j + k, LANES) + gv * gv
        store(rows_i, state_i + k, us)
        store(rows_j, state_j + k, vs)
        store(rows_i, at_i + k, u - gu * params.rate * inverse_sqrt(us + EPSILON))
        store(rows_j, at_j + k, v - gv * params.rate * inverse_sqrt(vs + EPSILON))
    rows_i[i, one.bias_state] += g * g
    rows_j[j, others.bias_state] += g * g
    rows_i[i, one.bias] -= params.rate * g / np.sqrt(rows_i[i, one.bias_state] + EPSILON)
    rows_j[j, others.bias] -= params.rate * g / np.sqrt(rows_j[j, others.bias_state] + EPSILON)
    return g * residual, weight * bias_only * bias_only


@inlined_fast
def step_self_pair(one: GloveRole, i: Any, log_x: Any, weight: Any, times: Any, params: GloveParams) -> Losses:
    """Step row i against itself: one role's gradient, scaled by `times`; return loss and bias-only loss."""
    rows, vector, state = one.rows, one.vector, one.state
    squares = norm = np.float32(0)
    for k in range(vector, vector + params.span):
        squares += rows[i, k] * rows[i, k]
    bias_only = rows[i, one.bias] + rows[i, one.bias] - log_x
    residual = bias_only + squares
    g = weight * residual
    slope = g * times
    rate = bias_rate = params.rate
    if params.optimizer != SGD:
        rows[i, one.bias_state] += slope * slope
        bias_rate /= np.sqrt(rows[i, one.bias_state] + EPSILON)
    if params.optimizer == ADAGRAD_ROW:
        rows[i, state] += slope * slope * squares * params.inverse
        rate /= np.sqrt(rows[i, state] + EPSILON)
    rows[i, one.bias] -= bias_rate * slope
    for k in range(params.span):
        gradient = slope * rows[i, vector + k]
        if params.optimizer == ADAGRAD:
            rows[i, state + k] += gradient * gradient
            rate = params.rate / np.sqrt(rows[i, state + k] + EPSILON)
        rows[i, vector + k] -= rate * gradient
        norm += rows[i, vector + k] * rows[i, vector + k]
    one.norms[i] = norm
    return g * residual, weight * bias_only * bias_only
