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

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from ..array_types import Bytes, Floats, Ids, Indices, Rows
from ..errors import UsageError, require

Halves = npt.NDArray[np.float16]

MAX_LENGTH, MAX_BUCKETS = 64, 1 << 26
RIDGE, STEPS = 0.02, 4
"""Strength of the ridge, and steps of conjugate gradients. Few steps are part of the regularisation: they fit what many
words share, stop before the noise of single words, and scored higher than the exact solution (docs/objectives.md)."""
DIMS_AT_ONCE = 64
"""Dimensions of n-grams that are collected before they are stored; a multiple of 16."""
_WORDS_AT_ONCE = 1024


@dataclass(frozen=True)
class Ngrams:
    """Which n-grams a word has: `shortest` to `longest` characters of `<word>`, hashed into `buckets` buckets."""

    shortest: int = 3
    longest: int = 6
    buckets: int = 2_000_000

    def __post_init__(self) -> None:
        """Raise UsageError for lengths or a number of buckets that are out of range."""
        problems = []
        if not 1 <= self.shortest <= self.longest <= MAX_LENGTH:
            problems.append(f"n-grams of {self.shortest} to {self.longest} characters: use 1 to {MAX_LENGTH}")
        if not 1 <= self.buckets <= MAX_BUCKETS:
            problems.append(f"{self.buckets} buckets: use 1 to {MAX_BUCKETS}")
        require(problems)

    def hashed(self, words: Sequence[bytes]) -> tuple[Indices, Ids]:
        """Return (starts, buckets): word i, given in UTF-8, has the n-grams `buckets[starts[i] : starts[i + 1]]`.

        The n-grams are in fastText's order and include repetitions.
        """
        from . import subword_kernels as kernels

        ends = np.zeros(len(words) + 1, dtype=np.int64)
        np.cumsum([len(word) + 2 for word in words], out=ends[1:])
        text = np.frombuffer(b"".join(b"<%b>" % word for word in words), dtype=np.uint8)
        starts = np.zeros(len(ends), dtype=np.int64)
        np.cumsum(self._count(text, ends), out=starts[1:])
        return starts, kernels.hash_ngrams(text, ends, self.shortest, self.longest, self.buckets, starts[-1])

    def _count(self, text: Bytes, ends: Indices) -> Indices:
        """Return the number of n-grams of each word `text[ends[i] : ends[i + 1]]`; neither `<` nor `>` alone is one."""
        characters = np.add.reduceat((text & 0xC0) != 0x80, ends[:-1], dtype=np.int64)  # of UTF-8: their first bytes
        counts = np.full(len(characters), -2 * (self.shortest == 1))
        for length in range(self.shortest, self.longest + 1):
            counts += np.maximum(characters - length + 1, 0)
        return counts


@dataclass(frozen=True, eq=False)
class Subwords:
    """Vectors of n-grams: that of bucket `buckets[i]`, int32 ascending, is `scale` times `rows[places[i]]`.

    Missing buckets have zero vectors. `rows`, float16 or float32 (distinct, dim), stores one vector for all n-grams
    that occur in the same words. `factor` is the weight of the composition in the vectors of known words, and
    `lowercase` says whether known words have no capital letters.
    """

    ngrams: Ngrams
    buckets: Ids
    places: Ids
    rows: Halves | Rows
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

        Words are given in UTF-8. Allocates one row for each n-gram of each word.
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


class NgramStore:
    """Stores the vectors of n-grams, which are computed a few dimensions at a time; this one in an array."""

    def allocate(self, rows: int, dim: int) -> None:
        """Make room for float16 (rows, dim)."""
        self._rows = np.zeros((rows, dim), np.float16)

    def put(self, columns: slice, values: Halves) -> None:
        """Set some columns, of all rows."""
        self._rows[:, columns] = values

    def rows(self) -> Halves:
        """Return all rows, once every column is set."""
        return self._rows


