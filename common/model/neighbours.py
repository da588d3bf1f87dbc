"""Search for the nearest words: cosine similarity, top k and analogies over unit vectors. No I/O.

`glovewire neighbours`, `glovewire evaluate` and the dashboard use this search. Words with equal cosines are listed in
row order, so that results are reproducible.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..array_types import Floats, Rows

Neighbours = list[tuple[str, float]]
"""(word, cosine) pairs, largest cosine first."""


def unit_rows(vectors: Floats, *, centre: bool = False) -> Rows:
    """Return the rows of `vectors`, shape (words, dim), scaled to length 1 as float32; a zero row stays zero.

    With `centre`, the mean row is subtracted first.
    """
    rows = np.array(vectors, dtype=np.float32)
    if centre:
        rows -= rows.mean(axis=0)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    np.divide(rows, lengths, out=rows, where=lengths > 0)
    return rows


@dataclass(frozen=True)
class UnitVectors:
    """Words and their unit vectors, made by `unit_rows`: `rows` has shape (words, dim), row i for `words[i]`."""

    words: Sequence[str]
    rows: Rows

    @cached_property
    def index(self) -> dict[str, int]:
        """Return the row number of each word."""
        return {word: row for row, word in enumerate(self.words)}

    def find(self, word: str) -> int | None:
        """Return the row of `word` as written, else of its lower-case form; None if neither is known."""
        row = self.index.get(word)
        return self.index.get(word.lower()) if row is None else row

    def nearest(self, row: int, top: int) -> Neighbours:
        """Return the `top` words with the largest cosine to the word in `row`, without that word."""
        return self._best(self.rows @ self.rows[row], [row], top)

    def analogy(self, question: Sequence[int], top: int) -> Neighbours:
        """Return the `top` words for "a is to b as c is to what?", where `question` is the rows (a, b, c).

        Ranks by cosine to b - a + c and excludes a, b and c (3CosAdd, Mikolov et al., 2013).
        """
        a, b, c = question
        target = unit_rows((self.rows[b] - self.rows[a] + self.rows[c])[None])[0]
        return self._best(self.rows @ target, [a, b, c], top)

    def _best(self, cosines: Rows, excluded: list[int], top: int) -> Neighbours:
        cosines[excluded] = -np.inf
        count = min(top, len(self.words) - len(set(excluded)))
        if count <= 0:
            return []
        # A partition keeps any of the words that tie at the cut: take all of them, then sort.
        candidates = np.flatnonzero(cosines >= np.partition(cosines, -count)[-count])
        order = candidates[np.argsort(-cosines[candidates], kind="stable")][:count]
        return [(self.words[row], float(cosines[row])) for row in order]
