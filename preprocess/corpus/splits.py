"""Divide a corpus into input splits: units of work that are the same for any number of processes.

A plain file is divided at fixed offsets, and the process that tokenises a split reads it. Compressed files and streams
are read here, in order, and their text travels inside the split. Lines are found and counted here, never tokenised.
"""

import gzip
import lzma
import zlib
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

from glovewire.common.errors import CorpusError
from glovewire.common.storage.artifacts import input_errors

from .compressed import open_decompressed

TextFormat = Literal["text", "jsonl", "parquet", "items"]
SPLIT_BYTES = 2 << 20
"""Size of a split; memory is checked between splits, and tokenising one takes up to about ten times its size."""
READ_BYTES = 1 << 20
DAMAGE = (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error, ValueError, OSError)


@dataclass(frozen=True)
class InputSplit:
    """Part of a source: bytes or (Parquet) row groups [start, stop) of a file, or the text `data` itself.

    `items` is the split's number of texts (0: not counted yet); `first_line` is the number of the first line of `data`,
    from 1. In format `items`, `data` holds the texts end to end and `lengths` their sizes in bytes. `ordinal` is the
    split's place in the corpus.
    """

    format: TextFormat
    label: str
    path: str = ""
    start: int = 0
    stop: int = 0
    items: int = 0
    data: bytes | None = None
    first_line: int = 0
    lengths: tuple[int, ...] = ()
    ordinal: int = -1

    @property
    def nbytes(self) -> int:
        """Return the size in bytes; for Parquet, the number of row groups."""
        return len(self.data) if self.data is not None else self.stop - self.start


@dataclass(frozen=True)
class SourceFile:
    """A file of the corpus; `label` names it in messages, `compression` is a suffix such as `.gz`, or empty."""

    path: Path
    label: str
    format: TextFormat
    compression: str

    @property
    def size(self) -> int:
        """Return the size on disk in bytes."""
        return identity(self.path, self.label)[1]


def identity(path: Path, label: str) -> tuple[str, int, int]:
    """Return a file's path, size and modification time in ns, to detect changes; CorpusError if it cannot be read."""
    with input_errors(label, CorpusError):
        found = path.stat()
    return str(path), found.st_size, found.st_mtime_ns


def file_splits(file: SourceFile) -> Iterator[InputSplit]:
    """Yield the splits of a plain text or jsonl file."""
    for start in range(0, file.size, SPLIT_BYTES):
        yield InputSplit(file.format, file.label, str(file.path), start, min(start + SPLIT_BYTES, file.size))


@contextmanager
def open_source(file: SourceFile) -> Iterator[IO[bytes]]:
    """Open a file, decompressed, while the block lasts; CorpusError if it cannot be opened."""
    with input_errors(file.label, CorpusError):
        source = open_decompressed(file.path, file.compression)
    with closing(source):
        yield source


def stream_splits(
    source: IO[bytes], label: str, format: TextFormat, longest: int, limit: int | None
) -> Iterator[InputSplit]:
    """Yield splits of whole lines, at most `limit` lines in total; CorpusError for damage or a line too long."""
    line, buffer = 1, b""
    while limit is None or limit > 0:
        piece = _read(source, label, line, buffer)
        buffer += piece
        if piece and (len(buffer) < SPLIT_BYTES or b"\n" not in buffer):
            if len(buffer) > longest + SPLIT_BYTES:
                raise line_too_long(label, line, longest)
            continue
        if not buffer:
            return
        end = buffer.rfind(b"\n") + 1 if piece else len(buffer)
        data, buffer = buffer[:end], buffer[end:]
        items = _count_items(data, format)
        if limit is not None:
            if items > limit:
                data, items = _first_items(data, format, limit), limit
            limit -= items
        yield InputSplit(format, label, data=data, items=items, first_line=line)
        line += data.count(b"\n")


def in_batches(texts: Iterable[bytes], most: int) -> Iterator[list[bytes]]:
    """Yield the texts in lists; a list ends with the text that brings it above `most` bytes."""
    held: list[bytes] = []
    size = 0
    for text in texts:
        held.append(text)
        size += len(text)
        if size > most:
            yield held
            held, size = [], 0
    if held:
        yield held


def line_too_long(label: str, line: int, longest: int) -> CorpusError:
    """Return the error for a line of more than `longest` bytes."""
    return CorpusError(
        f"{label}: line {line} is longer than {longest >> 20} MiB, the most that --memory allows; "
        "check that the text has one paragraph per line, or give a larger --memory"
    )


def one_line(error: BaseException) -> str:
    """Return an error's text on one line of at most 200 characters."""
    return " ".join(str(error).split())[:200]


def _read(source: Any, label: str, line: int, buffer: bytes) -> bytes:
    """Read about READ_BYTES, less only at the end; CorpusError for damage names the last whole line before it.

    `line` is the number of the first line of `buffer`. The source is read piece by piece, because one long read would
    lose what precedes the damage.
    """
    pieces: list[bytes] = []
    try:
        while (left := READ_BYTES - sum(map(len, pieces))) > 0 and (piece := source.read1(left)):
            pieces.append(piece)
    except DAMAGE as error:
        good = line - 1 + buffer.count(b"\n") + sum(piece.count(b"\n") for piece in pieces)
        where = f"after line {good}" if good else "in its first line"
        raise CorpusError(f"{label} is damaged {where}: {error or type(error).__name__}") from error
    return b"".join(pieces)


def _count_items(data: bytes, format: TextFormat) -> int:
    """Count the lines in `data`; in jsonl, those that are not blank."""
    if format == "jsonl":
        return sum(1 for line in data.split(b"\n") if line.strip())
    return data.count(b"\n") + (not data.endswith(b"\n") and bool(data))


def _first_items(data: bytes, format: TextFormat, limit: int) -> bytes:
    """Return `data` up to the end of item `limit`; keep blank jsonl lines, because errors name lines by number."""
    lines = data.split(b"\n")
    if format == "jsonl":
        limit = [n for n, line in enumerate(lines, 1) if line.strip()][limit - 1]
    return b"\n".join(lines[:limit]) + b"\n"
