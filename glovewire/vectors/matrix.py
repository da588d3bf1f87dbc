"""Write a dataset's matrix in the formats of other programs, block by block in bounded memory.

Each writer writes one file or folder at a scratch path. Equal datasets and seeds give equal bytes.
"""

import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from glovewire.common.errors import OutputError
from glovewire.common.storage.dataset import Dataset

from .formats import fixed_width, most_frequent_first

RECORD = np.dtype([("word1", "<i4"), ("word2", "<i4"), ("value", "<f8")])
COOCCURRENCE, VOCABULARY = "cooccurrence.bin", "vocab.txt"
_UNKNOWN = "<unk>"
_ENTRIES_AT_ONCE = 1 << 20
_BUCKET_RECORDS = 1 << 22

Triplets = tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.float32]]


def entries(dataset: Dataset) -> Iterator[Triplets]:
    """Yield the full matrix in pieces: row, column (in vocabulary order) and value, each of shape (n,).

    Pieces follow the stored order, and a mirrored entry is in the piece of its stored entry. n is at most 2,097,152.
    """
    layout = dataset.layout
    for a, b in layout.blocks:
        first, last = dataset.block_range(a, b)
        for start in range(first, last, _ENTRIES_AT_ONCE):
            stored = dataset.entries[start : min(last, start + _ENTRIES_AT_ONCE)]
            row = dataset.permutation[layout.bounds[a] :][stored["i"]]
            column = dataset.permutation[layout.bounds[b] :][stored["j"]]
            if layout.symmetric:
                off = np.flatnonzero(row != column)
                row, column = np.concatenate([row, column[off]]), np.concatenate([column, row[off]])
                stored = np.concatenate([stored, stored[off]])
            yield row, column, stored["x"]


def write_npz(path: Path, dataset: Dataset) -> None:
    """Write scipy's COO: `row col` int32, `data` float32 (entries,), `shape`, `vocabulary` text, `counts` (words,).

    `scipy.sparse.load_npz` reads it. Row i belongs to `vocabulary[i]`; no array is pickled. Raises OutputError if the
    words are too long for one array.
    """
    words, vocabulary = len(dataset.words), fixed_width(dataset.words)
    with zipfile.ZipFile(path, "w") as archive:
        for place, (name, dtype) in enumerate((("row", "<i4"), ("col", "<i4"), ("data", "<f4"))):
            header = {"descr": dtype, "fortran_order": False, "shape": (dataset.total_entries,)}
            with _member(archive, name) as stream:
                np.lib.format.write_array_header_1_0(stream, header)
                for piece in entries(dataset):
                    stream.write(np.ascontiguousarray(piece[place], dtype=dtype).view(np.uint8).data)
        for name, array in (
            ("shape", np.array([words, words], dtype=np.int64)),
            ("format", np.array(b"coo")),
            ("vocabulary", vocabulary),
            ("counts", dataset.counts),
        ):
            with _member(archive, name) as stream:
                np.lib.format.write_array(stream, np.asanyarray(array), allow_pickle=False)


def _member(archive: zipfile.ZipFile, name: str) -> BinaryIO:
    member = zipfile.ZipInfo(f"{name}.npy")  # dated 1980, so that equal content gives equal bytes
    return archive.open(member, "w", force_zip64=True)  # type: ignore[return-value] # typeshed: IO[bytes]


def write_stanford(path: Path, dataset: Dataset, seed: int = 0) -> None:
    """Write a folder on which Stanford's `glove` trains: `cooccurrence.bin`, already shuffled, and `vocab.txt`.

    `vocab.txt` has lines `word count`, most frequent first, ties in byte order. A record is int32 word1, int32 word2,
    float64 value, little-endian; words are numbered from 1 in the order of `vocab.txt`. OutputError if a word is
    `<unk>`: `glove` gives this name to a vector of its own and saves nothing if the vocabulary contains it.
    """
    if _UNKNOWN in dataset.words:
        raise OutputError(
            f"Stanford's glove would save nothing: it reserves the word {_UNKNOWN!r}, which this dataset contains; "
            "preprocess the text with --tokenizer nltk, or spell that word in another way"
        )
    path.mkdir()
    order = most_frequent_first(dataset.words, dataset.counts)
    lines = (f"{dataset.words[i]} {int(dataset.counts[i])}\n" for i in order)
    (path / VOCABULARY).write_bytes("".join(lines).encode())
    numbers = np.empty(len(order), dtype=np.int32)
    numbers[order] = np.arange(1, len(order) + 1)
    _write_shuffled(path / COOCCURRENCE, dataset, numbers, seed)


def _write_shuffled(path: Path, dataset: Dataset, numbers: npt.NDArray[np.int32], seed: int) -> None:
    """Shuffle uniformly: write each record to a random bucket of the file, then shuffle every bucket in memory."""
    total = dataset.total_entries
    buckets = max(1, -(-total // _BUCKET_RECORDS))
    sizes = sum(
        (np.bincount(drawn, minlength=buckets) for _, drawn in _drawn(dataset, buckets, seed)),
        start=np.zeros(buckets, dtype=np.int64),
    )
    ends = np.cumsum(sizes) * RECORD.itemsize
    with path.open("w+b") as stream:
        if total:
            os.posix_fallocate(stream.fileno(), 0, total * RECORD.itemsize)
        places = ends - sizes * RECORD.itemsize
        for (row, column, value), drawn in _drawn(dataset, buckets, seed):
            records = np.empty(len(row), RECORD)
            records["word1"], records["word2"], records["value"] = numbers[row], numbers[column], value
            by_bucket = records[np.argsort(drawn, kind="stable")]
            counts = np.bincount(drawn, minlength=buckets)
            for bucket, part in enumerate(np.split(by_bucket, np.cumsum(counts)[:-1])):
                stream.seek(places[bucket])
                stream.write(part.tobytes())
                places[bucket] += part.nbytes
        shuffle = np.random.default_rng([seed, 1])
        for end, size in zip(ends, sizes, strict=True):
            stream.seek(end - size * RECORD.itemsize)
            records = np.frombuffer(stream.read(size * RECORD.itemsize), RECORD)
            stream.seek(end - size * RECORD.itemsize)
            stream.write(records[shuffle.permutation(size)].tobytes())


def _drawn(dataset: Dataset, buckets: int, seed: int) -> Iterator[tuple[Triplets, npt.NDArray[np.int64]]]:
    """Yield the full matrix in pieces, with a random bucket for each entry."""
    random = np.random.default_rng([seed, 0])
    for piece in entries(dataset):
        yield piece, random.integers(0, buckets, len(piece[0]))
