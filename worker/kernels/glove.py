"""The compiled loops of GloVe: SGD over the entries of a block on local rows, and the summed gradients of a batch.

Arrays come checked; nothing here allocates per entry. Rows are laid out as `row_layout` says. All in float32, sums of
losses in float64. The factor 2 of the squared loss is left in the learning rate, as in Stanford's GloVe.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from glovewire.common.array_types import Entries, Indices, Pairs, Rows
from glovewire.common.runtime.compiled import compiled_bare, compiled_fast, inlined_fast

from .fast_math import log, stride, weight_of
from .glove_step import ADAGRAD, ADAGRAD_ROW, SGD, Pace, Side, step_alone, step_elementwise, step_together
from .simd import load, partners
from .simd_rows import LANES, dots, prefetch

OPTIMIZERS = {"adagrad-row": ADAGRAD_ROW, "adagrad": ADAGRAD, "sgd": SGD}
GROUP = 8


def plain(entries: Entries) -> tuple[Pairs, Rows]:
    """The same bytes without their field names, which compiled loops handle slowly.

    Positions as uint16 of shape (n, 4), of which columns 0 and 1 are i and j; weights as float32 of shape (n, 2), of
    which column 1 is x.
    """
    bare = np.asarray(entries)
    return bare.view(np.uint16).reshape(-1, 4), bare.view(np.float32).reshape(-1, 2)


@compiled_fast
def groups_of(pairs: Pairs, first: int, size: int, most: int, diagonal: bool, groups: Indices) -> int:
    """Cut `size` entries from `first` on into groups of 8, 4, 2 or 1 (at most `most`) of one row i; returns how many.

    In a diagonal block an entry of a word with itself stays alone: it has no mirror image.
    Group k is entries first + groups[k] to first + groups[k + 1].
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
def targets_of(counts: Rows, first: int, size: int, log_max: Any, alpha: Any, logs: Rows, weights: Rows) -> None:
    """Logarithm and weight of `size` entries from `first` on, in one vectorised pass."""
    for k in range(size):
        logs[k] = log(counts[first + k, 1])
    for k in range(size):
        weights[k] = weight_of(logs[k], log_max, alpha)


@inlined_fast
def fetch(one: Side, others: Side, pairs: Pairs, start: int, size: int, span: int) -> None:
    """Ask for the rows of the next group (`size` entries from `start` on) while this one is computed."""
    width = one.rows.shape[1]
    prefetch(one.rows, np.int64(pairs[start, 0]) * width + one.vector, span)
    for k in range(start, start + size):
        at = np.int64(pairs[k, 1]) * width
        prefetch(others.rows, at + others.vector, span)
        prefetch(others.rows, at + others.bias, LANES)


@compiled_bare
def train_tile(
    one: Side,
    others: Side,
    pairs: Pairs,
    first: int,
    groups: Indices,
    count: int,
    seed: int,
    logs: Rows,
    weights: Rows,
    pace: Pace,
    diagonal: bool,
    images: Any,
    apart: bool,
) -> tuple[float, float, float]:
    """A step on each of the `count` groups of the tile that begins at `first`, in an order that `seed` decides.

    `logs` and `weights` belong to the tile. Returns the sums of loss and bias-only loss and the entries covered; each
    entry stands for `images` of the full matrix (itself and, perhaps, its mirror image). `apart` leaves out those of a
    word with itself.
    """
    loss = floor = covered = 0.0
    jump, place = stride(seed, count), seed % count
    for _ in range(count):
        low, size = groups[place], groups[place + 1] - groups[place]
        start = first + low
        i, j = np.int64(pairs[start, 0]), np.int64(pairs[start, 1])
        place += jump
        if place >= count:
            place -= count
        fetch(one, others, pairs, first + groups[place], groups[place + 1] - groups[place], pace.span)
        if size == 8:
            js = partners(pairs, start, 8)
            a, b = step_together(one, others, i, js, load(logs, low, 8), load(weights, low, 8), pace)
        elif size == 4:
            js = partners(pairs, start, 4)
            a, b = step_together(one, others, i, js, load(logs, low, 4), load(weights, low, 4), pace)
        elif size == 2:
            js = partners(pairs, start, 2)
            a, b = step_together(one, others, i, js, load(logs, low, 2), load(weights, low, 2), pace)
        else:
            if apart and diagonal and i == j:
                continue
            if pace.optimizer == ADAGRAD:
                a, b = step_elementwise(one, others, i, j, logs[low], weights[low], pace)
            else:
                a, b = step_together(one, others, i, (j,), load(logs, low, 1), load(weights, low, 1), pace)
        loss += images * a
        floor += images * b
        covered += images * size
    return loss, floor, covered


@compiled_bare
def train_selves(
    one: Side, pairs: Pairs, first: int, size: int, logs: Rows, weights: Rows, pace: Pace, times: Any
) -> tuple[float, float, float]:
    """A step on each entry of a word with itself, of the `size` from `first` on, where both its roles are one.

    `times` is how often the gradient of one role counts. Returns the same sums as `train_tile`.
    """
    loss = floor = covered = 0.0
    for k in range(size):
        i = np.int64(pairs[first + k, 0])
        if i == pairs[first + k, 1]:
            a, b = step_alone(one, i, logs[k], weights[k], times, pace)
            loss += a
            floor += b
            covered += 1.0
    return loss, floor, covered