def fit(
    words: Sequence[str],
    vectors: Rows,
    factor: float,
    ngrams: Ngrams | None = None,
    threads: int | None = None,
    cancelled: Callable[[], bool] = lambda: False,
    kept: NgramStore | None = None,
) -> Subwords:
    """Fit the n-grams of `words` to `vectors`, and mix each word's composition into its vector, in place.

    `vectors`, float32 (words, dim): a vector u of length 1 with the composition s becomes (u + `factor` s) /
    (1 + `factor`); a vector of another length is scaled to 1 and back. Zero and non-finite vectors are left out. The
    vector of an unseen word is its composition times the mean length. `threads`, one for each core unless given,
    changes no byte. Once `cancelled` returns True, the rest is skipped and the result is worthless. The vectors of
    n-grams are collected in `kept`, by default in memory. Further memory: about 8 bytes for each n-gram of each word,
    300 for each distinct n-gram, 128 for each row of the result and 64 for each word.
    """
    from . import subword_kernels as kernels
    from .subword_solver import Solver, threads_for

    ngrams, kept = ngrams or Ngrams(), kept or NgramStore()
    if not 0 <= factor < np.inf:
        raise UsageError(f"n-grams cannot have the weight {factor:g}: use a number of at least 0")
    if vectors.ndim != 2 or len(vectors) != len(words):
        raise UsageError(f"vectors of shape {vectors.shape} do not fit {len(words)} words")
    dim = vectors.shape[1]
    starts, columns = ngrams.hashed([_encoded(word) for word in words])
    buckets = kernels.renumber(columns, ngrams.buckets)
    turned, entries = kernels.transpose(starts, columns, len(buckets))
    firsts, places = _distinct(turned, entries, len(words))
    kept.allocate(len(firsts), dim)
    counts = np.diff(starts)
    units = _Units(vectors, counts > 0)
    if units.used.any():
        mean = counts[units.used].mean()
        scales = np.where(units.used, 1.0 / np.maximum(counts, 1), 0.0).astype(np.float32)
        centre = units.mean()
        with threads_for(threads) as (count, each):
            solver = Solver(starts, columns, turned, entries, scales, mean, RIDGE, count, each)
            for begin in range(0, dim, DIMS_AT_ONCE):
                strip = np.empty((len(firsts), min(DIMS_AT_ONCE, dim - begin)), np.float16)
                for start in range(begin, begin + strip.shape[1], kernels.WIDTH):
                    if cancelled():
                        break
                    piece = slice(start, min(start + kernels.WIDTH, dim))
                    around = centre[piece]
                    each(partial(units.aim, piece, solver.targets, around, mean), _cut(len(words)))
                    solution = solver.solve(STEPS)
                    each(partial(units.mix, piece, solver.targets, around, factor), _cut(len(words)))
                    found = strip[:, start - begin : piece.stop - begin]
                    each(partial(_round, solution, firsts, around, found), _cut(len(firsts)))
                kept.put(slice(begin, begin + strip.shape[1]), strip)
    ascending = np.argsort(buckets)
    scale = float(units.lengths[units.used].mean()) if units.used.any() else 1.0
    lowercase = all(word == word.lower() for word in words)
    return Subwords(ngrams, buckets[ascending], places[ascending], kept.rows(), factor, scale, lowercase)


class _Units:
    """Trained vectors scaled to length 1, in double precision; `used` marks those that are finite and not zero."""

    def __init__(self, vectors: Rows, used: npt.NDArray[np.bool_]) -> None:
        self._vectors, self.lengths = vectors, _lengths(vectors)
        self.used = used & (self.lengths > 0) & np.isfinite(self.lengths)

    def mean(self) -> Floats:
        """Return the mean of the used vectors, added one after the other."""
        total = np.zeros((1, self._vectors.shape[1]))
        for first, last in pairwise(_cut(len(self._vectors), _WORDS_AT_ONCE)):
            total[0] = np.concatenate([total, self._of(slice(first, last), slice(None))]).sum(axis=0)
        mean: Floats = total[0] / self.used.sum()
        return mean

    def aim(self, dims: slice, targets: Rows, centre: Floats, mean: float, part: slice) -> None:
        """Set `targets` of the words in `part` to their vectors without the centre, divided by `mean`."""
        targets[part] = 0.0
        targets[part, : len(centre)][self.used[part]] = (self._of(part, dims) - centre) / mean

    def mix(self, dims: slice, composed: Rows, centre: Floats, factor: float, part: slice) -> None:
        """Mix compositions, given without the centre, into the vectors of the words in `part`."""
        used = self.used[part]
        mixed = self._of(part, dims) + factor * (composed[part, : len(centre)][used] + centre)
        self._vectors[part, dims][used] = mixed * (self.lengths[part][used, None] / (1.0 + factor))

    def _of(self, part: slice, dims: slice) -> Floats:
        used = self.used[part]
        units: Floats = self._vectors[part, dims][used] / self.lengths[part][used, None]
        return units


def _round(solution: Rows, firsts: Indices, centre: Floats, into: Halves, part: slice) -> None:
    """Set the rows `part` of `into` to those of the n-grams `firsts`, in half precision."""
    into[part] = solution[firsts[part], : len(centre)] + centre


def _cut(count: int, most: int = 8 * _WORDS_AT_ONCE) -> list[int]:
    """Return the bounds of `count` rows cut into ranges of at most `most`."""
    return [*range(0, count, most), count]


def _encoded(word: str) -> bytes:
    return word.encode("utf-8", "surrogatepass")


def _distinct(turned: Indices, entries: Ids, words: int) -> tuple[Indices, Ids]:
    """Group n-grams that occur in the same words; return the first n-gram of each group, and the group of each n-gram.

    The fit gives the n-grams of a group the same vector. A group is recognised by the sum of random 64-bit numbers
    drawn for its words; the numbering of the groups does not depend on them.
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
