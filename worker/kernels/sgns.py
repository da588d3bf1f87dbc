"""Train skip-gram with negative sampling (Mikolov et al. 2013) on weighted pairs, in compiled loops on local rows.

A group is one row u, up to POSITIVES rows v_k paired with u with weights w_k, and NEGATIVES shared negative rows n_m:

    loss = - sum_k w_k log s(u . v_k) - (K sum_k w_k / M) sum_m log s(-u . n_m),   s(x) = 1 / (1 + exp(-x))

with K negatives for each pair, estimated from M = NEGATIVES rows. The negatives are the columns of entries drawn from
the same tile: their rows are in the CPU cache, and frequent words are drawn more often. The weight of a pair is GloVe's
weight of the count that remains after frequent words are subsampled. All gradients of a group are taken at the old
values; AdaGrad has one accumulator per row and role. Callers must check the arrays; no loop allocates memory per entry.
Arithmetic is in float32, sums of losses in float64.
"""

from typing import Any, NamedTuple

import numpy as np

from glovewire.common.array_types import Floats, Indices, Pairs, Rows
from glovewire.common.runtime.compiled import compiled_bare, compiled_fast, inlined_fast
from glovewire.common.runtime.simd import indices_of, load, store

from .fast_math import coprime_stride, exp, glove_weight, log
from .simd_rows import add_scaled, dots, update

POSITIVES, NEGATIVES = 4, 8
BUNDLE = POSITIVES + NEGATIVES
EPSILON = np.float32(1e-12)


class SgnsRole(NamedTuple):
    """Rows of a partition, float32 of shape (rows, width), and the columns of one role: vector and accumulator."""

    rows: Any
    vector: Any
    state: Any


class GroupBuffers(NamedTuple):
    """Buffers for one group: arrays of length BUNDLE over its positives v and negatives n, and the gradient of u.

    `others` are row numbers, `weights` those of the loss (0 for unused positives), `scales` the derivatives of the loss
    by the dot products, `steps` these times the rates; `gradient` has span floats.
    """

    others: Any
    weights: Any
    scales: Any
    steps: Any
    gradient: Any


class SgnsParams(NamedTuple):
    """Parameters of a step: `span` is the length of a padded vector, `inverse` one over the length of a vector."""

    rate: Any
    span: Any
    inverse: Any


def group_buffers(span: int) -> GroupBuffers:
    """Return uninitialised buffers for one group, with vectors of `span` floats."""
    weights, scales, steps = np.empty((3, BUNDLE), np.float32)
    return GroupBuffers(np.empty(BUNDLE, np.int64), weights, scales, steps, np.empty(span, np.float32))


def keep_probability(frequencies: Floats, sample: float) -> Floats:
    """Return the fraction of each word's occurrences kept by subsampling: min(1, sqrt(sample / f)).

    `frequencies` are f, the words' shares of the text. Source: "Subsampling of frequent words" in Mikolov et al. 2013.
    """
    return np.sqrt(sample / np.maximum(frequencies, sample))


