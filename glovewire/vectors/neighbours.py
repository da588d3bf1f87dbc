"""Which words are near: cosine similarity and analogies over an array of vectors.

Pure functions on arrays: no files, no printing. Ties go to the earlier word, so that results never depend on luck.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from glovewire.common.cli.command import suggest
from glovewire.common.errors import UnknownWord

Near = list[tuple[str, float]]


def unit_rows(vectors: npt.NDArray[np.floating[Any]], *, centre: bool = False) -> npt.NDArray[np.float32]:
    """The rows of `vectors`, shape (words, dim), each of length 1, as float32; a zero row stays zero.

    With `centre`, the mean row is subtracted first.
    """
    rows = np.array(vectors, dtype=np.float32)
    if centre:
        rows -= rows.mean(axis=0)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    np.divide(rows, lengths, out=rows, where=lengths > 0)
    return rows


def known_row(word: str, index: Mapping[str, int]) -> int | None:
    """The row of `word` as it is written, else of its lower-case form; None if neither is known."""
    row = index.get(word)
    return index.get(word.lower()) if row is None else row


def row_of(word: str, index: Mapping[str, int]) -> int:
    """The row of `word`, see `known_row`; UnknownWord with a suggestion if it is not known."""
    if (row := known_row(word, index)) is not None:
        return row
    like = [known for known in index if abs(len(known) - len(word)) <= 2]
    raise UnknownWord(f"{word!r} is not among the {len(index):,} words of the vocabulary{suggest(word.lower(), like)}")


def nearest(word: str, words: Sequence[str], index: Mapping[str, int], unit: npt.NDArray[np.float32], top: int) -> Near:
    """The `top` words with the largest cosine to `word`, best first, without `word` itself.

    `unit` comes from `unit_rows`, row i for `words[i]`. Raises UnknownWord.
    """
    row = row_of(word, index)
    return _best(unit @ unit[row], [row], words, top)


def analogy(
    question: tuple[str, str, str],
    words: Sequence[str],
    index: Mapping[str, int],
    unit: npt.NDArray[np.float32],
    top: int,
) -> Near:
    """What stands to c as b stands to a, by 3CosAdd: the largest cosine to b - a + c (Mikolov et al., 2013).

    The three words of the question are excluded. Raises UnknownWord.
    """
    rows = [row_of(word, index) for word in question]
    a, b, c = unit[rows]
    target = unit_rows((b - a + c)[None])[0]
    return _best(unit @ target, rows, words, top)


def _best(cosines: npt.NDArray[np.float32], excluded: list[int], words: Sequence[str], top: int) -> Near:
    cosines[excluded] = -np.inf
    count = max(0, min(top, len(words) - len(set(excluded))))
    if count == 0:
        return []
    # All that tie at the cut are ordered: a partition alone keeps any of them.
    candidates = np.flatnonzero(cosines >= np.partition(cosines, -count)[-count])
    order = candidates[np.argsort(-cosines[candidates], kind="stable")][:count]
    return [(words[row], float(cosines[row])) for row in order]
