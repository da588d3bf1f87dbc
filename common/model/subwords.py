"""Character n-grams of words: fit their vectors to trained word vectors, and compose vectors from them. No I/O.

A word is the bag of its n-grams, hashed into buckets as fastText does. The mean of their vectors, its composition,
approximates the word's own vector. Mixed into the vector of a known word, the composition brings in what words of
similar form have in common; for an unseen word it is the vector.

Bojanowski, Grave, Joulin and Mikolov (2017, doi:10.1162/tacl_a_00051) train n-grams together with words. Zhao, Mudgal
and Liang (2018, arXiv:1809.04259) fit them to given vectors. So does this module, by weighted ridge regression:

    minimise  sum over words w of (n_w / n) |u_w - mean of r_g over the n-grams g of w|^2
              + ridge * sum over n-grams g of |r_g - m|^2

where u_w is the word's vector at length 1, m the mean of these, n_w the number of the word's n-grams and n the mean of
n_w. Without the weight n_w / n, long words would fit worst. Conjugate gradients on the normal equations, 16 dimensions
at a time, are stopped after a few steps. No result depends on the number of threads.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..array_types import Floats, Indices, Rows
from ..errors import UsageError, require

MAX_LENGTH, MAX_BUCKETS = 64, 1 << 26
RIDGE, STEPS = 0.02, 4
"""Strength of the ridge, and steps of conjugate gradients. Few steps are part of the regularisation: they fit what many
words share, stop before the noise of single words, and scored higher than the exact solution (docs/objectives.md)."""
MAX_THREADS = 16
"""Each needs four tables of (n-grams, 16) float32 and one of (words, 16)."""
_WORDS_AT_ONCE = 1024


@dataclass(frozen=True)
class Ngrams:
    """Which n-grams a word has: `shortest` to `longest` characters of `<word>`, hashed into `buckets` buckets."""

    shortest: int = 3
    longest: int = 6
    buckets: int = 2_000_000

    def __post_init__(self) -> None:
        """Raise UsageError for lengths or a number of buckets that cannot be."""
        problems = []
        if not 1 <= self.shortest <= self.longest <= MAX_LENGTH:
            problems.append(f"n-grams of {self.shortest} to {self.longest} characters: use 1 to {MAX_LENGTH}")
        if not 1 <= self.buckets <= MAX_BUCKETS:
            problems.append(f"{self.buckets} buckets: use 1 to {MAX_BUCKETS}")
        require(problems)

    def hashed(self, words: Sequence[bytes]) -> tuple[Indices, npt.NDArray[np.int32]]:
        """Return (starts, buckets): word i, given in UTF-8, has the n-grams `buckets[starts[i] : starts[i + 1]]`.

        They are in fastText's order, repeated ones included.
        """
        from . import subword_kernels as kernels

        ends = np.zeros(len(words) + 1, dtype=np.int64)
        np.cumsum([len(word) + 2 for word in words], out=ends[1:])
        text = np.frombuffer(b"".join(b"<%b>" % word for word in words), dtype=np.uint8)
        starts = kernels.count_ngrams(text, ends, self.shortest, self.longest)
        return starts, kernels.hash_ngrams(text, ends, self.shortest, self.longest, self.buckets, starts)


@dataclass(frozen=True, eq=False)
class Subwords:
    """Vectors of n-grams: that of bucket `buckets[i]`, int32 ascending, is `scale` times `rows[places[i]]`.

    Buckets that are missing have the vector zero. `rows`, float16 or float32 (distinct, dim), holds the vector of
    n-grams that the same words have once. `factor` is the weight of the composition in the vectors of known words, and
    `lowercase` says whether those have no capital letters.
    """

    ngrams: Ngrams
    buckets: npt.NDArray[np.int32]
    places: npt.NDArray[np.int32]
    rows: npt.NDArray[np.float16] | Rows
    factor: float = 0.0
    scale: float = 1.0
    lowercase: bool = False

    @property
    def dim(self) -> int:
        """Return the number of dimensions of a vector."""
        return int(self.rows.shape[1])

    def compose(self, word: str) -> Rows | None:
        """Return the mean of the word's n-gram vectors, shape (dim,); None if none of its n-grams is known.

        The word is lower-cased first if the known words are.
        """
        counts, sums = self.sums([_encoded(word.lower() if self.lowercase else word)])
        return sums[0] / np.float32(counts[0]) if sums.any() else None

    def sums(self, words: Sequence[bytes]) -> tuple[Indices, Rows]:
        """Return the number of n-grams of each word, shape (words,), and the sum of their vectors, (words, dim).

        Words are given in UTF-8. Takes memory for a row for each n-gram of each word.
        """
        starts, buckets = self.ngrams.hashed(words)
        sums = np.zeros((len(words), self.dim), dtype=np.float32)
        at = np.searchsorted(self.buckets, buckets)
        found = np.flatnonzero(np.append(self.buckets, -1)[at] == buckets)
        if len(found):
            owners = np.repeat(np.arange(len(words)), np.diff(starts))[found]
            firsts = np.flatnonzero(np.diff(owners, prepend=-1))
            rows = self.rows[self.places[at[found]]].astype(np.float32)
            sums[owners[firsts]] = np.add.reduceat(rows, firsts, axis=0)
            sums *= np.float32(self.scale)
        return np.diff(starts), sums


def fit(
    words: Sequence[str],
    vectors: Rows,
    factor: float,
    ngrams: Ngrams | None = None,
    threads: int | None = None,
    cancelled: Callable[[], bool] = lambda: False,
) -> Subwords:
    """Fit the n-grams of `words` to `vectors`, and mix each word's composition into its vector, in place.

    `vectors`, float32 (words, dim): a vector u of length 1 with the composition s becomes (u + `factor` s) /
    (1 + `factor`), and any other length is multiplied in again. Vectors that are zero or not finite are left out. The
    vector of an unseen word is its composition times the mean length. `threads`, one for each core unless given,
    changes no byte. Once `cancelled` returns True, the rest is skipped and the result is worthless. Takes about 16
    bytes for each n-gram of each word, 2 for each number of the result and, for each thread, 256 for each
    different n-gram.
    """
    from . import subword_kernels as kernels

    ngrams = ngrams or Ngrams()
    if not 0 <= factor < np.inf:
        raise UsageError(f"n-grams cannot have the weight {factor:g}: use a number of at least 0")
    if vectors.ndim != 2 or len(vectors) != len(words):
        raise UsageError(f"vectors of shape {vectors.shape} do not fit {len(words)} words")
    lengths = _lengths(vectors)
    starts, columns = ngrams.hashed([_encoded(word) for word in words])
    buckets = kernels.renumber(columns, ngrams.buckets)
    turned, entries = kernels.transpose(starts, columns, len(buckets))
    counts = np.diff(starts)
    used = (lengths > 0) & np.isfinite(lengths) & (counts > 0)
    kept, places = _distinct(turned, entries, len(words))
    rows = np.zeros((len(kept), vectors.shape[1]), dtype=np.float16)
    ascending = np.argsort(buckets)
    if used.any():
        mean = counts[used].mean()
        scales = np.where(used, 1.0 / np.maximum(counts, 1), 0.0).astype(np.float32)
        squares = scales / np.float32(mean)
        inverse_diagonal = kernels.inverse_diagonal(turned, entries, squares, RIDGE)

    def solve(first: int) -> None:
        if cancelled():
            return
        piece = slice(first, first + kernels.WIDTH)
        targets, *tables = map(kernels.aligned_zeros, (len(words), *[len(buckets)] * 4))
        width = rows[:, piece].shape[1]
        unit = vectors[used, piece] / lengths[used, None]
        centre = unit.mean(axis=0)
        targets[used, :width] = (unit - centre) / mean
        kernels.solve(
            starts,
            columns,
            turned,
            entries,
            scales,
            squares,
            inverse_diagonal,
            RIDGE,
            STEPS,
            targets,
            *tables,
        )
        mixed = unit + factor * (targets[used, :width] + centre)
        vectors[used, piece] = mixed * (lengths[used, None] / (1.0 + factor))
        rows[:, piece] = tables[0][kept, :width] + centre

    if used.any():
        with ThreadPoolExecutor(min(threads or len(os.sched_getaffinity(0)), MAX_THREADS)) as pool:
            list(pool.map(solve, range(0, vectors.shape[1], kernels.WIDTH)))
    scale = float(lengths[used].mean()) if used.any() else 1.0
    lowercase = all(word == word.lower() for word in words)
    return Subwords(ngrams, buckets[ascending], places[ascending], rows, factor, scale, lowercase)


def _encoded(word: str) -> bytes:
    return word.encode("utf-8", "surrogatepass")


def _distinct(turned: Indices, entries: npt.NDArray[np.int32], words: int) -> tuple[Indices, npt.NDArray[np.int32]]:
    """Return the first n-gram of each set that the same words have, and the set of each n-gram.

    The fit gives n-grams that occur in the same words the same vector. A set is recognised by the sum of random 64-bit
    numbers drawn for its words; its number does not depend on them.
    """
    if not len(entries):
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int32)
    drawn = np.random.default_rng(0).integers(1 << 63, size=words, dtype=np.uint64)
    signatures = np.add.reduceat(drawn[entries], turned[:-1])
    _, firsts, groups = np.unique(signatures, return_index=True, return_inverse=True)
    order = np.argsort(firsts)
    numbers = np.empty(len(order), dtype=np.int32)
    numbers[order] = np.arange(len(order))
    return firsts[order], numbers[groups]


def _lengths(vectors: Floats) -> npt.NDArray[np.float64]:
    """Return the length of each row, shape (rows,)."""
    lengths = np.empty(len(vectors))
    for first in range(0, len(vectors), _WORDS_AT_ONCE):
        piece = vectors[first : first + _WORDS_AT_ONCE].astype(np.float64)
        with np.errstate(over="ignore"):
            lengths[first : first + _WORDS_AT_ONCE] = np.sqrt(np.einsum("ij,ij->i", piece, piece))
    return lengths
