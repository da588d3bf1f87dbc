"""Compiled loops of `subwords`: hash n-grams as fastText does, sparse matrices of them, conjugate gradients. No I/O.

A sparse matrix of n-grams holds no values: `starts` int64 (rows + 1,) and `columns` int32 (entries,), where row i has
the entries `columns[starts[i] : starts[i + 1]]`, each worth 1, repeated columns included.
"""

from typing import Any, Final

import numpy as np

from ..array_types import Bytes, Ids, Indices, Rows
from ..runtime.compiled import compiled, compiled_bare
from ..runtime.simd import load, store

WIDTH: Final = 16
"""Dimensions solved together: sixteen float32 are one cache line, which is what a look-up of an n-gram costs."""
_LINE_BYTES = 64
BLOCK_ROWS: Final = 256
"""Rows that are summed in single precision before their sum is added in double precision."""

_FNV_BASIS, _FNV_PRIME = np.uint32(2166136261), np.uint32(16777619)


@compiled
def _continues(byte: np.uint8) -> bool:
    """Return whether a byte of UTF-8 is not the first of its character."""
    return bool((byte & 0xC0) == 0x80)


@compiled
def hash_ngrams(text: Bytes, ends: Indices, shortest: int, longest: int, buckets: int, count: int) -> Ids:
    """Return the buckets of the n-grams of all words, `count` of them, in fastText's order.

    `text` holds the words in UTF-8 one after another, each between `<` and `>`; word i is
    `text[ends[i] : ends[i + 1]]`. The n-grams have `shortest` to `longest` characters.

    A bucket is the 32-bit FNV-1a hash of the n-gram's bytes modulo `buckets`. Bytes are sign-extended before they are
    mixed in, as in fastText, whose `char` was signed. N-grams start and end between characters; neither `<` nor `>`
    alone is one.
    """
    columns = np.empty(count, dtype=np.int32)
    at = 0
    for word in range(len(ends) - 1):
        first, end = ends[word], ends[word + 1]
        for begin in range(first, end):
            if _continues(text[begin]):
                continue
            value = _FNV_BASIS
            place = begin
            for length in range(1, longest + 1):
                if place >= end:
                    break
                while True:
                    value = np.uint32((value ^ np.uint32(np.int8(text[place]))) * _FNV_PRIME)
                    place += 1
                    if place >= end or not _continues(text[place]):
                        break
                if length >= shortest and not (length == 1 and (begin == first or place == end)):
                    columns[at] = np.int32(value % np.uint32(buckets))
                    at += 1
    return columns


@compiled
def renumber(columns: Ids, buckets: int) -> Ids:
    """Number the buckets in `columns` from 0 in order of their first occurrence, in place; return them in that order.

    Words are in alphabetical order, so similar n-grams get rows that are close together.
    """
    places = np.full(buckets, -1, dtype=np.int32)
    count = 0
    for at in range(len(columns)):
        bucket = columns[at]
        if places[bucket] < 0:
            places[bucket] = count
            count += 1
        columns[at] = places[bucket]
    found = np.empty(count, dtype=np.int32)
    for bucket in range(buckets):
        if places[bucket] >= 0:
            found[places[bucket]] = bucket
    return found


@compiled
def transpose(starts: Indices, columns: Ids, count: int) -> tuple[Indices, Ids]:
    """Return the transpose of a sparse matrix with `count` columns; entries of a row ascend."""
    turned = np.zeros(count + 1, dtype=np.int64)
    for at in range(len(columns)):
        turned[columns[at] + 1] += 1
    for row in range(count):
        turned[row + 1] += turned[row]
    rows = np.empty(len(columns), dtype=np.int32)
    into = turned[:-1].copy()
    for row in range(len(starts) - 1):
        for at in range(starts[row], starts[row + 1]):
            column = columns[at]
            rows[into[column]] = row
            into[column] += 1
    return turned, rows


