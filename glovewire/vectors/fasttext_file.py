"""Write and read fastText's binary models: words and n-grams whose vectors fastText and gensim compose as we do.

fastText's vector of a known word is the mean of the word's own row and the rows of its n-grams; that of an unseen word
is the mean of its n-grams' rows. To give a word with n n-grams the vector v, its own row is written as (n + 1) v minus
the sum of its n-grams' rows. The word `</s>` has no n-grams in fastText; gensim gives it some.

Layout, little-endian: magic and version; options of training; the vocabulary, each word as its bytes, a zero, a count
and a type; the input matrix, words first, then buckets; the output matrix, which only further training needs. Buckets
without a vector, and the output matrix, are holes in the file and take no space on most disks.
"""

import mmap
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from glovewire.common.array_types import Indices, Rows
from glovewire.common.errors import MalformedFile, OutputError, UsageError
from glovewire.common.model.subwords import Ngrams, Subwords
from glovewire.common.storage.run_folder import Vectors

_MAGIC = 793712314
FASTTEXT_MAGIC = struct.pack("<i", _MAGIC)
"""First bytes of every model."""
_OLDEST, _NEWEST = 11, 12
_HEADER = struct.Struct("<14id")
"""Magic, version, dim, window, epochs, least count, negatives, word n-grams, loss, model, buckets, shortest and longest
n-gram, how often the rate changes, sampling threshold."""
_SIZES = struct.Struct("<3i2q")
"""Entries of the vocabulary, words and labels among them, tokens in the text, entries of a pruned model's index."""
_ENTRY = struct.Struct("<qb")
"""Count and type; type 0 is a word."""
_MATRIX = struct.Struct("<?2q")
"""Whether it is quantised, rows, columns."""
_NEGATIVE_SAMPLING, _SKIP_GRAM, _CLASSIFIER = 2, 2, 3
_NOT_PRUNED = -1
_END_OF_SENTENCE = b"</s>"
_MAX_DIM, _MAX_WORD_BYTES = 1 << 16, 1 << 20
_ROWS_AT_ONCE = 1024


def write_fasttext(stream: BinaryIO, loaded: Vectors) -> None:
    """Write a model in which known words have their own vectors, and other words are composed of their n-grams.

    Where counts are unknown or below 1, 1 is written, because fastText draws negatives by them. Raises UsageError for
    vectors without n-grams, OutputError for a word that the format cannot hold, OSError when the disk refuses.
    """
    words, vectors, counts, subwords = loaded.words, loaded.vectors, loaded.counts, loaded.subwords
    if subwords is None:
        raise UsageError("the format fasttext-bin needs n-grams: fit them with `glovewire subwords`")
    encoded = [word.encode() for word in words]
    for word in encoded:
        if not word or b"\0" in word or len(word) > _MAX_WORD_BYTES:
            raise OutputError(
                f"the format fasttext-bin cannot hold the word {word[:40]!r}: preprocess the text without it"
            )
    counted = np.ones(len(words), dtype=np.int64) if counts is None else np.maximum(counts, 1)
    ngrams, dim = subwords.ngrams, subwords.dim
    stream.write(
        _HEADER.pack(
            _MAGIC, _NEWEST, dim, 5, 1, 1, 5, 1, _NEGATIVE_SAMPLING, _SKIP_GRAM, ngrams.buckets, ngrams.shortest,
            ngrams.longest, 100, 1e-4,
        )
    )  # fmt: skip
    stream.write(_SIZES.pack(len(encoded), len(encoded), 0, int(counted.sum()), _NOT_PRUNED))
    stream.writelines(
        word + b"\0" + _ENTRY.pack(count, 0) for word, count in zip(encoded, counted.tolist(), strict=True)
    )
    stream.write(_MATRIX.pack(False, len(encoded) + ngrams.buckets, dim))
    for first in range(0, len(encoded), _ROWS_AT_ONCE):
        piece = slice(first, first + _ROWS_AT_ONCE)
        sizes, sums = _ngram_sums(encoded[piece], subwords)
        stream.write(((sizes + 1) * vectors[piece].astype(np.float64) - sums).astype("<f4").tobytes())
    buckets = stream.tell()
    for bucket, place in zip(subwords.buckets.tolist(), subwords.places.tolist(), strict=True):
        stream.seek(buckets + bucket * dim * 4)
        stream.write((subwords.rows[place].astype("<f4") * np.float32(subwords.scale)).tobytes())
    stream.seek(buckets + ngrams.buckets * dim * 4)
    stream.write(_MATRIX.pack(False, len(encoded), dim))
    stream.truncate(stream.tell() + len(encoded) * dim * 4)


def _ngram_sums(encoded: Sequence[bytes], subwords: Subwords) -> tuple[Indices, npt.NDArray[np.float64]]:
    """Return the number of each word's n-grams, shape (words, 1), and the sum of their rows, shape (words, dim)."""
    sizes, sums = subwords.sums(encoded)
    whole = np.array([word != _END_OF_SENTENCE for word in encoded])[:, None]
    return sizes[:, None] * whole, sums.astype(np.float64) * whole


