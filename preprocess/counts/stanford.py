"""Import counts made by Stanford's GloVe: `cooccurrence.bin` (or its shuffled copy) and `vocab.txt`.

A record of the matrix is two 32-bit word numbers, from 1 in the order of the vocabulary, and a 64-bit weight. Weights
stay 64-bit floats and are rounded to float32 at the very end, so a weight outside the range of float32 is refused.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from glovewire.common.errors import CorpusError
from glovewire.common.storage.artifacts import input_errors

from .cell_keys import CellKeys, Keys
from .spill import Spill
from .vocabulary import Vocabulary

RECORD = np.dtype([("i", "<i4"), ("j", "<i4"), ("x", "<f8")])
_SYMMETRY_TOLERANCE = 1e-9
MAX_RECORDS = 4 << 20


def read_vocabulary(path: Path) -> Vocabulary:
    """Read `vocab.txt`, one word and its count per line; CorpusError if the file is unreadable or malformed."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise CorpusError(f"vocabulary {path} cannot be read: {error}") from error
    words, counts = list[str](), list[int]()
    for n, line in enumerate(lines, 1):
        if line:
            word, _, count = line.rpartition(" ")
            if not word or not re.fullmatch(r"[0-9]{1,18}", count):
                raise CorpusError(f"vocabulary {path}: line {n} is not a word and its count, of at most 18 digits")
            words.append(word)
            counts.append(int(count))
    if not words or len(set(words)) != len(words):
        raise CorpusError(f"vocabulary {path} {'names a word twice' if words else 'is empty'}")
    return Vocabulary.of_ranked(words, np.array(counts, np.int64))


def manifest_facts(vocabulary: Vocabulary, matrix: Path) -> dict[str, Any]:
    """Return the facts for the dataset's manifest; facts that Stanford's files do not contain are None."""
    unknown = dict.fromkeys(("weighting", "window", "tokenizer", "nltk", "lines"))
    return unknown | {
        "requested_vocabulary": len(vocabulary.words),
        "min_count": int(vocabulary.counts.min()),
        "corpus": f"Stanford GloVe counts {matrix.name}",
        "tokens": int(vocabulary.counts.sum()),
    }


class StanfordCounts:
    """Stanford's file of records, read in parts that take at most `part_bytes` of memory."""

    def __init__(self, path: Path, cell_keys: CellKeys, vocabulary: Vocabulary, part_bytes: int) -> None:
        self._path, self._symmetric = path, cell_keys.layout.symmetric
        self._word_keys = cell_keys.word_keys[vocabulary.by_rank]
        self._records = max(1, min(MAX_RECORDS, part_bytes // (8 * RECORD.itemsize)))
        self._upper, self._lower = np.zeros(2), np.zeros(2)

    def spill(self, spill: Spill, kind: str) -> Iterator[int]:
        """Write the cells as sorted lists named KIND-...; yield the bytes read for each. CorpusError if malformed."""
        size = self.nbytes
        for n, start in enumerate(range(0, size // RECORD.itemsize, self._records)):
            records = np.fromfile(self._path, RECORD, self._records, offset=start * RECORD.itemsize)
            keys, weights = self._cells(records)
            order = np.argsort(keys)
            spill.add_cells(f"{kind}-stanford-{n:06d}", keys[order], weights[order])
            yield records.nbytes
        (upper, upper_sum), (lower, lower_sum) = self._upper.tolist(), self._lower.tolist()
        if upper != lower or abs(upper_sum - lower_sum) > _SYMMETRY_TOLERANCE * upper_sum:
            raise CorpusError(f"counts {self._path} are not symmetric: give --left-only")

    @property
    def nbytes(self) -> int:
        """Return the size of the file; CorpusError if it is unreadable or not whole records."""
        with input_errors(f"counts {self._path}", CorpusError), self._path.open("rb") as stream:
            size = stream.seek(0, os.SEEK_END)
        if size == 0 or size % RECORD.itemsize:
            raise CorpusError(f"counts {self._path} have {size} bytes, not a number of {RECORD.itemsize}-byte records")
        return size

    def _cells(self, records: npt.NDArray[np.void]) -> tuple[Keys, npt.NDArray[np.float64]]:
        i, j, weights = records["i"].astype(np.int64), records["j"].astype(np.int64), records["x"]
        words = len(self._word_keys)
        if min(i.min(), j.min()) < 1 or max(i.max(), j.max()) > words:
            raise CorpusError(f"counts {self._path} name a word that the vocabulary of {words} words lacks")
        with np.errstate(over="ignore", under="ignore"):
            stored = weights.astype(np.float32)
        if not (np.isfinite(stored).all() and (stored > 0).all()):
            raise CorpusError(f"counts {self._path} hold a weight that is not a positive float32")
        rows, columns = self._word_keys[i - 1], self._word_keys[j - 1]
        keys = rows[:, 1] | columns[:, 2]
        if not self._symmetric:
            return keys, weights.copy()
        upper, lower = rows[:, 0] < columns[:, 0], rows[:, 0] > columns[:, 0]
        self._upper += (upper.sum(), weights[upper].sum())
        self._lower += (lower.sum(), weights[lower].sum())
        return keys[~upper], weights[~upper]
