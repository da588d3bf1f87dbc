"""Counts made by Stanford's GloVe: `cooccurrence.bin` (or the shuffled one) and `vocab.txt`, as a spill of cells.

A record of the first is two 32-bit word numbers from 1, in the order of the second, and a 64-bit weight. Weights stay
floats of 64 bits; they are rounded to float32 at the very end, so what float32 does not hold is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from glovewire.common.errors import CorpusError

from ..tokens.string_table import Longs
from .cell_keys import Arrangement, Keys
from .dataset_writer import Words
from .spill import Spill

RECORD = np.dtype([("i", "<i4"), ("j", "<i4"), ("x", "<f8")])
_SYMMETRIC_WITHIN = 1e-9
_MOST_RECORDS = 4 << 20


@dataclass(frozen=True)
class StanfordVocabulary:
    """Words and counts, int64 (V,), in the order of the file."""

    words: tuple[str, ...]
    counts: Longs

    @cached_property
    def order(self) -> Longs:
        """The file's places in the order of the sorted words."""
        return np.array(sorted(range(len(self.words)), key=self.words.__getitem__), np.int64)

    @property
    def sorted(self) -> Words:
        """As the dataset has them."""
        return Words(tuple(self.words[n] for n in self.order), self.counts[self.order])

    def facts(self, source: Path) -> dict[str, Any]:
        """What the dataset says of itself; what Stanford's files do not tell is None."""
        unknown = dict.fromkeys(("weighting", "window", "tokenizer", "nltk", "lines"))
        return unknown | {
            "requested_vocabulary": len(self.words),
            "min_count": int(self.counts.min()),
            "corpus": f"Stanford GloVe counts {source.name}",
            "tokens": int(self.counts.sum()),
        }


def read_vocabulary(path: Path) -> StanfordVocabulary:
    """`vocab.txt`: a word and its count a line; CorpusError if it is anything else."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise CorpusError(f"vocabulary {path} cannot be read: {error}") from error
    words, counts = [], []
    for n, line in enumerate(lines, 1):
        if line:
            word, _, count = line.rpartition(" ")
            if not word or not count.isascii() or not count.isdigit():
                raise CorpusError(f"vocabulary {path}: line {n} is not a word and its count")
            words.append(word)
            counts.append(int(count))
    if not words or len(set(words)) != len(words):
        raise CorpusError(f"vocabulary {path} {'names a word twice' if words else 'is empty'}")
    return StanfordVocabulary(tuple(words), np.array(counts, np.int64))


class Counts:
    """A file of records, read a part at a time: `part_bytes` of memory."""

    def __init__(self, path: Path, arrangement: Arrangement, vocabulary: StanfordVocabulary, part_bytes: int) -> None:
        self._path, self._arrangement = path, arrangement
        self._words = len(vocabulary.words)
        place = np.empty(self._words, np.int64)
        place[vocabulary.order] = np.arange(self._words)
        self._parts_of_key = arrangement.words[place]
        self._records = max(1, min(_MOST_RECORDS, part_bytes // (8 * RECORD.itemsize)))
        self._upper, self._lower = np.zeros(2), np.zeros(2)

    def spill(self, spill: Spill, kind: str) -> Iterator[int]:
        """Write the cells as sorted lists named KIND-...; bytes read, as they are done."""
        size = self._size()
        for n, start in enumerate(range(0, size // RECORD.itemsize, self._records)):
            records = np.fromfile(self._path, RECORD, self._records, offset=start * RECORD.itemsize)
            keys, weights = self._cells(records)
            order = np.argsort(keys)
            spill.add_cells(f"{kind}-stanford-{n:06d}", keys[order], weights[order])
            yield records.nbytes
        self._check_symmetry()

    def _size(self) -> int:
        try:
            size = self._path.stat().st_size
        except OSError as error:
            raise CorpusError(f"counts {self._path} cannot be read: {error.strerror}") from error
        if size == 0 or size % RECORD.itemsize:
            raise CorpusError(f"counts {self._path} have {size} bytes, not a number of {RECORD.itemsize}-byte records")
        return size

    def _cells(self, records: npt.NDArray[np.void]) -> tuple[Keys, npt.NDArray[np.float64]]:
        i, j, weights = records["i"].astype(np.int64), records["j"].astype(np.int64), records["x"]
        if min(i.min(), j.min()) < 1 or max(i.max(), j.max()) > self._words:
            raise CorpusError(f"counts {self._path} name a word that the vocabulary of {self._words} words lacks")
        with np.errstate(over="ignore", under="ignore"):
            stored = weights.astype(np.float32)
        if not (np.isfinite(stored).all() and (stored > 0).all()):
            raise CorpusError(f"counts {self._path} hold a weight that is not a positive number that float32 holds")
        rows, columns = self._parts_of_key[i - 1], self._parts_of_key[j - 1]
        keys = rows[:, 1] | columns[:, 2]
        if not self._arrangement.layout.symmetric:
            return keys, weights.copy()
        upper, lower = rows[:, 0] < columns[:, 0], rows[:, 0] > columns[:, 0]
        self._upper += (upper.sum(), weights[upper].sum())
        self._lower += (lower.sum(), weights[lower].sum())
        return keys[~lower], weights[~lower]

    def _check_symmetry(self) -> None:
        (upper, upper_sum), (lower, lower_sum) = self._upper.tolist(), self._lower.tolist()
        if upper != lower or abs(upper_sum - lower_sum) > _SYMMETRIC_WITHIN * upper_sum:
            raise CorpusError(f"counts {self._path} are not symmetric: say --left-only")
