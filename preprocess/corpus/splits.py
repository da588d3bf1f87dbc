"""A corpus as a row of blocks: pieces of work that are the same however many processes share them.

A plain file is cut at fixed distances and read where it is needed; what must be decompressed or arrives as a stream
is read here, in order, and travels inside the block. Here lines are found and counted, never tokenised.
"""

from __future__ import annotations

import gzip
import lzma
import zlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal, cast

from glovewire.common.errors import CorpusError

from .compressed import unpacked

Form = Literal["text", "jsonl", "parquet", "items"]
# What a process tokenises before it looks at its memory: text without a word twice takes about ten times its size.
BLOCK_BYTES = 2 << 20
_READ_BYTES = 1 << 20
_DAMAGE = (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error, ValueError, OSError)


@dataclass(frozen=True)
class Block:
    """Part of a source: bytes [start, stop) of a file, its row groups [start, stop), or `data` itself.

    `items` is the most lines to take (None: all); `first_line` is the number of the first line of `data`, from 1.
    In form `items`, `data` is the items end to end and `lengths` their bytes.
    """

    ordinal: int
    form: Form
    label: str
    path: str = ""
    start: int = 0
    stop: int = 0
    items: int | None = None
    data: bytes | None = None
    first_line: int = 0
    lengths: tuple[int, ...] = ()

    @property
    def nbytes(self) -> int:
        """How much of the corpus this is, in bytes (for parquet, as stored)."""
        return len(self.data) if self.data is not None else self.stop - self.start


@dataclass(frozen=True)
class File:
    """A file of the corpus; `label` is its name in messages; `compression` is its suffix or empty."""

    path: Path
    label: str
    form: Form
    compression: str

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return self.path.stat().st_size


def spans(file: File, first: int) -> Iterator[Block]:
    """Blocks of a plain text or jsonl file, numbered from `first`."""
    for n, start in enumerate(range(0, file.size, BLOCK_BYTES)):
        stop = min(start + BLOCK_BYTES, file.size)
        yield Block(first + n, file.form, file.label, str(file.path), start, stop)


def stream(source: IO[bytes], label: str, form: Form, first: int, longest: int, limit: int | None) -> Iterator[Block]:
    """Blocks of whole lines from a stream, numbered from `first`; at most `limit` lines."""
    line, buffer = 1, b""
    ordinal = first
    while limit is None or limit > 0:
        piece = _read(source, label, line)
        buffer += piece
        if piece and (len(buffer) < BLOCK_BYTES or b"\n" not in buffer):
            if len(buffer) > longest + BLOCK_BYTES:
                raise too_long(label, line, longest)
            continue
        if not buffer:
            return
        cut = buffer.rfind(b"\n") + 1 if piece else len(buffer)
        data, buffer = buffer[:cut], buffer[cut:]
        lines = count_items(data, form)
        if limit is not None and lines > limit:
            data = _first_items(data, form, limit)
            lines = limit
        yield Block(ordinal, form, label, data=data, first_line=line)
        ordinal, line = ordinal + 1, line + data.count(b"\n")
        limit = None if limit is None else limit - lines


def opened(file: File) -> IO[bytes]:
    """The file's content, decompressed as it is read."""
    if file.compression == ".gz":
        return cast(IO[bytes], gzip.open(file.path, "rb"))
    if file.compression in (".bz2", ".xz"):
        return unpacked(file.path, file.compression)
    if file.compression == ".zst":
        import pyarrow as pa

        return cast(IO[bytes], pa.CompressedInputStream(pa.OSFile(str(file.path)), "zstd"))
    return file.path.open("rb")


def file_stream(file: File, first: int, longest: int, limit: int | None) -> Iterator[Block]:
    """Blocks of a file that is read from its beginning: compressed, or of which only some lines are wanted."""
    try:
        source = opened(file)
    except OSError as error:
        raise CorpusError(f"{file.label} cannot be read: {error.strerror or error}") from error
    with closing(source):
        yield from stream(source, file.label, file.form, first, longest, limit)


def count_items(data: bytes, form: Form) -> int:
    """Lines in `data`; in jsonl, lines that are not blank."""
    if form == "jsonl":
        return sum(1 for line in data.split(b"\n") if line.strip())
    return data.count(b"\n") + (not data.endswith(b"\n") and bool(data))


def too_long(label: str, line: int, longest: int) -> CorpusError:
    """The refusal of a line that does not fit in memory."""
    return CorpusError(
        f"{label}: line {line} is longer than {longest >> 20} MiB, which --memory does not hold; "
        "is it text with one paragraph a line?"
    )


def _first_items(data: bytes, form: Form, limit: int) -> bytes:
    """The data up to its `limit`-th item; blank lines of jsonl stay, as errors name lines by their number."""
    lines = data.split(b"\n")
    if form == "jsonl":
        limit = [n for n, line in enumerate(lines, 1) if line.strip()][limit - 1]
    return b"\n".join(lines[:limit]) + b"\n"


def _read(source: IO[bytes], label: str, line: int) -> bytes:
    try:
        return source.read(_READ_BYTES)
    except _DAMAGE as error:
        raise CorpusError(f"{label} is damaged after line {line}: {error or type(error).__name__}") from error
