"""Read input splits as batches of lines, in the process that tokenises the splits.

A batch is UTF-8 text and the bounds of its lines. Invalid text is detected here or by the encoder, and the error names
the file and the line.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from glovewire.common.array_types import Indices
from glovewire.common.errors import CorpusError
from glovewire.common.storage.artifacts import input_errors

from ..tokens.string_table import packed
from .json_lines import text_of
from .splits import InputSplit, in_batches, line_too_long

BATCH_BYTES = 1 << 19
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class LineBatch:
    """Lines text[starts[n]:stops[n]] of a split; `first_item` is the index in the split of the batch's first line."""

    text: bytes
    starts: Indices
    stops: Indices
    first_item: int


def read_batches(split: InputSplit, column: str, longest: int) -> Iterator[LineBatch]:
    """Yield a split's lines in batches of about 512 KiB; CorpusError for bad text or a line over `longest` bytes."""
    if split.format == "text":
        yield from _text_batches(split, longest)
        return
    if split.format == "parquet":
        from .parquet import column_texts

        texts = column_texts(split, column)
    elif split.format == "jsonl":
        texts = _json_texts(split, column, longest)
    else:
        data, ends = split.data or b"", np.cumsum(split.lengths).tolist()
        texts = (data[end - size : end].decode() for end, size in zip(ends, split.lengths, strict=True))
    item = 0
    for held in in_batches((_encoded(text, split, n, longest) for n, text in enumerate(texts)), BATCH_BYTES):
        yield LineBatch(b"".join(held), *packed(held)[1:], item)
        item += len(held)


def text_error(split: InputSplit, batch: LineBatch, reason: str) -> CorpusError:
    """Return an error that names the batch's first invalid line, or gives `reason` if every line is valid."""
    for n, (start, stop) in enumerate(zip(batch.starts, batch.stops, strict=True), batch.first_item):
        line = batch.text[start:stop]
        try:
            line.decode()
        except UnicodeDecodeError:
            return CorpusError(f"{_location(split, n)} is not UTF-8 text: convert it, as iconv does, or remove it")
        if b"\0" in line:
            return CorpusError(f"{_location(split, n)} holds a NUL byte: not text")
    return CorpusError(f"{split.label} cannot be tokenised: {reason}")


def _text_batches(split: InputSplit, longest: int) -> Iterator[LineBatch]:
    data = _read_lines(split, longest)
    at, item = 0, 0
    while at < len(data):
        stop = data.rfind(b"\n", at, at + BATCH_BYTES) + 1
        if stop == 0:
            stop = (data.find(b"\n", at) + 1) or len(data)
        text = data[at:stop]
        stops = np.flatnonzero(np.frombuffer(text, np.uint8) == ord("\n"))
        if not text.endswith(b"\n"):
            stops = np.append(stops, len(text))
        starts = np.append(0, stops[:-1] + 1)
        lengths = stops - starts
        if int(lengths.max()) > longest:
            raise line_too_long(split.label, _line_number(split, item + int(lengths.argmax())), longest)
        yield LineBatch(text, starts, stops, item)
        item += len(starts)
        at = stop


def _read_lines(split: InputSplit, longest: int) -> bytes:
    """Return the lines that begin in the split, the last one complete, without the source's byte order mark."""
    if split.data is not None:
        return split.data.removeprefix(_BOM) if split.first_line == 1 else split.data
    with input_errors(split.label, CorpusError), open(split.path, "rb") as stream:
        stream.seek(max(0, split.start - 1))
        data = stream.read(split.stop - max(0, split.start - 1))
        begin = data.find(b"\n", 0, -1) + 1 if split.start else 0
        if split.start and begin == 0:
            return b""
        if not data.endswith(b"\n"):
            data += stream.readline(longest + 1)
        return data[begin:] if split.start else data.removeprefix(_BOM)


def _json_texts(split: InputSplit, column: str, longest: int) -> Iterator[str]:
    for n, line in enumerate(_read_lines(split, longest).split(b"\n")):
        if not line.strip():
            continue
        if len(line) > longest:
            raise line_too_long(split.label, _line_number(split, n), longest)
        try:
            yield text_of(line, column)
        except CorpusError as error:
            raise CorpusError(f"{_location(split, n)} {error}") from error


def _encoded(text: str, split: InputSplit, item: int, longest: int) -> bytes:
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise CorpusError(f"{split.label}: text {item + 1} of a split holds half a surrogate pair") from error
    if len(data) > longest:
        raise line_too_long(split.label, item + 1, longest)
    return data


def _location(split: InputSplit, item: int) -> str:
    if split.format in ("text", "jsonl"):
        return f"{split.label}: line {_line_number(split, item)}"
    return f"{split.label}: row {item + 1} of {f'row group {split.start}' if split.path else 'a batch'}"


def _line_number(split: InputSplit, line: int) -> int:
    """Convert the index of a line in its split, from 0, to its number in the file, from 1."""
    if split.data is not None:
        return split.first_line + line
    with open(split.path, "rb") as stream:
        before = stream.read(max(0, split.start - 1)).count(b"\n") + (1 if split.start else 0)
    return before + line + 1
