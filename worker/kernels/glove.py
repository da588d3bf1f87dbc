"""Train GloVe in compiled loops: SGD over the entries of a block on local rows, and the summed gradients of a batch.

Callers must check the arrays; no memory is allocated per entry. `common.model.row_layout` defines the columns of a row.
Arithmetic is in float32, sums of losses in float64. The factor 2 of the squared loss is part of the learning rate, as
in Stanford's GloVe.
"""

from typing import Any

import numpy as np

from glovewire.common.array_types import Entries, Indices, Pairs, Rows
from glovewire.common.runtime.compiled import compiled_bare, compiled_fast, inlined_fast
from glovewire.common.runtime.simd import context_rows, load

from .fast_math import coprime_stride, glove_weight, log
from .glove_step import ADAGRAD, ADAGRAD_ROW, SGD, GloveParams, GloveRole, step_elementwise, step_group, step_self_pair
from .simd_rows import LANES, dots, prefetch_floats

OPTIMIZERS = {"adagrad-row": ADAGRAD_ROW, "adagrad": ADAGRAD, "sgd": SGD}
MAX_GROUP = 8


def as_plain_arrays(entries: Entries) -> tuple[Pairs, Rows]:
    """Return two plain views of structured entries, because compiled loops handle field names slowly.

    The first is uint16 of shape (n, 4), i and j in columns 0 and 1; the second float32 of shape (n, 2), x in column 1.
    """
    bare = np.asarray(entries)
    return bare.view(np.uint16).reshape(-1, 4), bare.view(np.float32).reshape(-1, 2)


@compiled_fast
def renumber(pairs: Pairs, starts: Indices, order: Indices, side: int, positions: Indices, out: Pairs) -> None:
    """Copy the entries of the tiles in `order` to `out`; renumber their rows (side 0) or columns (1) by `positions`.

    `pairs` and `out` are from `as_plain_arrays`; column `side` of an entry becomes its index in `positions`.
    """
    top = np.int64(-1)
    if positions.size:
        top = positions[positions.size - 1]
    numbers = np.zeros(top + 1, np.uint16)
    for n in range(positions.size):
        numbers[positions[n]] = n
    count = 0
    for t in order:
        for k in range(starts[t], starts[t + 1]):
            for field in range(4):
                out[count, field] = pairs[k, field]
            out[count, side] = numbers[pairs[k, side]]
            count += 1


@compiled_fast
def split_groups(pairs: Pairs, first: int, size: int, most: int, diagonal: bool, groups: Indices) -> int:
    """Split `size` entries from `first` on into groups of 8, 4, 2 or 1 (at most `most`) with the same row i.

    Returns the number of groups, and fills `groups`: group k is entries [first + groups[k], first + groups[k + 1]).
    In a diagonal block, an entry of a word with itself is a group of its own, because it has no mirror image.
    """
    count = 0
    k = 0
    while k < size:
        groups[count] = k
        count += 1
        at, i = first + k, pairs[first + k, 0]
        run = 1
        if not (diagonal and pairs[at, 1] == i):
            limit = min(most, size - k)
            while run < limit and pairs[at + run, 0] == i and not (diagonal and pairs[at + run, 1] == i):
                run += 1
        while run & (run - 1):  # down to a power of two
            run &= run - 1
        k += run
    groups[count] = size
    return count


@compiled_fast
def compute_targets(counts: Rows, first: int, size: int, log_max: Any, alpha: Any, logs: Rows, weights: Rows) -> None:
    """Fill `logs` and `weights` with the log counts and weights of `size` entries from `first` on, in SIMD passes."""
    for k in range(size):
        logs[k] = log(counts[first + k, 1])
    for k in range(size):
        weights[k] = glove_weight(logs[k], log_max, alpha)


@inlined_fast
def prefetch_group(one: GloveRole, others: GloveRole, pairs: Pairs, start: int, size: int, span: int) -> None:
    """Prefetch the rows of the next group (`size` entries from `start` on) into the cache."""
    width = one.rows.shape[1]
    prefetch_floats(one.rows, np.int64(pairs[start, 0]) * width + one.vector, span)
    for k in range(start, start + size):
        at = np.int64(pairs[k, 1]) * width
        prefetch_floats(others.rows, at + others.vector, span)
        prefetch_floats(others.rows, at + others.bias, LANES)


