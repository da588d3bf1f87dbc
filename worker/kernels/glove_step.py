"""One step of GloVe on one row against a few others, compiled into the loops that choose them (worker.kernels.glove).

Rows are laid out as common.model.row_layout says. The factor 2 of the squared loss is left in the learning rate, as in
Stanford's GloVe.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from glovewire.common.runtime.compiled import inlined_fast

from .simd import at_least_zero, gather, inverse_root, load, scatter, store, total
from .simd_rows import LANES, dots, update

ADAGRAD_ROW, ADAGRAD, SGD = 0, 1, 2
TINY = np.float32(1e-12)


class Side(NamedTuple):
    """Rows of one partition, float32 of shape (rows, width), in one of their roles: where its columns begin.

    `norms` holds v . v of each row in this role; steps keep it up to date.
    """

    rows: Any
    vector: Any
    bias: Any
    state: Any
    bias_state: Any
    norms: Any


class Pace(NamedTuple):
    """How far a step goes; `span` is the length of a padded vector, `inverse` one over the length of a vector."""

    optimizer: Any
    rate: Any
    span: Any
    inverse: Any


@inlined_fast
def step_together(one: Side, others: Side, i: Any, js: Any, logs: Any, weights: Any, pace: Pace) -> tuple[Any, Any]:
    """A step on row i against the rows `js`, all gradients from the values before it; loss and bias-only loss.

    `js` (a tuple) are distinct, and not i where both sides are the same columns; `logs` and `weights` are packs of the
    same length. For plain SGD and for AdaGrad by row.
    """
    width, rows_i, rows_j = one.rows.shape[1], one.rows, others.rows
    at = i * width + one.vector
    dot, squares_i = dots(rows_i, at, rows_j, js, width, others.vector, pace.span)
    bias = gather(rows_j, js, width, others.bias)
    floor = bias + rows_i[i, one.bias] - logs
    residual = floor + dot
    g = weights * residual
    norms = gather(others.norms, js, 1, 0)
    rate_i = bias_rate_i = pace.rate
    steps = bias_steps = g * pace.rate
    if pace.optimizer == ADAGRAD_ROW:
        squares = g * g
        state = gather(rows_j, js, width, others.state) + squares * (squares_i * pace.inverse)
        bias_state = gather(rows_j, js, width, others.bias_state) + squares
        scatter(rows_j, js, width, others.state, state)
        scatter(rows_j, js, width, others.bias_state, bias_state)
        steps = steps * inverse_root(state + TINY)
        bias_steps = bias_steps * inverse_root(bias_state + TINY)
        rows_i[i, one.state] += total(squares * norms) * pace.inverse
        rows_i[i, one.bias_state] += total(squares)
        rate_i /= np.sqrt(rows_i[i, one.state] + TINY)
        bias_rate_i /= np.sqrt(rows_i[i, one.bias_state] + TINY)
    scatter(rows_j, js, width, others.bias, bias - bias_steps)
    rows_i[i, one.bias] -= bias_rate_i * total(g)
    # Never below zero: with shared memory another process may have changed the row meanwhile.
    scatter(others.norms, js, 1, 0, at_least_zero(norms + steps * (steps * squares_i - dot * np.float32(2))))
    one.norms[i] = update(rows_i, at, rows_j, js, width, others.vector, pace.span, g * rate_i, steps)
    return total(g * residual), total(weights * floor * floor)


@inlined_fast
def step_elementwise(one: Side, others: Side, i: Any, j: Any, log_x: Any, weight: Any, pace: Pace) -> tuple[Any, Any]:
    """A step on one entry under element-wise AdaGrad, i and j as in `step_together`; loss and bias-only loss."""
    width, rows_i, rows_j = one.rows.shape[1], one.rows, others.rows
    at_i, at_j = i * width + one.vector, j * width + others.vector
    state_i, state_j = i * width + one.state, j * width + others.state
    dot, _ = dots(rows_i, at_i, rows_j, (j,), width, others.vector, pace.span)
    floor = rows_i[i, one.bias] + rows_j[j, others.bias] - log_x
    residual = floor + total(dot)
    g = weight * residual
    for k in range(0, pace.span, LANES):
        u, v = load(rows_i, at_i + k, LANES), load(rows_j, at_j + k, LANES)
        gu, gv = v * g, u * g
        us, vs = load(rows_i, state_i + k, LANES) + gu * gu, load(rows_j, state_j + k, LANES) + gv * gv
        store(rows_i, state_i + k, us)
        store(rows_j, state_j + k, vs)
        store(rows_i, at_i + k, u - gu * pace.rate * inverse_root(us + TINY))
        store(rows_j, at_j + k, v - gv * pace.rate * inverse_root(vs + TINY))
    rows_i[i, one.bias_state] += g * g
    rows_j[j, others.bias_state] += g * g
    rows_i[i, one.bias] -= pace.rate * g / np.sqrt(rows_i[i, one.bias_state] + TINY)
    rows_j[j, others.bias] -= pace.rate * g / np.sqrt(rows_j[j, others.bias_state] + TINY)
    return g * residual, weight * floor * floor


@inlined_fast
def step_alone(one: Side, i: Any, log_x: Any, weight: Any, times: Any, pace: Pace) -> tuple[Any, Any]:
    """A step on the entry of row i with itself, whose two roles are the same columns; loss and bias-only loss.

    `times` is how often the gradient of one role counts.
    """
    rows, vector, state = one.rows, one.vector, one.state
    squares = norm = np.float32(0)
    for k in range(vector, vector + pace.span):
        squares += rows[i, k] * rows[i, k]
    floor = rows[i, one.bias] + rows[i, one.bias] - log_x
    residual = floor + squares
    g = weight * residual
    slope = g * times
    rate = bias_rate = pace.rate
    if pace.optimizer != SGD:
        rows[i, one.bias_state] += slope * slope
        bias_rate /= np.sqrt(rows[i, one.bias_state] + TINY)
    if pace.optimizer == ADAGRAD_ROW:
        rows[i, state] += slope * slope * squares * pace.inverse
        rate /= np.sqrt(rows[i, state] + TINY)
    rows[i, one.bias] -= bias_rate * slope
    for k in range(pace.span):
        gradient = slope * rows[i, vector + k]
        if pace.optimizer == ADAGRAD:
            rows[i, state + k] += gradient * gradient
            rate = pace.rate / np.sqrt(rows[i, state + k] + TINY)
        rows[i, vector + k] -= rate * gradient
        norm += rows[i, vector + k] * rows[i, vector + k]
    one.norms[i] = norm
    return g * residual, weight * floor * floor