def aligned_zeros(rows: int) -> Rows:
    """Return zeros of shape (rows, WIDTH) whose rows are whole cache lines."""
    buffer = np.zeros((rows + 1) * WIDTH, dtype=np.float32)
    skipped = -buffer.ctypes.data % _LINE_BYTES // buffer.itemsize
    return buffer[skipped : skipped + rows * WIDTH].reshape(rows, WIDTH)


@compiled_bare
def sum_rows(starts: Indices, columns: Ids, table: Rows, scales: Rows, zeros: Rows, out: Rows) -> None:
    """Set row i of `out` to `scales[i]` times the sum of the rows of `table` that row i of the sparse matrix names."""
    nothing = load(zeros, 0, WIDTH)
    for row in range(len(starts) - 1):
        total = nothing
        for at in range(starts[row], starts[row + 1]):
            total = total + load(table, np.int64(columns[at]) * WIDTH, WIDTH)
        store(out, row * WIDTH, total * scales[row])


@compiled
def inverse_diagonal(turned: Indices, rows: Ids, squares: Rows, ridge: float) -> Rows:
    """Return one over the diagonal of G' A G + ridge I, float32 (n-grams,).

    `squares` (words,) is a_i s_i^2; the others are as in `subword_solver.Solver`. An n-gram that occurs twice in a word
    counts as two n-grams, which is accurate enough for a preconditioner.
    """
    inverse = np.empty(len(turned) - 1, dtype=np.float32)
    for ngram in range(len(inverse)):
        total = ridge
        for at in range(turned[ngram], turned[ngram + 1]):
            total += squares[rows[at]]
        inverse[ngram] = 1.0 / total
    return inverse


@compiled_bare
def apply(
    turned: Indices,
    rows: Ids,
    through: Rows,
    ridge: Any,
    direction: Rows,
    zeros: Rows,
    image: Rows,
    products: Rows,
) -> None:
    """Set `image` to G' `through` + `ridge` `direction`, and `products` to the products of the two, block by block."""
    for block in range(len(products)):
        total_product = load(zeros, 0, WIDTH)
        for row in range(block * BLOCK_ROWS, min((block + 1) * BLOCK_ROWS, len(turned) - 1)):
            along = load(direction, row * WIDTH, WIDTH)
            total = along * ridge
            for at in range(turned[row], turned[row + 1]):
                total = total + load(through, np.int64(rows[at]) * WIDTH, WIDTH)
            store(image, row * WIDTH, total)
            total_product = total_product + along * total
        store(products, block * WIDTH, total_product)


@compiled_bare
def move(
    alpha: Rows,
    inverse: Rows,
    direction: Rows,
    image: Rows,
    zeros: Rows,
    solution: Rows,
    residual: Rows,
    products: Rows,
) -> None:
    """Move `solution` by `alpha` times `direction`, and `residual` with it.

    Set `products` to the products of the residual and the preconditioned residual, block by block.
    """
    length = load(alpha, 0, WIDTH)
    for block in range(len(products)):
        total_product = load(zeros, 0, WIDTH)
        for row in range(block * BLOCK_ROWS, min((block + 1) * BLOCK_ROWS, len(inverse))):
            at = row * WIDTH
            store(solution, at, load(solution, at, WIDTH) + length * load(direction, at, WIDTH))
            value = load(residual, at, WIDTH) - length * load(image, at, WIDTH)
            store(residual, at, value)
            total_product = total_product + value * value * inverse[row]
        store(products, block * WIDTH, total_product)


@compiled_bare
def turn(beta: Rows, inverse: Rows, residual: Rows, direction: Rows) -> None:
    """Set `direction` to the preconditioned residual plus `beta` times itself."""
    kept = load(beta, 0, WIDTH)
    for row in range(len(inverse)):
        at = row * WIDTH
        store(direction, at, load(residual, at, WIDTH) * inverse[row] + load(direction, at, WIDTH) * kept)
