"""Compiled loops over rows of the table: gather, scatter, finiteness, one optimizer step per row.

Rows may repeat only where a docstring says so. `scales` multiplies each row's final step, after the preconditioner, so
that accumulators see the gradient as it is. Nothing here allocates more than its result or checks its input.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt

from glovewire.common.array_types import Array, Indices, Rows, Scales
from glovewire.common.runtime.compiled import compiled, compiled_fast

TINY = np.float32(1e-12)
"""Added under roots: a gradient of zero on an accumulator of zero (padding, a role not touched) changes nothing."""


def aligned(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The array, or a copy where it lies in a frame at an address that is no multiple of its element's size."""
    return array if array.flags.aligned else array.copy()


@compiled_fast
def all_finite(values: npt.NDArray[Any]) -> bool:
    """Whether a contiguous 2-d float array has no NaN and no infinity."""
    flat = values.ravel()
    total = flat.dtype.type(0)
    for k in range(flat.size):
        total += flat[k] * flat.dtype.type(0)
    return bool(total == 0)


@compiled
def within(rows: Indices, first: int, last: int) -> bool:
    """Whether first <= row < last for each of `rows`."""
    good = True
    for n in range(rows.size):
        good &= first <= rows[n] and rows[n] < last
    return good


@compiled
def count(counters: npt.NDArray[Any], rows: Indices, first: int) -> None:
    """counters[rows - first] += 1; rows that repeat are all counted."""
    for n in range(rows.size):
        counters[rows[n] - first] += 1


@compiled
def counted(counters: npt.NDArray[Any], rows: Indices, first: int) -> Indices:
    """counters[rows - first] as a new array."""
    out = np.empty(rows.size, np.int64)
    for n in range(rows.size):
        out[n] = counters[rows[n] - first]
    return out


@compiled_fast
def gather(table: Rows, rows: Indices, first: int) -> Rows:
    """table[rows - first] as a new array of shape (len(rows), width)."""
    out = np.empty((rows.size, table.shape[1]), table.dtype)
    for n in range(rows.size):
        row = rows[n] - first
        for k in range(table.shape[1]):
            out[n, k] = table[row, k]
    return out


@compiled_fast
def add_range(table: Rows, first: int, values: Rows) -> None:
    """table[first:first + len(values)] += values."""
    for n in range(values.shape[0]):
        for k in range(values.shape[1]):
            table[first + n, k] += values[n, k]


@compiled_fast
def add_rows(table: Rows, rows: Indices, values: Rows, first: int) -> None:
    """table[rows - first] += values; rows that repeat are all counted."""
    for n in range(rows.size):
        row = rows[n] - first  # read here: in the inner loop it might change with the table, for all that LLVM knows
        for k in range(values.shape[1]):
            table[row, k] += values[n, k]


@compiled_fast
def step_sgd(table: Rows, rows: Indices, gradients: Rows, rate: float, scales: Scales) -> None:
    """Plain gradient descent; `gradients` covers the leading parameter columns."""
    for n in range(rows.size):
        row, eta = rows[n], table.dtype.type(rate) * scales[n]
        for k in range(gradients.shape[1]):
            table[row, k] -= eta * gradients[n, k]


@compiled_fast
def step_adagrad(table: Rows, rows: Indices, gradients: Rows, rate: float, scales: Scales) -> None:
    """AdaGrad per element (Duchi et al. 2011); the accumulators stand behind the parameters, in their order."""
    width = gradients.shape[1]
    for n in range(rows.size):
        row, eta = table[rows[n]], table.dtype.type(rate) * scales[n]
        for k in range(width):
            g = gradients[n, k]
            row[width + k] += g * g
            row[k] -= eta * g / np.sqrt(row[width + k] + TINY)


@compiled_fast
def step_adagrad_row(
    table: Rows, rows: Indices, gradients: Rows, rate: float, scales: Scales, columns: Indices, dim: int
) -> None:
    """AdaGrad with one accumulator a vector (mean squared gradient) and one a bias; `columns` (roles, 4)."""
    for n in range(rows.size):
        row, eta = table[rows[n]], np.float32(rate) * scales[n]
        for role in range(columns.shape[0]):
            vector, bias, vector_state, bias_state = columns[role]
            squares = np.float32(0)
            for k in range(vector, vector + dim):
                squares += gradients[n, k] * gradients[n, k]
            row[vector_state] += squares / np.float32(dim)
            scale = eta / np.sqrt(row[vector_state] + TINY)
            for k in range(vector, vector + dim):
                row[k] -= scale * gradients[n, k]
            g = gradients[n, bias]
            row[bias_state] += g * g
            row[bias] -= eta * g / np.sqrt(row[bias_state] + TINY)


def warm(dtype: str = "<f4") -> None:
    """Compile (or load from the cache) what a server needs, before anybody waits for it."""
    table, values, rows = np.ones((1, 16), dtype), np.ones((1, 16), dtype), np.zeros(1, np.int64)
    for writable, frozen in itertools.product((True, False), repeat=2):  # small frames are read-only, big ones are not
        values.setflags(write=writable)
        rows.setflags(write=not frozen)
        all_finite(values)
        add_range(table, 0, values)
        add_rows(table, rows, values, 0)
        within(rows, 0, 1)
        gather(table, rows, 0)
        for counters in (np.zeros(1, np.uint32), np.zeros(1, np.int64)):
            count(counters, rows, 0)
            counted(counters, rows, 0)


# ---- Compiled optimizer steps with momenta, over rows of float32 or float64. As server.table.kernels: nothing is
# checked here.
#
# The state of a row stands behind its parameters, in their order. `scales` multiplies each row's final step.
#


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
    table: Array,
    rows: Indices,
    gradients: Array,
    rate: float,
    scales: Scales,
    beta1: float,
    beta2: float,
    epsilon: float,
    decay: float,
) -> None:
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