@compiled_fast
def split_groups(pairs: Pairs, first: int, size: int, groups: Indices) -> int:
    """Split `size` entries from `first` on into groups of up to POSITIVES with the same row i.

    Returns the number of groups, and fills `groups`: group k is entries [first + groups[k], first + groups[k + 1]).
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
def next_random(state: Any, below: int) -> tuple[Any, Any]:
    """Return the next state of a linear congruential generator (Knuth's constants), and a number in [0, below)."""
    state = state * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
    return state, np.int64(((state >> np.uint64(32)) * np.uint64(below)) >> np.uint64(32))


@inlined_fast
def loss_derivatives(products: Rows, weights: Rows) -> Any:
    """Replace each dot product of a group by the loss's derivative with respect to it; return the loss."""
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
def train_group(one: SgnsRole, others: SgnsRole, row: Any, group: GroupBuffers, params: SgnsParams) -> Any:
    """Step row `row` of `one` against the rows and weights of `group`; return the loss before the step."""
    width, rows = others.rows.shape[1], indices_of(group.others, BUNDLE)
    at = row * one.rows.shape[1] + one.vector
    products, squares = dots(one.rows, at, others.rows, rows, width, others.vector, params.span)
    store(group.scales, 0, products)
    loss = loss_derivatives(group.scales, group.weights)
    for k in range(BUNDLE):
        others.rows[group.others[k], others.state] += group.scales[k] * group.scales[k] * squares * params.inverse
        group.steps[k] = others.rows[group.others[k], others.state]
    for k in range(BUNDLE):
        group.steps[k] = params.rate * group.scales[k] / np.sqrt(group.steps[k] + EPSILON)
    scales, steps = load(group.scales, 0, BUNDLE), load(group.steps, 0, BUNDLE)
    one.rows[row, one.state] += params.inverse * update(
        one.rows, at, others.rows, rows, width, others.vector, params.span, scales, steps, group.gradient
    )
    add_scaled(one.rows, at, group.gradient, params.span, -params.rate / np.sqrt(one.rows[row, one.state] + EPSILON))
    return loss


@compiled_bare
def train_tile(
    one: SgnsRole,
    others: SgnsRole,
    pairs: Pairs,
    first: int,
    size: int,
    groups: Indices,
    count: int,
    targets: Rows,
    seed: Any,
    ratio: Any,
    skip_self: bool,
    group: GroupBuffers,
    params: SgnsParams,
) -> tuple[float, float, int]:
    """Step over the `count` groups of the tile that begins at `first`, in an order set by `seed`.

    `targets` are the weights of the tile's `size` entries, `ratio` the number of negatives for each. With `skip_self`,
    entries of a word with itself are left out. Returns the sums of loss and weights, and the number of entries covered.
    """
    loss = total = 0.0
    covered = 0
    state = np.uint64(seed)
    jump, place = coprime_stride(seed, count), seed % count
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
            if k < many and not (skip_self and i == j):
                group.weights[k] = targets[low + k]
                weight += targets[low + k]
                covered += 1
        for k in range(POSITIVES, BUNDLE):
            state, n = next_random(state, size)
            group.others[k] = np.int64(pairs[first + n, 1])
            group.weights[k] = ratio * weight / np.float32(NEGATIVES)
        loss += train_group(one, others, i, group, params)
        total += float(weight)
    return loss, total, covered


@compiled_fast
def train_block(
    rows_a: Rows,
    rows_b: Rows,
    pairs: Pairs,
    counts: Rows,
    kept_a: Rows,
    kept_b: Rows,
    starts: Indices,
    order: Indices,
    numbers: Indices,
    seed: int,
    columns: Indices,
    symmetric: bool,
    diagonal: bool,
    log_max: Any,
    alpha: Any,
    ratio: Any,
    group: GroupBuffers,
    params: SgnsParams,
) -> tuple[float, float, int]:
    """Step over the entries of the tiles in `order`; return the sums of loss and weights, and the entries covered.

    `rows_a` and `rows_b` (float32, (rows, width), C order) are changed in place and are the same array for a diagonal
    block. `pairs` and `counts` are the block's entries from `as_plain_arrays`; `starts` (tiles + 1,) delimits tiles.
    `kept_a` and `kept_b` are the logarithms of the `keep_probability` of their words, `columns` as in RowLayout. A
    stored entry of a symmetric matrix stands for its mirror image too: a second step with the roles swapped.
    """
    loss = total = 0.0
    covered = 0
    largest = 0
    for t in order:
        largest = max(largest, starts[t + 1] - starts[t])
    groups, targets = np.empty(largest + 1, np.int64), np.empty(largest, np.float32)
    for n in range(len(order)):
        t = order[n]
        first, size = starts[t], starts[t + 1] - starts[t]
        if size == 0:
            continue
        count = split_groups(pairs, first, size, groups)
        for k in range(size):
            kept = kept_a[pairs[first + k, 0]] + kept_b[pairs[first + k, 1]]
            targets[k] = glove_weight(log(counts[first + k, 1]) + kept, log_max, alpha)
        for mirrored in range(2 if symmetric else 1):
            one = SgnsRole(rows_a, columns[mirrored, 0], columns[mirrored, 2])
            others = SgnsRole(rows_b, columns[1 - mirrored, 0], columns[1 - mirrored, 2])
            found = train_tile(
                one, others, pairs, first, size, groups, count, targets, seed + 7919 * numbers[n] + mirrored, ratio,
                diagonal and mirrored == 1, group, params,  # an entry of a word with itself is its own mirror image
            )  # fmt: skip
            loss, total, covered = loss + found[0], total + found[1], covered + found[2]
    return loss, total, covered
