"""Write vectors in the formats of other programs; each function writes to a stream, `write_projector` a folder.

Text is UTF-8; numbers have nine digits, so that reading them gives the same float32. No format contains a pickle.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from glovewire.common.errors import OutputError, require_extra
from glovewire.common.storage.run_folder import Vectors

_ROWS_AT_ONCE = 1024
_MOST_TEXT_BYTES = 2 << 30


def write_glove(stream: BinaryIO, loaded: Vectors) -> None:
    """Write Stanford's text format: a word and its numbers per line, no header."""
    _require_no_blanks(loaded.words, "glove")
    _write_lines(stream, loaded, " ")


def write_word2vec(stream: BinaryIO, loaded: Vectors) -> None:
    """Write word2vec's text format: a header `words dim`, then a word and its numbers per line."""
    _require_no_blanks(loaded.words, "word2vec")
    stream.write(_header(loaded))
    _write_lines(stream, loaded, " ")


def write_word2vec_bin(stream: BinaryIO, loaded: Vectors) -> None:
    """Write word2vec's binary format: a header; for each word its text, a blank, little-endian float32, a newline."""
    _require_no_blanks(loaded.words, "word2vec-bin")
    stream.write(_header(loaded))
    for word, row in zip(loaded.words, loaded.vectors, strict=True):
        stream.write(word.encode() + b" " + row.astype("<f4").tobytes() + b"\n")


def write_npz(stream: BinaryIO, loaded: Vectors) -> None:
    """Write numpy's archive: `vectors` float32 (words, dim) and `vocabulary`, fixed-width text (words,)."""
    np.savez(stream, vectors=loaded.vectors, vocabulary=fixed_width(loaded.words))


def fixed_width(words: Sequence[str]) -> npt.NDArray[np.str_]:
    """Return `words` as an array of fixed-width text, shape (words,), at four bytes per character of the longest word.

    Raises OutputError if the array would take more than 2 GiB.
    """
    longest = max(words, key=len, default="")
    size = len(words) * len(longest) * 4
    if size > _MOST_TEXT_BYTES:
        raise OutputError(
            f"the format npz gives every word the width of the longest, {longest[:40]!r}... with "
            f"{len(longest):,} characters: {len(words):,} words would take {size / 2**30:,.1f} GiB; preprocess the "
            "text without such words"
        )
    return np.array(words)


def write_safetensors(stream: BinaryIO, loaded: Vectors) -> None:
    """Write a tensor `vectors` and, in the metadata, `vocabulary` as a JSON list; MissingExtra if not installed."""
    require_extra("safetensors", "export", "--format safetensors")
    from safetensors.numpy import save

    metadata = {"vocabulary": json.dumps(loaded.words, ensure_ascii=False)}
    stream.write(save({"vectors": np.ascontiguousarray(loaded.vectors)}, metadata=metadata))


def write_projector(path: Path, loaded: Vectors) -> None:
    """Write a folder for the TensorBoard projector: `vectors.tsv` of numbers, `metadata.tsv` with one word per line."""
    _require_no_blanks(loaded.words, "projector")
    path.mkdir()
    with (path / "vectors.tsv").open("wb") as stream:
        _write_lines(stream, loaded, "\t", with_words=False)
    (path / "metadata.tsv").write_bytes("".join(f"{word}\n" for word in loaded.words).encode())


def _header(loaded: Vectors) -> bytes:
    return f"{len(loaded.words)} {loaded.dim}\n".encode()


def _write_lines(stream: BinaryIO, loaded: Vectors, blank: str, *, with_words: bool = True) -> None:
    form = blank.join(["%.9g"] * loaded.dim)
    for start in range(0, len(loaded.words), _ROWS_AT_ONCE):
        rows = loaded.vectors[start : start + _ROWS_AT_ONCE].tolist()
        lines: Iterator[str] = (form % tuple(row) for row in rows)
        if with_words:
            names = loaded.words[start : start + _ROWS_AT_ONCE]
            lines = (f"{word}{blank}{line}" for word, line in zip(names, lines, strict=True))
        stream.write("".join(f"{line}\n" for line in lines).encode())


def _require_no_blanks(words: Sequence[str], name: str) -> None:
    for word in words:
        if word.split() != [word]:
            raise OutputError(f"the format {name} cannot hold the word {word!r}, which has a blank: use npz")


def most_frequent_first(words: Sequence[str], counts: npt.NDArray[np.int64]) -> list[int]:
    """Return the positions of `words` by descending `counts` (shape (words,)), ties in byte order of the words."""
    return sorted(range(len(words)), key=lambda place: (-int(counts[place]), words[place].encode()))


def by_frequency(loaded: Vectors) -> Vectors:
    """Return vectors sorted by `most_frequent_first`; unchanged if the counts of the words are unknown."""
    if loaded.counts is None:
        return loaded
    order = most_frequent_first(loaded.words, loaded.counts)
    words = tuple(loaded.words[row] for row in order)
    return replace(loaded, words=words, vectors=loaded.vectors[order], counts=loaded.counts[order])
