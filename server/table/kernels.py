"""Compile the loops over rows of the table: gather, scatter, finiteness, and one optimizer step per row.

Rows may repeat only where a docstring says so; arguments are not checked; nothing is allocated but the result. The
optimizer's state follows the parameters in each row, in their order. `scales` multiplies each row's final step, after
the preconditioner, so that accumulators see the unscaled gradient.
"""

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt

from glovewire.common.array_types import Array, Halves, Indices, Rows, Scales
from glovewire.common.model import bfloat16_kernels
from glovewire.common.model.bfloat16_kernels import narrowed, widened
from glovewire.common.runtime.compiled import compiled, compiled_fast

TINY = np.float32(1e-12)
"""Added under square roots: a zero gradient on a zero accumulator (padding, an untouched role) changes nothing."""


def aligned(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the array, or a copy if it starts at a misaligned address inside a received frame."""
    return array if array.flags.aligned else array.copy()


@compiled_fast
def all_finite(values: npt.NDArray[Any]) -> bool:
    """Return whether a contiguous 2-d float array holds no NaN and no infinity."""
    flat = values.ravel()
    total = flat.dtype.type(0)
    for k in range(flat.size):
        total += flat[k] * flat.dtype.type(0)
    return bool(total == 0)


@compiled
def all_within(rows: Indices, first: int, last: int) -> bool:
    """Return whether first <= row < last for every row."""
    good = True
    for n in range(rows.size):
        good &= first <= rows[n] and rows[n] < last
    return good


@compiled
def count_rows(counters: npt.NDArray[Any], rows: Indices, first: int) -> None:
    """Compute counters[rows - first] += 1; repeated rows are all counted."""
    for n in range(rows.size):
        counters[rows[n] - first] += 1


@compiled_fast
def gather(table: Rows, rows: Indices, first: int) -> Rows:
    """Return table[rows - first] as a new array of shape (len(rows), width); rows may repeat."""
    out = np.empty((rows.size, table.shape[1]), table.dtype)
    for n in range(rows.size):
        row = rows[n] - first
        for k in range(table.shape[1]):
            out[n, k] = table[row, k]
    return out


@compiled_fast
def gather_bfloat16(table: Rows, rows: Indices, first: int) -> Halves:
    """Return table[rows - first] as bfloat16, shape (len(rows), width); rows may repeat."""
    out = np.empty((rows.size, table.shape[1]), np.uint16)
    for n in range(rows.size):
        row = rows[n] - first
        for k in range(table.shape[1]):
            out[n, k] = narrowed(table[row, k])
    return out


@compiled_fast
def exchange(table: Rows, rows: Indices, values: Rows, first: int) -> Rows:
    """Assign table[rows - first] = values for distinct rows; return the values before, shape (len(rows), width)."""
    before = np.empty((rows.size, table.shape[1]), table.dtype)
    for n in range(rows.size):
        row = rows[n] - first
        for k in range(table.shape[1]):
            before[n, k] = table[row, k]
            table[row, k] = values[n, k]
    return before


@compiled_fast
def exchange_bfloat16(table: Rows, rows: Indices, values: Halves) -> tuple[Halves, Halves]:
    """Compute table[rows] += values; return the values before as bfloat16, and the lower halves of their float32.

    Both have shape (len(rows), width). Repeated rows all add.
    """
    halves, low = np.empty(values.shape, np.uint16), np.empty(values.shape, np.uint16)
    for n in range(rows.size):
        row = rows[n]
        for k in range(table.shape[1]):
            before = table[row, k]
            halves[n, k], low[n, k] = narrowed(before), np.uint16(np.float32(before).view(np.uint32))
            table[row, k] = before + widened(values[n, k])
    return halves, low


@compiled_fast
def replace_common(values: Array, rows: Indices, others: Array, numbers: Indices) -> None:
    """Replace those of the values of `rows` that are in `others`, the values of rows `numbers`; both ascend."""
    n = k = 0
    while n < rows.size and k < numbers.size:
        if rows[n] < numbers[k]:
            n += 1
        elif rows[n] > numbers[k]:
            k += 1
        else:
            for column in range(values.shape[1]):
                values[n, column] = others[k, column]
            n, k = n + 1, k + 1


@compiled_fast
def add_rows(table: Rows, rows: Indices, values: Rows, first: int) -> None:
    """Compute table[rows - first] += values; repeated rows are all added."""
    for n in range(rows.size):
        row = rows[n] - first  # hoisted: LLVM cannot rule out that `rows` aliases the table
        for k in range(values.shape[1]):
            table[row, k] += values[n, k]


@compiled_fast
def step_sgd(table: Rows, rows: Indices, gradients: Rows, rate: float, scales: Scales) -> None:
    """Take a step of plain gradient descent; `gradients` covers the leading parameter columns."""
    for n in range(rows.size):
        row, eta = rows[n], table.dtype.type(rate) * scales[n]
        for k in range(gradients.shape[1]):
            table[row, k] -= eta * gradients[n, k]


@compiled_fast
def step_adagrad(table: Rows, rows: Indices, gradients: Rows, rate: float, scales: Scales) -> None:
    """Take a step of AdaGrad with one accumulator per parameter (Duchi et al. 2011)."""
    width = gradients.shape[1]
    for n in range(rows.size):
        row, eta = table[rows[n]], table.dtype.type(rate) * scales[n]
        for k in range(width):
            g = gradients[n, k]
            row[width + k] += g * g
            row[k] -= eta * g / np.sqrt(row[width + k] + TINY)


@compiled_fast
def step_adagrad_row(
    columns: Indices, dim: int, table: Rows, rows: Indices, gradients: Rows, rate: float, scales: Scales
) -> None:
    """Take a step of AdaGrad with one accumulator per vector (mean square) and per bias; `columns` as in RowLayout."""
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


@compiled_fast
def add_decay(table: Array, rows: Indices, gradients: Array, decay: float) -> Array:
    """Return the gradients plus `decay` times the parameters, the gradient of an L2 penalty."""
    out, factor = np.empty_like(gradients), table.dtype.type(decay)
    for n in range(rows.size):
        for k in range(gradients.shape[1]):
            out[n, k] = gradients[n, k] + factor * table[rows[n], k]
    return out


@compiled_fast
def step_momentum(
    momentum: float, nesterov: bool, table: Array, rows: Indices, gradients: Array, rate: float, scales: Scales
) -> None:
    """Take a step along velocity = momentum * velocity + gradient, or in Nesterov's form (Sutskever et al. 2013)."""
    width, keep = gradients.shape[1], table.dtype.type(momentum)
    for n in range(rows.size):
        row, eta = table[rows[n]], table.dtype.type(rate) * scales[n]
        for k in range(width):
            g = gradients[n, k]
            velocity = keep * row[width + k] + g
            row[width + k] = velocity
            row[k] -= eta * (g + keep * velocity if nesterov else velocity)


@compiled_fast
def step_adam(
    beta1: float,
    beta2: float,
    epsilon: float,
    decay: float,
    table: Array,
    rows: Indices,
    gradients: Array,
    rate: float,
    scales: Scales,
) -> None:
    """Take a step of Adam (Kingma and Ba 2015) or AdamW (Loshchilov and Hutter 2019); each row counts its own steps."""
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


def warm() -> None:
    """Compile the kernels that every server needs, or load them from the cache, so that no request waits for them."""
    table, values, rows = np.ones((1, 16), np.float32), np.ones((1, 16), np.float32), np.zeros(1, np.int64)
    halves = bfloat16_kernels.narrow(table)
    replace_common(halves, rows, halves, rows)
    bfloat16_kernels.join(halves, halves)
    gather_bfloat16(table, rows, 0)
    for writable, frozen in itertools.product((True, False), repeat=2):  # small frames are read-only, large ones not
        values.setflags(write=writable)
        halves.setflags(write=writable)
        rows.setflags(write=not frozen)
        bfloat16_kernels.all_finite(halves)
        exchange_bfloat16(table, rows, halves)
        all_finite(values)
        add_rows(table, rows, values, 0)
        exchange(table, rows, values, 0)
        replace_common(table, rows, values, rows)
        all_within(rows, 0, 1)
        gather(table, rows, 0)
        for counters in (np.zeros(1, np.uint32), np.zeros(1, np.int64)):
            count_rows(counters, rows, 0)
