"""Skip-gram with negative sampling (Mikolov et al. 2013) on weighted pairs, in plain numpy: the kernels' reference.

A group is one row u against the rows v of its pairs, each with a weight w, and against shared negatives n:

    loss = - sum_k w_k log s(u . v_k) - (K sum_k w_k / M) sum_m log s(-u . n_m),   s(x) = 1 / (1 + exp(-x))

with K negatives for each pair, estimated from M rows. The weight of a pair is GloVe's, of what is left of its count
when frequent words are thinned out. Pure: no I/O, no state, any float dtype.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from glovewire.common.array_types import Entries, Floats, Indices, Pairs, Rows
from glovewire.common.runtime.compiled import compiled_bare, compiled_fast, inlined_fast
from glovewire.common.storage.dataset import ENTRY

from .fast_math import exp, log, stride, weight_of
from .glove import padded, plain
from .sgns_simd import add_to_one, dots, step_others


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


# ---- The compiled loops of skip-gram with negative sampling: steps over the entries of a block on local rows.
#
# Entries that share their row are taken up to four at a time, against NEGATIVES rows that are the columns of entries
# drawn from the same tile: they lie in the cache, and frequent words come up more often. All gradients of a group come
# from the values before it (worker.kernels.sgns has the formulas); AdaGrad has one accumulator a row and role. Arrays
# come
# checked; nothing here allocates per entry. All in float32, sums of losses in float64.
#

POSITIVES, NEGATIVES = 4, 8
BUNDLE = POSITIVES + NEGATIVES
TINY = np.float32(1e-12)
LN_2 = math.log(2.0)


class Side(NamedTuple):
    """Rows of a partition, float32 of shape (rows, width), in one role: where its vector and its accumulator stand."""

    rows: Any
    vector: Any
    state: Any


class Scratch(NamedTuple):
    """A group in the making, BUNDLE long: rows of the others, their weights, and what a step needs; `gradient` is u's.

    `weights` is 0 for places to spare; `places` is where the vectors of `others` start.
    """

    others: Any
    weights: Any
    places: Any
    scales: Any
    steps: Any
    gradient: Any


class Pace(NamedTuple):
    """How far a step goes; `span` is the length of a padded vector, `inverse` one over the length of a vector."""

    rate: Any
    span: Any
    inverse: Any


def scratch_of(span: int) -> Scratch:
    """Room for one group."""
    others, places = np.empty((2, BUNDLE), np.int64)
    weights, scales, steps = np.empty((3, BUNDLE), np.float32)
    return Scratch(others, weights, places, scales, steps, np.empty(span, np.float32))


@compiled_fast
def groups_of(pairs: Pairs, first: int, size: int, groups: Indices) -> int:
    """Cut `size` entries from `first` on into groups of up to POSITIVES that share their row i; returns how many.

    Group k is entries first + groups[k] to first + groups[k + 1].
    """
    count = 0
    low = 0
    for k in range(size):
        if k == 0 or k - low == POSITIVES or pairs[first + k, 0] != pairs[first + low, 0]:
            groups[count] = low = k
            count += 1
    groups[count] = size
    return count


@inlined_fast
def draw(state: Any, below: int) -> tuple[Any, Any]:
    """The next state of a linear congruential generator (Knuth's constants), and a number from 0 to below - 1."""
    state = state * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
    return state, np.int64(((state >> np.uint64(32)) * np.uint64(below)) >> np.uint64(32))


@inlined_fast
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


@inlined_fast
def train_group(one: Side, others: Side, row: Any, group: Scratch, pace: Pace) -> Any:
    """One step on a group: row `row` of `one` against the rows and weights of `group`; returns the loss before it."""
    width = others.rows.shape[1]
    for k in range(BUNDLE):
        group.places[k] = group.others[k] * width + others.vector
    at = row * one.rows.shape[1] + one.vector
    squares = dots(one.rows, at, others.rows, group.places, pace.span, group.scales)
    loss = scales_of(group.scales, group.weights)
    for k in range(BUNDLE):
        others.rows[group.others[k], others.state] += group.scales[k] * group.scales[k] * squares * pace.inverse
        group.steps[k] = others.rows[group.others[k], others.state]
    for k in range(BUNDLE):
        group.steps[k] = pace.rate * group.scales[k] / np.sqrt(group.steps[k] + TINY)
    one.rows[row, one.state] += pace.inverse * step_others(
        one.rows, at, others.rows, group.places, pace.span, group.gradient, group.scales, group.steps
    )
    add_to_one(one.rows, at, group.gradient, pace.span, -pace.rate / np.sqrt(one.rows[row, one.state] + TINY))
    return loss


@compiled_bare
def train_tile(
    one: Side,
    others: Side,
    pairs: Pairs,
    first: int,
    size: int,
    groups: Indices,
    count: int,
    targets: Rows,
    seed: Any,
    ratio: Any,
    no_self: bool,
    group: Scratch,
    pace: Pace,
) -> tuple[float, float, int]:
    """A step on each of the `count` groups of the tile that begins at `first`, in an order that `seed` decides.

    `targets` are the weights of its `size` entries, `ratio` the negatives for each. With `no_self`, entries of a word
    with itself are left out. Returns the sums of loss and weights, and the entries covered.
    """
    loss = total = 0.0
    covered = 0
    state = np.uint64(seed)
    jump, place = stride(seed, count), seed % count
    for _ in range(count):
        low, many = groups[place], groups[place + 1] - groups[place]
        place += jump
        if place >= count:
            place -= count
        i = np.int64(pairs[first + low, 0])
        weight = np.float32(0)
        for k in range(POSITIVES):
            j = np.int64(pairs[first + low + min(k, many - 1), 1])
            group.others[k], group.weights[k] = j, np.float32(0)
            if k < many and not (no_self and i == j):
                group.weights[k] = targets[low + k]
                weight += targets[low + k]
                covered += 1
        for k in range(POSITIVES, BUNDLE):
            state, n = draw(state, size)
            group.others[k] = np.int64(pairs[first + n, 1])
            group.weights[k] = ratio * weight / np.float32(NEGATIVES)
        loss += train_group(one, others, i, group, pace)
        total += float(weight)
    return loss, total, covered


@compiled_fast
def train_tiles(
    rows_a: Rows,
    rows_b: Rows,
    pairs: Pairs,
    counts: Rows,
    kept_a: Rows,
    kept_b: Rows,
    starts: Indices,
    order: Indices,
    seed: int,
    columns: Indices,
    symmetric: bool,
    diagonal: bool,
    log_max: Any,
    alpha: Any,
    ratio: Any,
    group: Scratch,
    pace: Pace,
) -> tuple[float, float, int]:
    """The compiled part of `train_block`: sums of loss and weights, and the entries covered."""
    loss = total = 0.0
    covered = 0
    largest = 0
    for t in order:
        largest = max(largest, starts[t + 1] - starts[t])
    groups, targets = np.empty(largest + 1, np.int64), np.empty(largest, np.float32)
    for t in order:
        first, size = starts[t], starts[t + 1] - starts[t]
        if size == 0:
            continue
        count = groups_of(pairs, first, size, groups)
        for k in range(size):
            kept = kept_a[pairs[first + k, 0]] + kept_b[pairs[first + k, 1]]
            targets[k] = weight_of(log(counts[first + k, 1]) + kept, log_max, alpha)
        for mirrored in range(2 if symmetric else 1):
            one = Side(rows_a, columns[mirrored, 0], columns[mirrored, 2])
            others = Side(rows_b, columns[1 - mirrored, 0], columns[1 - mirrored, 2])
            # An entry of a word with itself is its own mirror image.
            found = train_tile(
                one, others, pairs, first, size, groups, count, targets, seed + 7919 * t + mirrored, ratio,
                diagonal and mirrored == 1, group, pace,
            )  # fmt: skip
            loss, total, covered = loss + found[0], total + found[1], covered + found[2]
    return loss, total, covered


def train_block(
    rows_a: Rows,
    rows_b: Rows,
    entries: Entries,
    kept_a: Rows,
    kept_b: Rows,
    starts: Indices,
    order: Indices,
    seed: int,
    columns: Indices,
    dim: int,
    symmetric: bool,
    diagonal: bool,
    x_max: float,
    alpha: float,
    negatives: float,
    rate: float,
) -> tuple[float, float, int]:
    """Steps over the entries of the tiles in `order`; sums of loss and of the loss at zero, entries covered.

    `rows_a` and `rows_b` (float32, (rows, width), C order) are changed in place and are the same array for a diagonal
    block. `kept_a` and `kept_b` are the logarithms of what is kept of each of their words, at most 0. `columns` as in
    RowLayout. A stored entry of a symmetric matrix stands for its mirror image too: a second step in which the roles
    are changed. `starts` (tiles + 1,) delimits tiles.
    """
    pairs, counts = plain(entries)
    span = padded(dim)
    loss, total, covered = train_tiles(
        rows_a, rows_b, pairs, counts, kept_a, kept_b, starts, order, seed, columns, symmetric, diagonal,
        np.float32(np.log(x_max)), np.float32(alpha), np.float32(negatives), scratch_of(span),
        Pace(np.float32(rate), span, np.float32(1 / dim)),
    )  # fmt: skip
    return loss, LN_2 * (1.0 + negatives) * total, covered


def warm(columns: Indices, width: int, dim: int) -> None:
    """Compile (or load from the cache) the loops, before a server waits for this worker."""
    rows = np.ones((1, width), np.float32)
    entries = np.ones(0, ENTRY)
    entries.setflags(write=False)
    starts, order = np.zeros(2, np.int64), np.zeros(1, np.int64)
    kept = np.zeros(1, np.float32)
    train_block(rows, rows, entries, kept, kept, starts, order, 0, columns, dim, True, True, 1.0, 1.0, 1.0, 0.1)
