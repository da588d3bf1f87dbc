"""Solve the normal equations of `subwords` for a few dimensions at a time by conjugate gradients, in threads. No I/O.

All threads share one set of tables and own ranges of their rows, so that any number of them takes the same memory. Rows
are summed in blocks whose sums are added in order: no result depends on the number of threads.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from ..array_types import Ids, Indices, Rows
from . import subword_kernels as kernels

MAX_THREADS = 16
_TASKS = 4
"""Tasks per thread: several, because rows differ in cost."""
_TASK_COST = 1 << 16
"""Minimum number of row look-ups in a task, so that starting it costs little in comparison."""

Sums = npt.NDArray[np.float64]
Each = Callable[[Callable[[slice], None], list[int]], None]
"""Calls a function for each slice between two bounds, in all threads."""


@contextmanager
def threads_for(threads: int | None) -> Iterator[tuple[int, Each]]:
    """Yield the number of threads, one for each core unless given, and a function that runs work in all of them."""
    threads = min(threads or len(os.sched_getaffinity(0)), MAX_THREADS)
    with ThreadPoolExecutor(threads) as pool:

        def each(work: Callable[[slice], None], bounds: list[int]) -> None:
            for done in [pool.submit(work, slice(*span)) for span in pairwise(bounds)]:
                done.result()

        yield threads, each


class Solver:
    """Steps of preconditioned conjugate gradients on (G' A G + ridge I) Z = G' A T, for WIDTH dimensions at a time.

    G is a sparse matrix of n-grams (`starts`, `columns`; its transpose is `turned`, `entries`) with row i multiplied by
    s_i. A is diagonal, with a weight a_i for each row: `scales` (words,) is s_i, and 1 / (`mean` s_i) is a_i.
    `targets` (words, WIDTH) is a_i s_i T_i and becomes G Z. Allocates four tables of (n-grams, WIDTH), all float32.
    """

    def __init__(
        self,
        starts: Indices,
        columns: Ids,
        turned: Indices,
        entries: Ids,
        scales: Rows,
        mean: float,
        ridge: float,
        threads: int,
        each: Each,
    ) -> None:
        self._starts, self._columns, self._turned, self._entries = starts, columns, turned, entries
        self._scales, self._ridge, self._each = scales, np.float32(ridge), each
        self._squares = scales / np.float32(mean)
        self._inverse = kernels.inverse_diagonal(turned, entries, self._squares, ridge)
        words, ngrams = len(starts) - 1, len(turned) - 1
        self._words = _bounds(starts, threads, 1)
        self._ngrams = _bounds(turned, threads, kernels.BLOCK_ROWS)
        self._ones, self._zeros = np.ones(ngrams, np.float32), np.zeros(kernels.WIDTH, np.float32)
        self.targets = kernels.aligned_zeros(words)
        self._solution, self._residual, self._direction, self._image = (kernels.aligned_zeros(ngrams) for _ in range(4))
        self._products = kernels.aligned_zeros(-(-ngrams // kernels.BLOCK_ROWS))

    def solve(self, steps: int) -> Rows:
        """Make `steps` steps from zero, change `targets`, and return Z, which the next call overwrites."""
        self._each(self._clear, self._ngrams)
        self._sum(self._turned, self._entries, self.targets, self._ones, self._residual, self._ngrams)
        descent = self._move(self._zeros)
        self._turn(self._zeros)
        for _ in range(steps):
            self._sum(self._starts, self._columns, self._direction, self._squares, self.targets, self._words)
            curve = self._apply()
            fresh = self._move(_ratio(descent, curve))
            self._turn(_ratio(fresh, descent))
            descent = fresh
        self._sum(self._starts, self._columns, self._solution, self._scales, self.targets, self._words)
        return self._solution

    def _clear(self, part: slice) -> None:
        for table in (self._solution, self._direction, self._image):
            table[part] = 0.0

    def _sum(self, starts: Indices, columns: Ids, table: Rows, scales: Rows, out: Rows, bounds: list[int]) -> None:
        def work(part: slice) -> None:
            kernels.sum_rows(starts[part.start : part.stop + 1], columns, table, scales[part], self._zeros, out[part])

        self._each(work, bounds)

    def _apply(self) -> Sums:
        """Set the image of the direction; return the dot product of the two."""

        def work(part: slice) -> None:
            kernels.apply(
                self._turned[part.start : part.stop + 1], self._entries, self.targets, self._ridge,
                self._direction[part], self._zeros, self._image[part], self._blocks(part),
            )  # fmt: skip

        self._each(work, self._ngrams)
        return self._total()

    def _move(self, alpha: Rows) -> Sums:
        """Move the solution along the direction; return the dot product of residual and preconditioned residual."""

        def work(part: slice) -> None:
            kernels.move(
                alpha, self._inverse[part], self._direction[part], self._image[part], self._zeros,
                self._solution[part], self._residual[part], self._blocks(part),
            )  # fmt: skip

        self._each(work, self._ngrams)
        return self._total()

    def _turn(self, beta: Rows) -> None:
        def work(part: slice) -> None:
            kernels.turn(beta, self._inverse[part], self._residual[part], self._direction[part])

        self._each(work, self._ngrams)

    def _blocks(self, part: slice) -> Rows:
        return self._products[part.start // kernels.BLOCK_ROWS : -(-part.stop // kernels.BLOCK_ROWS)]

    def _total(self) -> Sums:
        total: Sums = self._products.astype(np.float64).sum(axis=0)
        return total


def _bounds(starts: Indices, threads: int, multiple: int) -> list[int]:
    """Cut the rows of a sparse matrix into tasks that cost about the same, at multiples of `multiple` rows."""
    rows = len(starts) - 1
    costs = starts + np.arange(rows + 1)
    tasks = int(min(threads * _TASKS, max(costs[-1] // _TASK_COST, 1)))
    cuts = np.searchsorted(costs, costs[-1] * np.arange(1, tasks) // tasks) // multiple * multiple
    return sorted({0, *cuts.tolist(), rows})


def _ratio(above: Sums, below: Sums) -> Rows:
    """Return above / below as float32, 0 where `below` is not positive."""
    ratio: Sums = np.divide(above, below, out=np.zeros_like(above), where=below > 0.0)
    return ratio.astype(np.float32)