@compiled_bare
def train_tile(
    one: GloveRole,
    others: GloveRole,
    pairs: Pairs,
    first: int,
    groups: Indices,
    count: int,
    seed: int,
    logs: Rows,
    weights: Rows,
    params: GloveParams,
    diagonal: bool,
    images: Any,
    skip_self: bool,
) -> tuple[float, float, float]:
    """Step over the `count` groups of the tile that begins at `first`, in an order set by `seed`.

    `logs` and `weights` are those of the tile's entries. Returns the sums of loss and bias-only loss and the number of
    entries covered; each entry counts `images` times: 1, or 2 to include its mirror image. With `skip_self`, entries
    of a word with itself in a diagonal block are left out.
    """
    loss = bias_only = covered = 0.0
    jump, place = coprime_stride(seed, count), seed % count
    for _ in range(count):
        low, size = groups[place], groups[place + 1] - groups[place]
        start = first + low
        i, j = np.int64(pairs[start, 0]), np.int64(pairs[start, 1])
        place += jump
        if place >= count:
            place -= count
        prefetch_group(one, others, pairs, first + groups[place], groups[place + 1] - groups[place], params.span)
        if size == 8:
            js = context_rows(pairs, start, 8)
            a, b = step_group(one, others, i, js, load(logs, low, 8), load(weights, low, 8), params)
        elif size == 4:
            js = context_rows(pairs, start, 4)
            a, b = step_group(one, others, i, js, load(logs, low, 4), load(weights, low, 4), params)
        elif size == 2:
            js = context_rows(pairs, start, 2)
            a, b = step_group(one, others, i, js, load(logs, low, 2), load(weights, low, 2), params)
        else:
            if skip_self and diagonal and i == j:
                continue
            if params.optimizer == ADAGRAD:
                a, b = step_elementwise(one, others, i, j, logs[low], weights[low], params)
            else:
                a, b = step_group(one, others, i, (j,), load(logs, low, 1), load(weights, low, 1), params)
        loss += images * a
        bias_only += images * b
        covered += images * size
    return loss, bias_only, covered


@compiled_bare
def train_self_pairs(
    one: GloveRole, pairs: Pairs, first: int, size: int, logs: Rows, weights: Rows, params: GloveParams, times: Any
) -> tuple[float, float, float]:
    """Step over the entries of a word with itself among `size` entries from `first` on, with tied embeddings.

    `times` scales the gradient of one role. Returns the same sums as `train_tile`.
    """
    loss = bias_only = covered = 0.0
    for k in range(size):
        i = np.int64(pairs[first + k, 0])
        if i == pairs[first + k, 1]:
            a, b = step_self_pair(one, i, logs[k], weights[k], times, params)
            loss += a
            bias_only += b
            covered += 1.0
    return loss, bias_only, covered


@compiled_fast
def compute_norms(role: GloveRole, pairs: Pairs, side: int, first: int, size: int, span: int) -> None:
    """Fill in the missing norms (below 0) of the rows that `size` entries from `first` on have in column `side`."""
    width = role.rows.shape[1]
    for k in range(first, first + size):
        n = np.int64(pairs[k, side])
        if role.norms[n] < 0:
            role.norms[n] = dots(role.rows, n * width + role.vector, role.rows, (n,), width, role.vector, span)[1]


