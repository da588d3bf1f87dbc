"""The compiled loops of skip-gram with negative sampling: steps over the entries of a block on local rows.

Entries that share their row are taken up to four at a time, against NEGATIVES rows that are the columns of entries
drawn from the same tile: they lie in the cache, and frequent words come up more often. All gradients of a group come
from the values before it (worker.sgns has the formulas); AdaGrad has one accumulator a row and role. Arrays come
checked; nothing here allocates per entry. All in float32, sums of losses in float64.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from common.compiled import compiled_fast

from .scalars import exp, log, stride, weight_of
from .sgns_lanes import add_to_one, dots, step_others

Rows = npt.NDArray[np.float32]
Indices = npt.NDArray[np.int64]
Entries = npt.NDArray[np.void]

POSITIVES, NEGATIVES = 4, 8
BUNDLE = POSITIVES + NEGATIVES
TINY = np.float32(1e-12)
LN_2 = math.log(2.0)


@compiled_fast
def groups_of(entries: Entries, first: int, size: int, groups: Indices) -> int:
    """Cut `size` entries from `first` on into groups of up to POSITIVES that share their row i; returns how many.

    Group k is entries[first + groups[k]:first + groups[k + 1]].
    """
    count = 0
    low = 0
    for k in range(size):
        if k == 0 or k - low == POSITIVES or entries[first + k].i != entries[first + low].i:
            groups[count] = low = k
            count += 1
    groups[count] = size
    return count


@compiled_fast
def draw(state: Any, below: int) -> tuple[Any, Any]:
    """The next state of a linear congruential generator (Knuth's constants), and a number from 0 to below - 1."""
    state = state * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
    return state, np.int64(((state >> np.uint64(32)) * np.uint64(below)) >> np.uint64(32))


@compiled_fast
def scales_of(products: Rows, weights: Rows) -> Any:
    """Turn the products u . v of a group into the derivatives of its loss by them, in place; returns the loss."""
    loss = np.float32(0)
    for k in range(BUNDLE):
        sign = np.float32(1) if k < POSITIVES else np.float32(-1)
        signed = sign * products[k]
        small = exp(max(-abs(signed), np.float32(-80)))
        loss += weights[k] * (max(-signed, np.float32(0)) + log(np.float32(1) + small))
        wrong = (np.float32(1) if signed < 0 else small) / (np.float32(1) + small)
        products[k] = -sign * weights[k] * wrong
    return loss


@compiled_fast
def train_group(
    rows_a: Rows, rows_b: Rows, row: Any, one: Indices, other: Indices, places: Indices, weights: Rows,
    scales: Rows, steps: Rows, gradient: Rows, span: int, inverse: Any, rate: Any,
) -> Any:  # fmt: skip
    """One step on a group: row `row` of rows_a in the role `one` against rows of rows_b in the role `other`.

    A role is (first column of the vector, column of its accumulator). `places` holds where the BUNDLE vectors start
    in flat rows_b and `weights` their weights, 0 for places to spare. Returns the loss before the step.
    """
    flat_a, flat_b = rows_a.reshape(rows_a.size), rows_b.reshape(rows_b.size)
    at, state = row * rows_a.shape[1] + one[0], row * rows_a.shape[1] + one[1]
    squares = dots(flat_a, at, flat_b, places, span, scales)
    loss = scales_of(scales, weights)
    for k in range(BUNDLE):
        accumulator = places[k] - other[0] + other[1]
        flat_b[accumulator] += scales[k] * scales[k] * squares * inverse
        steps[k] = flat_b[accumulator]
    for k in range(BUNDLE):
        steps[k] = rate * scales[k] / np.sqrt(steps[k] + TINY)
    flat_a[state] += inverse * step_others(flat_a, at, flat_b, places, span, gradient, scales, steps)
    add_to_one(flat_a, at, gradient, span, -rate / np.sqrt(flat_a[state] + TINY))
    return loss


@compiled_fast
def train_block(
    rows_a: Rows, rows_b: Rows, entries: Entries, starts: Indices, order: Indices, seed: int, columns: Indices,
    dim: int, symmetric: bool, diagonal: bool, x_max: float, alpha: float, negatives: float, rate: float,
) -> tuple[float, float, int]:  # fmt: skip
    """Steps over the entries of the tiles in `order`; sums of loss and of the loss at zero, entries covered.

    `rows_a` and `rows_b` (float32, (rows, width), C order) are changed in place and are the same array for a diagonal
    block. `columns` as in RowLayout. A stored entry of a symmetric matrix stands for its mirror image too: a second
    step in which the roles are changed. `starts` (tiles + 1,) delimits tiles.
    """
    loss = 0.0
    total = 0.0
    covered = 0
    eta, power, log_max, ratio = np.float32(rate), np.float32(alpha), np.float32(np.log(x_max)), np.float32(negatives)
    span, inverse = -(-dim // 16) * 16, np.float32(1) / np.float32(dim)
    roles = columns[:, ::2].copy()
    largest = 0
    for t in order:
        largest = max(largest, starts[t + 1] - starts[t])
    groups, targets = np.empty(largest + 1, np.int64), np.empty(largest, np.float32)
    places = np.empty(BUNDLE, np.int64)
    weights, scales, steps = np.empty(BUNDLE, np.float32), np.empty(BUNDLE, np.float32), np.empty(BUNDLE, np.float32)
    gradient = np.empty(span, np.float32)
    for t in order:
        first, size = starts[t], starts[t + 1] - starts[t]
        if size == 0:
            continue
        count = groups_of(entries, first, size, groups)
        for k in range(size):
            targets[k] = weight_of(log(entries[first + k].x), log_max, power)
        state = np.uint64(seed) + np.uint64(t) * np.uint64(0x9E3779B97F4A7C15)
        for mirrored in range(2 if symmetric else 1):
            one, other = roles[mirrored], roles[1 - mirrored]
            jump = stride(seed + t + mirrored, count)
            place = (seed + 7919 * t) % count
            for _ in range(count):
                low, many = groups[place], groups[place + 1] - groups[place]
                place += jump
                if place >= count:
                    place -= count
                i = np.int64(entries[first + low].i)
                sum_of_weights = np.float32(0)
                for k in range(POSITIVES):
                    j = np.int64(entries[first + low + min(k, many - 1)].j)
                    places[k] = j * rows_b.shape[1] + other[0]
                    weights[k] = np.float32(0)
                    # An entry of a word with itself is its own mirror image.
                    if k < many and not (mirrored and diagonal and i == j):
                        weights[k] = targets[low + k]
                        covered += 1
                    sum_of_weights += weights[k]
                for k in range(NEGATIVES):
                    state, n = draw(state, size)
                    places[POSITIVES + k] = np.int64(entries[first + n].j) * rows_b.shape[1] + other[0]
                    weights[POSITIVES + k] = ratio * sum_of_weights / np.float32(NEGATIVES)
                loss += train_group(
                    rows_a, rows_b, i, one, other, places, weights, scales, steps, gradient, span, inverse, eta,
                )  # fmt: skip
                total += float(sum_of_weights)
    return loss, LN_2 * (1.0 + negatives) * total, covered


def warm(columns: Indices, width: int, dim: int) -> None:
    """Compile (or load from the cache) the loops, before a server waits for this worker."""
    rows = np.ones((1, width), np.float32)
    entries = np.ones(0, np.dtype([("i", "<u2"), ("j", "<u2"), ("x", "<f4")]))
    entries.setflags(write=False)
    starts, order = np.zeros(2, np.int64), np.zeros(1, np.int64)
    train_block(rows, rows, entries, starts, order, 0, columns, dim, True, True, 1.0, 1.0, 1.0, 0.1)
