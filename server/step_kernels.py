"""Compiled optimizer steps with momenta, over rows of float32 or float64. As server.kernels: nothing is checked here.

The state of a row stands behind its parameters, in their order. `scales` multiplies each row's final step.
"""

from __future__ import annotations

import numpy as np

from common.array_types import Array, Indices, Scales
from common.compiled import compiled_fast


@compiled_fast
def with_decay(table: Array, rows: Indices, gradients: Array, decay: float) -> Array:
    """The gradients with `decay` times the parameters added: those of a loss with an L2 penalty."""
    out, factor = np.empty_like(gradients), table.dtype.type(decay)
    for n in range(rows.size):
        for k in range(gradients.shape[1]):
            out[n, k] = gradients[n, k] + factor * table[rows[n], k]
    return out


@compiled_fast
def step_momentum(
    table: Array, rows: Indices, gradients: Array, rate: float, scales: Scales, momentum: float, ahead: bool
) -> None:
    """Velocity = momentum * velocity + gradient; `ahead` is Nesterov's form of it (Sutskever et al. 2013)."""
    width, keep = gradients.shape[1], table.dtype.type(momentum)
    for n in range(rows.size):
        row, eta = table[rows[n]], table.dtype.type(rate) * scales[n]
        for k in range(width):
            g = gradients[n, k]
            velocity = keep * row[width + k] + g
            row[width + k] = velocity
            row[k] -= eta * (g + keep * velocity if ahead else velocity)


@compiled_fast
def step_adam(
    table: Array, rows: Indices, gradients: Array, rate: float, scales: Scales, beta1: float, beta2: float,
    epsilon: float, decay: float,
) -> None:  # fmt: skip
    """Adam (Kingma and Ba 2015); with `decay` AdamW (Loshchilov and Hutter 2019). Each row counts its own steps."""
    width, real = gradients.shape[1], table.dtype.type
    keep1, keep2 = real(beta1), real(beta2)
    add1, add2, small = real(1.0 - beta1), real(1.0 - beta2), real(epsilon)
    for n in range(rows.size):
        row = table[rows[n]]
        row[3 * width] += real(1)
        count = np.float64(row[3 * width])
        eta = rate * np.float64(scales[n])
        step = real(eta / (1.0 - beta1**count))
        root = real(1.0 / np.sqrt(1.0 - beta2**count))
        left = real(1.0 - eta * decay)
        for k in range(width):
            g = gradients[n, k]
            mean = keep1 * row[width + k] + add1 * g
            square = keep2 * row[2 * width + k] + add2 * g * g
            row[width + k] = mean
            row[2 * width + k] = square
            row[k] = left * row[k] - step * mean / (np.sqrt(square) * root + small)
