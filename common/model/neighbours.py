"""Search for the nearest words: cosine similarity, top k and analogies over unit vectors. No I/O.

`glovewire neighbours`, `glovewire evaluate` and the dashboard use this search. Words with equal cosines are listed in
row order, so that results are reproducible. An unseen word is searched by the vector composed of its n-grams.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np

from ..array_types import Floats, Rows
from .subwords import Subwords

Neighbours = list[tuple[str, float]]
"""(word, cosine) pairs, largest cosine first."""

RECENT = 64


def unit_rows(vectors: Floats, mean: Rows | None = None) -> Rows:
    """Return the rows of `vectors`, shape (words, dim), scaled to length 1 as float32; a zero row stays zero.

    If given, `mean`, shape (dim,), is subtracted first.
    """
    rows = np.array(vectors, dtype=np.float32)
    if mean is not None:
        rows -= mean
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    np.divide(rows, lengths, out=rows, where=lengths > 0)
    return rows


class Found(NamedTuple):
    """The unit vector of a word, shape (dim,), and its row; None if the vector is composed of the word's n-grams."""

    vector: Rows
    row: int | None


@dataclass(frozen=True)
class UnitVectors:
    """Words and their unit vectors: `rows` has shape (words, dim), row i for `words[i]`.

    `subwords` compose the vectors of other words, from which `mean` is subtracted.
    """

    words: Sequence[str]
    rows: Rows
    subwords: Subwords | None = None
    mean: Rows | None = None
    _recent: dict[tuple[int, int], Neighbours] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def of(
        cls, words: Sequence[str], vectors: Floats, subwords: Subwords | None = None, *, centre: bool = False
    ) -> Self:
        """Return the unit vectors of `vectors`, shape (words, dim); with `centre`, their mean is subtracted first."""
        mean = np.asarray(vectors, dtype=np.float32).mean(axis=0) if centre else None
        return cls(words, unit_rows(vectors, mean), subwords, mean)

    @cached_property
    def index(self) -> dict[str, int]:
        """Return the row number of each word."""
        return {word: row for row, word in enumerate(self.words)}

    def find(self, word: str) -> int | None:
        """Return the row of `word` as written, else of its lower-case form; None if neither is known."""
        return self.index.get(word, self.index.get(word.lower()))

    def look_up(self, word: str) -> Found | None:
        """Return the vector of a known word, or of an unseen one if n-grams are known; None if it has no vector."""
        row = self.find(word)
        if row is not None:
            return Found(self.rows[row], row)
        composed = None if self.subwords is None else self.subwords.compose(word)
        return None if composed is None else Found(unit_rows(composed[None], self.mean)[0], None)

    def nearest(self, found: Found, top: int) -> Neighbours:
        """Return the `top` words with the largest cosine to a word, without that word.

        The last RECENT results of known words are cached, because dashboard pages request theirs twice a second.
        """
        if found.row is None:
            return self._best(found.vector, [found], top)
        best = self._recent.get((found.row, top))
        if best is None:
            if len(self._recent) >= RECENT:
                del self._recent[next(iter(self._recent))]
            best = self._recent[found.row, top] = self._best(found.vector, [found], top)
        return list(best)

    def analogy(self, question: Sequence[Found], top: int) -> Neighbours:
        """Return the `top` words for "a is to b as c is to what?", where `question` is (a, b, c).

        Ranks by cosine to b - a + c and excludes a, b and c (3CosAdd, Mikolov et al., 2013).
        """
        a, b, c = (found.vector for found in question)
        return self._best(unit_rows((b - a + c)[None])[0], question, top)

    def _best(self, target: Rows, without: Sequence[Found], top: int) -> Neighbours:
        cosines = self.rows @ target
        rows = best(cosines, [found.row for found in without if found.row is not None], top)
        return [(self.words[row], float(cosines[row])) for row in rows]


def best(cosines: Rows, without: Sequence[int], top: int) -> list[int]:
    """Return the `top` rows with the largest of `cosines`, shape (rows,), except the rows `without`.

    Equal cosines are in the order of their rows. Overwrites the cosines of `without`.
    """
    cosines[list(without)] = -np.inf
    count = min(top, len(cosines) - len(set(without)))
    if count <= 0:
        return []
    # Partitioning keeps arbitrary rows of those that tie at the cut-off: take all of them, then sort.
    candidates = np.flatnonzero(cosines >= np.partition(cosines, -count)[-count])
    rows: list[int] = candidates[np.argsort(-cosines[candidates], kind="stable")][:count].tolist()
    return rows
