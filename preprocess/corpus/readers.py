"""Blocks to batches of lines: what a worker process does to get its text.

A batch is lower-cased (ASCII only, the rest later) UTF-8 and where its lines begin and end. Faults in the text are
found here or by the encoder and named with file and line. Nothing is tokenised here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from glovewire.common.errors import CorpusError
from glovewire.common.runtime.compiled import compiled

from ..tokens.string_table import Bytes, Longs, packed
from .parquet import one_line, open_parquet
from .splits import Block, too_long

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet

_BATCH_BYTES = 1 << 19
_PARQUET_ROWS = 1024
_BOM = b"\xef\xbb\xbf"
_NEWLINE = 10


@dataclass(frozen=True)
class Batch:
    """Lines: text[starts[n]:stops[n]]; `first_item` is the place of the first one in its block."""

    text: bytes
    starts: Longs
    stops: Longs
    first_item: int


def batches(block: Block, column: str, longest: int) -> Iterator[Batch]:
    """The lines of a block, a moderate number at a time; CorpusError where it cannot be read."""
    if block.form == "parquet":
        strings = _parquet(block, column)
    elif block.form == "items":
        strings = _items(block)
    elif block.form == "jsonl":
        strings = _jsonl(block, column, longest)
    else:
        yield from _text(block, longest)
        return
    yield from _together(strings, block, longest)


def fault(block: Block, batch: Batch, reason: str) -> CorpusError:
    """The first line of the batch that is not text, as an error that names it."""
    for n, (start, stop) in enumerate(zip(batch.starts, batch.stops, strict=True)):
        line = batch.text[start:stop]
        try:
            line.decode()
        except UnicodeDecodeError:
            return CorpusError(f"{_where(block, batch.first_item + n)} is not UTF-8 text")
        if b"\0" in line:
            return CorpusError(f"{_where(block, batch.first_item + n)} holds a NUL byte: not text")
    return CorpusError(f"{block.label} cannot be tokenised: {reason}")


def _text(block: Block, longest: int) -> Iterator[Batch]:
    data = _bytes(block, longest).lower()
    at = len(_BOM) if _is_beginning(block) and data.startswith(_BOM) else 0
    item = 0
    while at < len(data):
        stop = data.rfind(b"\n", at, at + _BATCH_BYTES) + 1
        if stop == 0:
            stop = (data.find(b"\n", at) + 1) or len(data)
        text = data[at:stop]
        starts, stops = _lines(text)
        if int((stops - starts).max()) > longest:
            raise too_long(block.label, _line_number(block, item + int((stops - starts).argmax())), longest)
        yield Batch(text, starts, stops, item)
        item += len(starts)
        at = stop


def _is_beginning(block: Block) -> bool:
    return block.first_line == 1 if block.data is not None else block.start == 0


def _bytes(block: Block, longest: int) -> bytes:
    """The whole lines that begin in the block."""
    if block.data is not None:
        return block.data
    try:
        with open(block.path, "rb") as stream:
            stream.seek(max(0, block.start - 1))
            data = stream.read(block.stop - max(0, block.start - 1))
            begin = data.find(b"\n", 0, -1) + 1 if block.start else 0
            if block.start and begin == 0:
                return b""
            if not data.endswith(b"\n"):
                data += stream.readline(longest + 1)
            return data[begin:]
    except OSError as error:
        raise CorpusError(f"{block.label} cannot be read: {error.strerror or error}") from error


@compiled
def _find_lines(data: Bytes, starts: Longs, stops: Longs) -> None:
    line, start = 0, 0
    for at in range(len(data)):
        if data[at] == _NEWLINE:
            starts[line], stops[line] = start, at
            line, start = line + 1, at + 1
    if start < len(data):
        starts[line], stops[line] = start, len(data)


def _lines(text: bytes) -> tuple[Longs, Longs]:
    count = text.count(b"\n") + (not text.endswith(b"\n"))
    starts, stops = np.empty(count, np.int64), np.empty(count, np.int64)
    _find_lines(np.frombuffer(text, np.uint8), starts, stops)
    return starts, stops


def _jsonl(block: Block, column: str, longest: int) -> Iterator[str]:
    data = _bytes(block, longest)
    data = data.removeprefix(_BOM) if _is_beginning(block) else data
    for n, line in enumerate(data.split(b"\n")):
        if line.strip():
            yield _json_text(line, column, block, n)


def _json_text(line: bytes, column: str, block: Block, n: int) -> str:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise CorpusError(f"{_where(block, n)} is not JSON: {one_line(error)}") from error
    if not isinstance(row, dict) or not isinstance(row.get(column), str):
        raise CorpusError(f"{_where(block, n)} has no text in {column!r} (name another with --text-column)")
    return str(row[column])


def _parquet(block: Block, column: str) -> Iterator[str]:
    import pyarrow as pa

    with open_parquet(block.path, block.label) as parquet:
        names = parquet.schema_arrow.names
        if column not in names:
            raise CorpusError(f"{block.label} has no column {column!r}; it has {', '.join(names)} (--text-column)")
        left = block.items or 0
        try:
            groups = range(block.start, block.stop)
            for rows in parquet.iter_batches(_PARQUET_ROWS, row_groups=groups, columns=[column]):
                texts = _strings(rows.column(0), block, column)[:left]
                left -= len(texts)
                yield from texts
        except (pa.ArrowException, OSError) as error:
            raise CorpusError(f"{block.label} is damaged: {one_line(error)}") from error


def _strings(column: pa.Array, block: Block, name: str) -> list[str]:
    import pyarrow as pa

    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)):
        raise CorpusError(f"{block.label}: column {name!r} holds {kind}, not text (--text-column)")
    try:
        return ["" if text is None else text for text in column.to_pylist()]
    except UnicodeDecodeError as error:
        raise CorpusError(f"{block.label}: column {name!r} is not UTF-8 text") from error


def _items(block: Block) -> Iterator[str]:
    at, data = 0, block.data or b""
    for length in block.lengths:
        yield data[at : at + length].decode()
        at += length


def _together(strings: Iterator[str], block: Block, longest: int) -> Iterator[Batch]:
    held: list[bytes] = []
    size, item = 0, 0
    for text in strings:
        held.append(_encoded(text, block, item + len(held), longest))
        size += len(held[-1])
        if size >= _BATCH_BYTES:
            yield _batch(held, item)
            item, size, held = item + len(held), 0, []
    if held:
        yield _batch(held, item)


def _encoded(text: str, block: Block, item: int, longest: int) -> bytes:
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise CorpusError(f"{block.label}: text {item + 1} of a block holds half a surrogate pair") from error
    if len(data) > longest:
        raise too_long(block.label, item + 1, longest)
    return data.lower()


def _batch(held: list[bytes], item: int) -> Batch:
    _, starts, stops = packed(held)
    return Batch(b"".join(held), starts, stops, item)


def _where(block: Block, item: int) -> str:
    if block.form in ("text", "jsonl"):
        return f"{block.label}: line {_line_number(block, item)}"
    return f"{block.label}: row {item + 1} of {'row group ' + str(block.start) if block.path else 'a batch'}"


def _line_number(block: Block, line: int) -> int:
    """The number in its file, from 1, of a line of the block, from 0."""
    if block.data is not None:
        return block.first_line + line
    with open(block.path, "rb") as stream:
        before = stream.read(max(0, block.start - 1)).count(b"\n") + (1 if block.start else 0)
    return before + line + 1