@compiled_fast
def padded(dim: int) -> int:
    """Floats that a vector takes in a row; those beyond `dim` are zeros and stay so."""
    return -(-dim // LANES) * LANES


@compiled_fast
def norms_of(rows: Rows, vector: int, span: int) -> Rows:
    """v . v of every row, of which `vector` is the first column: float32 of shape (rows,)."""
    out = np.empty(rows.shape[0], np.float32)
    for n in range(rows.shape[0]):
        out[n] = dots(rows, n * rows.shape[1] + vector, rows, (n,), rows.shape[1], vector, span)[1]
    return out


@compiled_fast
def train_block(
    rows_a: Rows,
    rows_b: Rows,
    pairs: Pairs,
    counts: Rows,
    starts: Indices,
    order: Indices,
    seed: int,
    columns: Indices,
    dim: int,
    optimizer: int,
    tied: bool,
    symmetric: bool,
    diagonal: bool,
    x_max: float,
    alpha: float,
    rate: float,
) -> tuple[float, float, int]:
    """SGD over the entries of the tiles in `order`; sums of loss and bias-only loss, entries covered.

    `rows_a` and `rows_b` (float32, (rows, width), C order) are changed in place and are the same array for a diagonal
    block. `pairs` and `counts` are the block's entries as `plain` gives them; `starts` (tiles + 1,) delimits tiles. A
    stored entry of a symmetric matrix stands for its mirror image too: the same step when the embeddings are tied,
    otherwise another one with the roles changed, once the tile is through. An entry of a tied word with itself has
    one row in both roles: it is stepped once, in the same proportion, when the others of its tile are.
    """
    loss = floor = covered = 0.0
    power, log_max = np.float32(alpha), np.float32(np.log(x_max))
    span = padded(dim)
    pace = Pace(optimizer, np.float32(rate), span, np.float32(1) / np.float32(dim))
    w, c = columns[0], columns[1]
    norms_context_b = norms_of(rows_b, c[0], span)
    norms_word_b = norms_context_b if tied else norms_of(rows_b, w[0], span)
    norms_word_a, norms_context_a = norms_word_b, norms_context_b
    if not diagonal:  # nobody reads them
        norms_word_a = norms_context_a = np.empty(rows_a.shape[0], np.float32)
    word_a = Side(rows_a, w[0], w[1], w[2], w[3], norms_word_a)
    word_b = Side(rows_b, w[0], w[1], w[2], w[3], norms_word_b)
    context_a = Side(rows_a, c[0], c[1], c[2], c[3], norms_context_a)
    context_b = Side(rows_b, c[0], c[1], c[2], c[3], norms_context_b)
    largest = 0
    for t in order:
        largest = max(largest, starts[t + 1] - starts[t])
    groups = np.empty(largest + 1, np.int64)
    logs, weights = np.empty(largest, np.float32), np.empty(largest, np.float32)
    most = 1 if optimizer == ADAGRAD else GROUP
    images = 2.0 if tied and symmetric else 1.0
    for t in order:
        first, size = starts[t], starts[t + 1] - starts[t]
        if size == 0:
            continue
        count = groups_of(pairs, first, size, most, diagonal, groups)
        targets_of(counts, first, size, log_max, power, logs, weights)
        walk = seed + 7919 * t
        sums = train_tile(
            word_a, context_b, pairs, first, groups, count, walk, logs, weights, pace, diagonal, images, tied
        )
        loss, floor, covered = loss + sums[0], floor + sums[1], covered + sums[2]
        if diagonal and tied:
            times = np.float32(2) / np.float32(images)
            sums = train_selves(word_a, pairs, first, size, logs, weights, pace, times)
            loss, floor, covered = loss + sums[0], floor + sums[1], covered + sums[2]
        if symmetric and not tied:
            sums = train_tile(
                context_a, word_b, pairs, first, groups, count, walk, logs, weights, pace, diagonal, images, True
            )
            loss, floor, covered = loss + sums[0], floor + sums[1], covered + sums[2]
    return loss, floor, int(covered)


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


def mean_norm(rows: Rows, columns: Indices, dim: int) -> float:
    """Mean Euclidean norm of the word vectors in `rows`."""
    norms = np.sqrt(norms_of(rows, columns[0, 0], padded(dim)))
    return float(norms.mean()) if len(norms) else 0.0


def warm(columns: Indices, width: int, dim: int) -> None:
    """Compile (or load from the cache) the loops, before a server waits for this worker."""
    rows = np.ones((1, width), np.float32)
    for tied in (True, False):
        entries = np.ones(0, np.dtype([("i", "<u2"), ("j", "<u2"), ("x", "<f4")]))
        entries.setflags(write=False)
        pairs, counts = plain(entries)
        starts, order = np.zeros(2, np.int64), np.zeros(1, np.int64)
        train_block(rows, rows, pairs, counts, starts, order, 0, columns, dim, 0, tied, True, True, 1.0, 1.0, 0.1)
    places = np.zeros(0, np.int64)
    batch_gradients(rows, places, places, np.ones(0, np.float32), columns, dim, 1.0, 1.0, rows.copy())
    mean_norm(rows, columns, dim)
