"""The compiled loops of GloVe: SGD over the entries of a block on local rows, and the summed gradients of a batch.

Arrays come checked; nothing here allocates per entry. Rows are laid out as common.rows says. All in float32, sums of
losses in float64. The factor 2 of the squared loss is left in the learning rate, as in Stanford's GloVe.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from common.compiled import compiled_fast

from .lanes import dots_1, dots_4, update_1, update_4
from .scalars import log, stride, weight_of

Rows = npt.NDArray[np.float32]
Indices = npt.NDArray[np.int64]
Entries = npt.NDArray[np.void]

ADAGRAD_ROW, ADAGRAD, SGD = 0, 1, 2
OPTIMIZERS = {"adagrad-row": ADAGRAD_ROW, "adagrad": ADAGRAD, "sgd": SGD}
TINY = np.float32(1e-12)
GROUP = 4


@compiled_fast
def groups_of(entries: Entries, first: int, size: int, diagonal: bool, groups: Indices) -> int:
    """Cut `size` entries from `first` on into groups of four (or one) that share their row i; returns how many.

    In a diagonal block an entry of a word with itself stays alone: it has no mirror image.
    Group k is entries[first + groups[k]:first + groups[k + 1]].
    """
    count = 0
    k = 0
    while k < size:
        groups[count] = k
        count += 1
        four = k + GROUP <= size and entries[first + k + GROUP - 1].i == entries[first + k].i
        if diagonal and four:
            for n in range(GROUP):
                four = four and entries[first + k + n].i != entries[first + k + n].j
        k += GROUP if four else 1
    groups[count] = size
    return count


@compiled_fast
def targets_of(entries: Entries, first: int, size: int, log_max: Any, alpha: Any, logs: Rows, weights: Rows) -> None:
    """Logarithm and weight of `size` entries from `first` on, in one vectorised pass."""
    for k in range(size):
        logs[k] = log(entries[first + k].x)
    for k in range(size):
        weights[k] = weight_of(logs[k], log_max, alpha)


@compiled_fast
def train_group(
    rows_a: Rows, rows_b: Rows, entries: Entries, first: int, low: int, size: int, logs: Rows, weights: Rows,
    role_i: Indices, role_j: Indices, norms_j: Rows, span: int, dim: int, optimizer: int, rate: Any, scratch: Rows,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """One step on a group: its row i against its rows j, all gradients from the values before it.

    The group is entries[first + low:first + low + size] of the tile that begins at `first`, to which `logs` and
    `weights` belong. `norms_j` holds v . v of the rows j in their role and is kept up to date. Returns the loss, the
    bias-only loss and the new u . u of row i. `scratch` is float32 of shape (3, GROUP). Indices instead of views:
    each view would cost two atomic counts.
    """
    vector_i, bias_i, state_i, bias_state_i = role_i[0], role_i[1], role_i[2], role_i[3]
    vector_j, bias_j, state_j, bias_state_j = role_j[0], role_j[1], role_j[2], role_j[3]
    width, inverse = rows_a.shape[1], np.float32(1) / np.float32(dim)
    start = first + low
    i = np.int64(entries[start].i)
    at = i * width + vector_i
    at_0 = np.int64(entries[start].j) * width + vector_j
    at_1 = at_2 = at_3 = at_0
    if size == GROUP:
        at_1 = np.int64(entries[start + 1].j) * width + vector_j
        at_2 = np.int64(entries[start + 2].j) * width + vector_j
        at_3 = np.int64(entries[start + 3].j) * width + vector_j
        dot_0, dot_1, dot_2, dot_3, squares_i = dots_4(rows_a, at, rows_b, at_0, at_1, at_2, at_3, span)
        scratch[0, 0], scratch[0, 1], scratch[0, 2], scratch[0, 3] = dot_0, dot_1, dot_2, dot_3
    else:
        scratch[0, 0], squares_i = dots_1(rows_a, at, rows_b, at_0, span)
    loss = floors = np.float32(0)
    total = total_squares = total_state = np.float32(0)
    bias = rows_a[i, bias_i]
    for k in range(size):
        j = np.int64(entries[start + k].j)
        dot = scratch[0, k]
        floor = bias + rows_b[j, bias_j] - logs[low + k]
        residual = floor + dot
        g = weights[low + k] * residual
        loss += g * residual
        floors += weights[low + k] * floor * floor
        step = rate * g
        bias_step = step
        if optimizer == ADAGRAD_ROW:
            total_squares += g * g
            total_state += g * g * norms_j[j]
            rows_b[j, state_j] += g * g * squares_i * inverse
            rows_b[j, bias_state_j] += g * g
            step /= np.sqrt(rows_b[j, state_j] + TINY)
            bias_step /= np.sqrt(rows_b[j, bias_state_j] + TINY)
        # Never below zero: with shared memory another process may have changed the row meanwhile.
        norms_j[j] = max(norms_j[j] + step * (step * squares_i - np.float32(2) * dot), np.float32(0))
        rows_b[j, bias_j] -= bias_step
        scratch[1, k] = g
        scratch[2, k] = step
        total += g
    rate_i = bias_rate = rate
    if optimizer == ADAGRAD_ROW:
        rows_a[i, state_i] += total_state * inverse
        rows_a[i, bias_state_i] += total_squares
        rate_i /= np.sqrt(rows_a[i, state_i] + TINY)
        bias_rate /= np.sqrt(rows_a[i, bias_state_i] + TINY)
    rows_a[i, bias_i] -= bias_rate * total
    if size == GROUP:
        squares_i = update_4(
            rows_a, at, rows_b, at_0, at_1, at_2, at_3, span,
            rate_i * scratch[1, 0], rate_i * scratch[1, 1], rate_i * scratch[1, 2], rate_i * scratch[1, 3],
            scratch[2, 0], scratch[2, 1], scratch[2, 2], scratch[2, 3],
        )  # fmt: skip
    else:
        squares_i = update_1(rows_a, at, rows_b, at_0, span, rate_i * scratch[1, 0], scratch[2, 0])
    return loss, floors, squares_i


@compiled_fast
def step_elementwise(
    rows_a: Rows, rows_b: Rows, entry: Any, role_i: Indices, role_j: Indices, dim: int,
    log_max: Any, alpha: Any, rate: Any,
) -> tuple[float, float]:  # fmt: skip
    """One entry under element-wise AdaGrad: loss and bias-only loss before the step, in place on both rows."""
    row_i, row_j = rows_a[entry.i], rows_b[entry.j]
    u, us = row_i[role_i[0] : role_i[0] + dim], row_i[role_i[2] : role_i[2] + dim]
    v, vs = row_j[role_j[0] : role_j[0] + dim], row_j[role_j[2] : role_j[2] + dim]
    log_x = log(entry.x)
    weight = weight_of(log_x, log_max, alpha)
    dot = np.float32(0)
    for k in range(dim):
        dot += u[k] * v[k]
    floor = row_i[role_i[1]] + row_j[role_j[1]] - log_x
    g = weight * (floor + dot)
    for k in range(dim):
        gu = g * v[k]
        gv = g * u[k]
        us[k] += gu * gu
        vs[k] += gv * gv
        u[k] -= rate * gu / np.sqrt(us[k] + TINY)
        v[k] -= rate * gv / np.sqrt(vs[k] + TINY)
    row_i[role_i[3]] += g * g
    row_j[role_j[3]] += g * g
    row_i[role_i[1]] -= rate * g / np.sqrt(row_i[role_i[3]] + TINY)
    row_j[role_j[1]] -= rate * g / np.sqrt(row_j[role_j[3]] + TINY)
    return g * (floor + dot), weight * floor * floor


@compiled_fast
def squared_norms(rows: Rows, role: Indices, span: int) -> Rows:
    """v . v of every row in a role: float32 of shape (rows,)."""
    out = np.empty(rows.shape[0], np.float32)
    for n in range(rows.shape[0]):
        at = n * rows.shape[1] + role[0]
        out[n] = dots_1(rows, at, rows, at, span)[0]
    return out


@compiled_fast
def train_block(
    rows_a: Rows, rows_b: Rows, entries: Entries, starts: Indices, order: Indices, seed: int, columns: Indices,
    dim: int, optimizer: int, tied: bool, symmetric: bool, diagonal: bool, x_max: float, alpha: float, rate: float,
) -> tuple[float, float, int]:  # fmt: skip
    """SGD over the entries of the tiles in `order`; sums of loss and bias-only loss, entries covered.

    `rows_a` and `rows_b` (float32, (rows, width), C order) are changed in place and are the same array for a diagonal
    block. A stored entry of a symmetric matrix stands for its mirror image too. `starts` (tiles + 1,) delimits tiles.
    """
    loss = 0.0
    floor = 0.0
    covered = 0
    eta, power, log_max = np.float32(rate), np.float32(alpha), np.float32(np.log(x_max))
    word, context = columns[0], columns[1]
    span = -(-dim // 16) * 16
    contexts = squared_norms(rows_b, context, span)
    words = contexts if tied else squared_norms(rows_b, word, span)
    largest = 0
    for t in order:
        largest = max(largest, starts[t + 1] - starts[t])
    groups = np.empty(largest + 1, np.int64)
    scratch = np.empty((3, GROUP), np.float32)
    logs, weights = np.empty(largest, np.float32), np.empty(largest, np.float32)
    for t in order:
        first, size = starts[t], starts[t + 1] - starts[t]
        if size == 0:
            continue
        count = size if optimizer == ADAGRAD else groups_of(entries, first, size, diagonal, groups)
        if optimizer != ADAGRAD:
            targets_of(entries, first, size, log_max, power, logs, weights)
        jump = stride(seed + t, count)
        place = (seed + 7919 * t) % count
        for _ in range(count):
            low, many = first + place, 1
            if optimizer != ADAGRAD:
                low, many = first + groups[place], groups[place + 1] - groups[place]
            place += jump
            if place >= count:
                place -= count
            mirrors = 0
            for k in range(many):
                entry = entries[low + k]
                mirrors += symmetric and not (diagonal and entry.i == entry.j)
            covered += many + mirrors
            if optimizer == ADAGRAD:
                entry = entries[low]
                a, b = step_elementwise(rows_a, rows_b, entry, word, context, dim, log_max, power, eta)
                if mirrors and not tied:
                    c, d = step_elementwise(rows_a, rows_b, entry, context, word, dim, log_max, power, eta)
                    a, b, mirrors = a + c, b + d, 0
            else:
                i = entries[low].i
                a, b, squares = train_group(
                    rows_a, rows_b, entries, first, low - first, many, logs, weights, word, context,
                    contexts, span, dim, optimizer, eta, scratch,
                )  # fmt: skip
                if diagonal:
                    words[i] = squares
                if mirrors and not tied:
                    c, d, squares = train_group(
                        rows_a, rows_b, entries, first, low - first, many, logs, weights, context, word,
                        words, span, dim, optimizer, eta, scratch,
                    )  # fmt: skip
                    if diagonal:
                        contexts[i] = squares
                    a, b, mirrors = a + c, b + d, 0
            share = 1.0 + mirrors / many
            loss += share * a
            floor += share * b
    return loss, floor, covered


@compiled_fast
def batch_gradients(
    rows: Rows, at_i: Indices, at_j: Indices, counts: Rows, columns: Indices, dim: int, x_max: float, alpha: float,
    gradients: Rows,
) -> tuple[float, float]:  # fmt: skip
    """Add the gradient of the summed loss of a batch to `gradients`; sums of loss and bias-only loss.

    `rows` (distinct rows of the batch) and `gradients` (their parameter columns); entry n pairs row at_i[n] as word
    with row at_j[n] as context. The factor 2 of the square is left out.
    """
    loss = 0.0
    floor = 0.0
    word, context = columns[0], columns[1]
    for n in range(counts.size):
        row_i, row_j = rows[at_i[n]], rows[at_j[n]]
        into_i, into_j = gradients[at_i[n]], gradients[at_j[n]]
        log_x = log(counts[n])
        weight = weight_of(log_x, np.float32(np.log(x_max)), np.float32(alpha))
        bias = row_i[word[1]] + row_j[context[1]] - log_x
        dot = np.float32(0)
        for k in range(dim):
            dot += row_i[word[0] + k] * row_j[context[0] + k]
        g = weight * (dot + bias)
        for k in range(dim):
            into_i[word[0] + k] += g * row_j[context[0] + k]
            into_j[context[0] + k] += g * row_i[word[0] + k]
        into_i[word[1]] += g
        into_j[context[1]] += g
        loss += g * (dot + bias)
        floor += weight * bias * bias
    return loss, floor


@compiled_fast
def mean_norm(rows: Rows, columns: Indices, dim: int) -> float:
    """Mean Euclidean norm of the word vectors in `rows`."""
    total = 0.0
    start = columns[0, 0]
    for n in range(rows.shape[0]):
        squares = np.float32(0)
        for k in range(start, start + dim):
            squares += rows[n, k] * rows[n, k]
        total += np.sqrt(squares)
    return float(total / max(rows.shape[0], 1))


def warm(columns: Indices, width: int, dim: int) -> None:
    """Compile (or load from the cache) the loops, before a server waits for this worker."""
    rows = np.ones((1, width), np.float32)
    for tied in (True, False):
        entries = np.ones(0, np.dtype([("i", "<u2"), ("j", "<u2"), ("x", "<f4")]))
        entries.setflags(write=False)
        starts, order = np.zeros(2, np.int64), np.zeros(1, np.int64)
        train_block(rows, rows, entries, starts, order, 0, columns, dim, 0, tied, True, True, 1.0, 1.0, 0.1)
    places = np.zeros(0, np.int64)
    batch_gradients(rows, places, places, np.ones(0, np.float32), columns, dim, 1.0, 1.0, rows.copy())
    mean_norm(rows, columns, dim)
