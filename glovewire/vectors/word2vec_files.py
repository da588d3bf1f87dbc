"""Read the text formats of GloVe and word2vec, and word2vec's binary format, from a stream.

A text line is a word and its numbers, separated by blanks or tabs. word2vec's files begin with a line `words
dimensions`; in the binary format each word is followed by a blank and little-endian float32. Numbers are read as gensim
reads them, to the last bit. If a word occurs twice, its first vector counts, as in gensim.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from glovewire.common.array_types import Rows
from glovewire.common.errors import MalformedFile
from glovewire.common.storage.run_folder import Vectors

_HEADER = re.compile(rb"\s*(\d{1,12})[ \t]+(\d{1,6})\s*")
_CHUNK_BYTES = 4 << 20
_LOOK_BYTES = 4096
_MAX_DIM = 1 << 16
_MAX_LINE_BYTES = 32 << 20
_MAX_WORD_BYTES = 1 << 20
_TEXT_CONTROLS = b"\t\n\r\f\x0b"


def read_words(stream: BinaryIO, path: Path) -> Vectors:
    """Return the vectors of a file in one of the three formats; `path` names it in errors.

    Raises MalformedFile for a malformed line, a file that holds no vectors, or one that differs from its header.
    """
    first = stream.readline(_MAX_LINE_BYTES)
    if (header := _HEADER.fullmatch(first)) is None:
        return _read_text(stream, first, path)
    ahead = stream.read(_LOOK_BYTES)
    words, dim = int(header[1]), int(header[2])
    if _is_text(ahead):
        return _read_text(stream, ahead, path, (words, dim))
    if not 1 <= dim <= _MAX_DIM:
        raise MalformedFile(f"{path} cannot be read as a binary file of word2vec: {dim} dimensions")
    return _read_binary(stream, ahead, path, words, dim)


def _is_text(ahead: bytes) -> bool:
    """Return whether bytes look like text: binary vectors nearly always have control characters or broken UTF-8."""
    if any(byte < 32 and byte not in _TEXT_CONTROLS for byte in ahead):
        return False
    try:
        ahead.decode()
    except UnicodeDecodeError as error:
        return error.start > len(ahead) - 4 and error.reason == "unexpected end of data"
    return True


# ---- text


def _read_text(stream: BinaryIO, ahead: bytes, path: Path, header: tuple[int, int] | None = None) -> Vectors:
    words: dict[str, None] = {}
    tables: list[Rows] = []
    dim, number = 0, 0 if header is None else 1
    for lines in _line_batches(stream, ahead, path):
        found, table = _parse(lines, dim, path, number)
        dim, number = table.shape[1], number + len(lines)
        known = len(words)
        words.update(dict.fromkeys(found))
        if len(words) < known + len(found):
            firsts = {word: row for row, word in reversed([*enumerate(found)])}
            table = table[[firsts[word] for word in list(words)[known:]]]
        tables.append(table)
    if not words:
        raise MalformedFile(f"{path} holds no vectors")
    if header is not None and header != (number - 1, dim):
        raise MalformedFile(
            f"{path} holds {number - 1:,} words of {dim} dimensions, not {header[0]:,} of {header[1]} as its first "
            "line says: get the file again if it is cut off, else correct that line"
        )
    return Vectors(tuple(words), np.concatenate(tables), {})


def _line_batches(stream: BinaryIO, ahead: bytes, path: Path) -> Iterator[list[bytes]]:
    """Yield in batches the lines of a stream that begins with `ahead`, without blank lines at its end."""
    rest = ahead
    while piece := stream.read(_CHUNK_BYTES):
        rest += piece
        whole, newline, _ = rest.rstrip().rpartition(b"\n")
        if newline:
            yield whole.split(b"\n")
            rest = rest[len(whole) + 1 :]
        elif len(rest) > _MAX_LINE_BYTES:
            raise MalformedFile(f"{path} is not a text file of vectors: a line has more than {_MAX_LINE_BYTES} bytes")
    if rest := rest.rstrip():
        yield rest.split(b"\n")


def _parse(lines: list[bytes], dim: int, path: Path, before: int) -> tuple[list[str], Rows]:
    """Return the words and numbers of lines that follow `before` earlier lines; `dim` is 0 while unknown."""
    split = [line.partition(b" ") for line in lines]
    dim = dim or len(lines[0].split()) - 1
    numbers = [rest.rstrip() for _, _, rest in split]
    if dim > 0 and all(rest.count(b" ") == dim - 1 for rest in numbers):
        try:
            words = [word.decode() for word, _, _ in split]
            table = np.fromstring(b" ".join(numbers), dtype=np.float32, sep=" ")
        except ValueError:  # bytes that are not UTF-8, or an invalid number
            pass
        else:
            if len(table) == dim * len(lines) and np.isfinite(table).all() and all(words):
                return words, table.reshape(-1, dim)
    return _parse_one_by_one(lines, dim, path, before)


def _parse_one_by_one(lines: list[bytes], dim: int, path: Path, before: int) -> tuple[list[str], Rows]:
    """Parse as `_parse` does, but allow tabs and blanks inside words, and name the line of an error."""
    words: list[str] = []
    table = np.empty((len(lines), max(dim, 0)), dtype=np.float32)
    for row, line in enumerate(lines):
        place = f"{path}, line {before + row + 1}"
        fields = line.rsplit(None, dim) if dim > 0 else []
        try:
            word = line.decode() and (fields or [b""])[0].strip().decode()
        except UnicodeDecodeError as error:
            raise MalformedFile(
                f"{path} is not a run, a fastText model or a text file of vectors: line {before + row + 1} is not UTF-8"
            ) from error
        if len(fields) != dim + 1:
            raise MalformedFile(f"{place}: expected a word and {dim if dim > 0 else 'its'} numbers")
        words.append(word)
        try:
            table[row] = [np.float32(field.decode()) for field in fields[1:]]
        except ValueError as error:
            raise MalformedFile(f"{place}: expected a word and its numbers") from error
        if not np.isfinite(table[row]).all() or not words[-1]:
            raise MalformedFile(f"{place}: expected a word and finite numbers")
    return words, table


# ---- binary


def _read_binary(stream: BinaryIO, buffer: bytes, path: Path, count: int, dim: int) -> Vectors:
    """Read `count` words of word2vec's binary format from a stream that begins with `buffer`."""
    words: dict[str, None] = {}
    tables: list[Rows] = []
    left, size, ended = count, 4 * dim, False
    while left:
        piece = stream.read(_CHUNK_BYTES)
        buffer, ended = buffer + piece, not piece
        at, rows = 0, []
        while left:
            blank = buffer.find(b" ", at, at + _MAX_WORD_BYTES)
            if blank < 0 or len(buffer) - blank - 1 < size:
                break
            word = buffer[at:blank].lstrip(b"\n").decode(errors="backslashreplace")
            if word not in words:
                words[word] = None
                rows.append(blank + 1)
            at, left = blank + 1 + size, left - 1
        if rows:
            joined = b"".join([buffer[start : start + size] for start in rows])
            table = np.frombuffer(joined, "<f4").astype(np.float32, copy=False).reshape(-1, dim)
            if not np.isfinite(table).all():
                raise MalformedFile(f"{path} holds NaN or infinity")
            tables.append(table)
        buffer = buffer[at:]
        if left and (ended or (not at and len(buffer) > _CHUNK_BYTES + _MAX_WORD_BYTES + size)):
            raise MalformedFile(
                f"{path} cannot be read as a binary file of word2vec: it ends after {count - left:,} of {count:,} words"
            )
    if not words:
        raise MalformedFile(f"{path} holds no vectors")
    return Vectors(tuple(words), np.concatenate(tables), {})