def _add_ngrams(own: Rows, encoded: Sequence[bytes], subwords: Subwords) -> None:
    """Turn words' own rows, shape (words, dim), into their vectors: each mean is summed in gensim's order."""
    starts, buckets = subwords.ngrams.hashed(encoded)
    counts = np.array([0 if word == _END_OF_SENTENCE else n for word, n in zip(encoded, np.diff(starts), strict=True)])
    at = np.searchsorted(subwords.buckets, buckets)
    known = np.append(subwords.buckets, -1)[at] == buckets
    for place in range(int(counts.max(initial=0))):
        words = np.flatnonzero(counts > place)
        ngrams = starts[words] + place
        words, ngrams = words[known[ngrams]], ngrams[known[ngrams]]
        own[words] += subwords.rows[subwords.places[at[ngrams]]]
    own /= (counts + 1).astype(np.float32)[:, None]


def read_fasttext(path: Path, data: bytes | None = None) -> Vectors:
    """Read a skip-gram or CBOW model of fastText, with every vector in memory; `subwords` is None if it has no n-grams.

    `data` is the content, if it is not that of the file `path` itself, which is mapped. Bytes of a word that are not
    UTF-8 become `\\xNN`. Raises MalformedFile for a file that is not a model, is cut off, holds NaN or infinity, or is
    a classifier or a quantised model.
    """
    try:
        if data is not None:
            return _Reader(path, data).read()
        with path.open("rb") as stream:
            return _Reader(path, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)).read()
    except (OSError, ValueError, struct.error, OverflowError) as error:
        raise MalformedFile(f"{path} cannot be read as a model of fastText: {error}") from error


class _Reader:
    """Reads one model from the bytes of its file; raises ValueError or struct.error if they are not a model."""

    def __init__(self, path: Path, data: mmap.mmap | bytes) -> None:
        self._path, self._data, self._at = path, data, 0

    def read(self) -> Vectors:
        """Return the whole model."""
        magic, version, dim, *_, kind, buckets, shortest, longest, _, _ = self._unpack(_HEADER)
        if magic != _MAGIC or not _OLDEST <= version <= _NEWEST:
            raise MalformedFile(f"{self._path} is not a model of fastText, or not of version {_OLDEST} or {_NEWEST}")
        if kind == _CLASSIFIER:
            raise MalformedFile(f"{self._path} is a classifier of fastText, which has no word vectors of this kind")
        if not 1 <= dim <= _MAX_DIM or longest > 0 > shortest:
            raise ValueError(f"{dim} dimensions, n-grams of {shortest} to {longest} characters")
        try:
            ngrams = Ngrams(max(1, shortest), longest, buckets) if longest > 0 else Ngrams()
        except UsageError as error:
            raise MalformedFile(f"{self._path} has {error}") from error
        buckets = buckets if longest > 0 else 0
        encoded, counts = self._vocabulary()
        own, found, rows = self._matrix(len(encoded), buckets, dim)
        subwords = Subwords(ngrams, found, np.arange(len(found), dtype=np.int32), rows)
        for first in range(0, len(own) if buckets else 0, _ROWS_AT_ONCE):
            piece = slice(first, first + _ROWS_AT_ONCE)
            _add_ngrams(own[piece], encoded[piece], subwords)
        words = tuple(word.decode(errors="backslashreplace") for word in encoded)
        if len(set(words)) < len(words):
            raise ValueError("a word occurs twice")
        return Vectors(words, own, {}, counts, subwords if buckets else None)

    def _unpack(self, layout: struct.Struct) -> tuple[Any, ...]:
        values = layout.unpack_from(self._data, self._at)
        self._at += layout.size
        return values

    def _vocabulary(self) -> tuple[list[bytes], Indices]:
        """Return the words, as bytes, and their counts."""
        entries, words, labels, _, pruned = self._unpack(_SIZES)
        if labels or entries != words:
            raise ValueError(f"{labels} labels among {entries} entries, {words} of them words")
        if pruned != _NOT_PRUNED:
            raise MalformedFile(f"{self._path} is a pruned model: use the model from which it was made")
        if not 0 <= words * (1 + _ENTRY.size) <= len(self._data):
            raise ValueError(f"{words} words in {len(self._data)} bytes")
        encoded, counts = [], np.empty(words, dtype=np.int64)
        for number in range(words):
            end = self._data.find(b"\0", self._at, self._at + _MAX_WORD_BYTES + 1)
            if end <= self._at:
                raise ValueError(f"word {number} is empty or has no end")
            encoded.append(self._data[self._at : end])
            self._at = end + 1
            counts[number], _ = self._unpack(_ENTRY)
        return encoded, counts

    def _matrix(self, words: int, buckets: int, dim: int) -> tuple[Rows, npt.NDArray[np.int32], Rows]:
        """Return the rows of the words, and the buckets that have a row that is not zero, with these rows."""
        quantised, rows, columns = self._unpack(_MATRIX)
        if quantised:
            raise MalformedFile(f"{self._path} is a quantised model: use the model from which it was made")
        if (rows, columns) != (words + buckets, dim):
            raise ValueError(f"a matrix of {rows} rows and {columns} columns for {words} words and {buckets} buckets")
        if rows * columns * 4 > len(self._data) - self._at:
            raise ValueError("its end is missing")
        table = np.frombuffer(self._data, dtype="<f4", count=rows * columns, offset=self._at).reshape(rows, columns)
        used = np.empty(rows, dtype=np.bool_)
        for first in range(0, rows, _ROWS_AT_ONCE):
            piece = slice(first, first + _ROWS_AT_ONCE)
            if not np.isfinite(table[piece]).all():
                raise ValueError("its vectors hold NaN or infinity")
            used[piece] = table[piece].any(axis=1)
        found = np.flatnonzero(used[words:])
        ngrams = table[words:][found].astype(np.float32, copy=False)
        return table[:words].astype(np.float32), found.astype(np.int32), ngrams