@compiled_fast
def train_block(
    rows_a: Rows,
    rows_b: Rows,
    pairs: Pairs,
    counts: Rows,
    starts: Indices,
    order: Indices,
    numbers: Indices,
    seed: int,
    columns: Indices,
    dim: int,
    span: int,
    optimizer: int,
    tied: bool,
    symmetric: bool,
    diagonal: bool,
    x_max: float,
    alpha: float,
    rate: float,
) -> tuple[float, float, int]:
    """Step over the entries of the tiles in `order`; return the sums of loss and bias-only loss, and entries covered.

    `rows_a` and `rows_b` (float32, (rows, width), C order) are changed in place and are the same array for a diagonal
    block. `pairs` and `counts` are the block's entries from `as_plain_arrays`; `starts` (tiles + 1,) delimits tiles. A
    stored entry of a symmetric matrix stands for its mirror image too: with tied embeddings the same step covers both,
    otherwise a second step swaps the roles, after the tile's first pass. With tied embeddings, an entry of a word with
    itself has one row in both roles: it is stepped once, in the same proportion, after the rest of its tile.
    """
    loss = bias_only = covered = 0.0
    power, log_max = np.float32(alpha), np.float32(np.log(x_max))
    params = GloveParams(optimizer, np.float32(rate), span, np.float32(1) / np.float32(dim))
    w, c = columns[0], columns[1]
    missing = np.float32(-1)
    norms_word_b = norms_context_b = np.full(rows_b.shape[0], missing)
    if not tied:
        norms_word_b = np.full(rows_b.shape[0], missing)
    norms_word_a, norms_context_a = norms_word_b, norms_context_b
    if not diagonal:  # never read
        norms_word_a = norms_context_a = np.empty(rows_a.shape[0], np.float32)
    word_a = GloveRole(rows_a, w[0], w[1], w[2], w[3], norms_word_a)
    word_b = GloveRole(rows_b, w[0], w[1], w[2], w[3], norms_word_b)
    context_a = GloveRole(rows_a, c[0], c[1], c[2], c[3], norms_context_a)
    context_b = GloveRole(rows_b, c[0], c[1], c[2], c[3], norms_context_b)
    largest = 0
    for t in order:
        largest = max(largest, starts[t + 1] - starts[t])
    groups = np.empty(largest + 1, np.int64)
    logs, weights = np.empty(largest, np.float32), np.empty(largest, np.float32)
    most = 1 if optimizer == ADAGRAD else MAX_GROUP
    images = 2.0 if tied and symmetric else 1.0
    for n in range(len(order)):
        t = order[n]
        first, size = starts[t], starts[t + 1] - starts[t]
        if size == 0:
            continue
        count = split_groups(pairs, first, size, most, diagonal, groups)
        compute_targets(counts, first, size, log_max, power, logs, weights)
        compute_norms(context_b, pairs, 1, first, size, span)
        if not tied:
            compute_norms(word_b, pairs, 1, first, size, span)
        walk = seed + 7919 * numbers[n]
        sums = train_tile(
            word_a, context_b, pairs, first, groups, count, walk, logs, weights, params, diagonal, images, tied
        )
        loss, bias_only, covered = loss + sums[0], bias_only + sums[1], covered + sums[2]
        if diagonal and tied:
            times = np.float32(2) / np.float32(images)
            sums = train_self_pairs(word_a, pairs, first, size, logs, weights, params, times)
            loss, bias_only, covered = loss + sums[0], bias_only + sums[1], covered + sums[2]
        if symmetric and not tied:
            sums = train_tile(
                context_a, word_b, pairs, first, groups, count, walk, logs, weights, params, diagonal, images, True
            )
            loss, bias_only, covered = loss + sums[0], bias_only + sums[1], covered + sums[2]
    return loss, bias_only, int(covered)


@compiled_fast
def batch_gradients(
    rows: Rows,
    at_i: Indices,
    at_j: Indices,
    counts: Rows,
    columns: Indices,
    dim: int,
    x_max: float,
    alpha: float,
    gradients: Rows,
) -> tuple[float, float]:
    """Add the gradient of a batch's summed loss to `gradients`; return the sums of loss and bias-only loss.

    `rows` are the distinct rows of the batch, `gradients` those of their parameter columns; entry n pairs row at_i[n]
    as word with row at_j[n] as context. The factor 2 of the square is left out.
    """
    loss = 0.0
    bias_only = 0.0
    word, context = columns[0], columns[1]
    for n in range(counts.size):
        row_i, row_j = rows[at_i[n]], rows[at_j[n]]
        into_i, into_j = gradients[at_i[n]], gradients[at_j[n]]
        log_x = log(counts[n])
        weight = glove_weight(log_x, np.float32(np.log(x_max)), np.float32(alpha))
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
        bias_only += weight * bias * bias
    return loss, bias_only


@compiled_fast
def mean_norm(rows: Rows, columns: Indices, span: int) -> float:
    """Return the mean Euclidean norm of the word vectors in `rows`, 0 if there are none."""
    width, vector, total = rows.shape[1], columns[0, 0], 0.0
    for n in range(rows.shape[0]):
        total += np.sqrt(dots(rows, n * width + vector, rows, (n,), width, vector, span)[1])
    return float(total / max(rows.shape[0], 1))
