"""The compiled loops of `encoder`: cutting lines at blanks, deciding how a line ends, writing the stream of words."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from glovewire.common.runtime.compiled import compiled

from .string_table import Bytes, Ids, Longs

# Codes of a string: not tokenised yet, being tokenised, first of the codes that mean a list of words.
UNKNOWN, PENDING, LIST = -1, -2, -3
# Codes of a line's beginning or end before it is tokenised, and of none at all.
NONE, LAST, LINE, FIRST = -1, -2, -3, -4
# What a piece is made of.
CLOSING, SPACE, QUOTE = 1, 2, 4
_BLANK, _NEWLINE = 32, 10
_CLOSERS = np.isin(np.arange(256), [ord(character) for character in "])}>"])


class Chunks(NamedTuple):
    """Pieces between blanks: int64 (pieces,) twice, and the first piece of each line, int64 (lines + 1,)."""

    starts: Longs
    stops: Longs
    of_line: Longs


class Endings(NamedTuple):
    """For each line: the code of its beginning, the pieces taken singly, the code of its end; bytes of both texts."""

    first: Ids
    first_start: Longs
    first_stop: Longs
    from_piece: Longs
    to_piece: Longs
    last: Ids
    last_start: Longs
    last_stop: Longs


@compiled
def _split(data: Bytes, starts: Longs, stops: Longs, begins: Longs, ends: Longs, of_line: Longs) -> int:
    count = 0
    for line in range(len(starts)):
        of_line[line] = count
        at, stop = starts[line], stops[line]
        while at < stop:
            while at < stop and data[at] == _BLANK:
                at += 1
            if at == stop:
                break
            begins[count] = at
            while at < stop and data[at] != _BLANK:
                at += 1
            ends[count] = at
            count += 1
    of_line[len(starts)] = count
    return count


def split(data: Bytes, starts: Longs, stops: Longs) -> Chunks:
    """The pieces between blanks of the lines data[starts[n]:stops[n]]."""
    most = int((stops - starts + 1).sum()) // 2 + len(starts)
    begins, ends = np.empty(most, np.int64), np.empty(most, np.int64)
    of_line = np.empty(len(starts) + 1, np.int64)
    count = _split(data, starts, stops, begins, ends, of_line)
    return Chunks(begins[:count], ends[:count], of_line)


@compiled
def claim_unknown(ids: Ids, rows: Longs, out: Longs) -> int:
    """Write the distinct ids whose code is UNKNOWN to `out`, mark them PENDING; how many."""
    count = 0
    for n in range(len(ids)):
        if rows[ids[n], 0] == UNKNOWN:
            rows[ids[n], 0] = PENDING
            out[count] = ids[n]
            count += 1
    return count


def split_words(text: bytes) -> tuple[Bytes, Longs, Longs]:
    """The words of a text that blanks separate: its bytes, where each word starts and stops."""
    data = np.frombuffer(text, np.uint8)
    words = split(data, np.zeros(1, np.int64), np.array([len(text)]))
    return data, words.starts, words.stops


@compiled
def _ascii_flags(data: Bytes, bounds: Longs, closers: npt.NDArray[np.bool_], out: Bytes) -> None:
    for n in range(len(out)):
        closing = True
        for at in range(bounds[n], bounds[n + 1]):
            closing = closing and closers[data[at]]
        out[n] = CLOSING if closing else 0


def ascii_flags(data: Bytes, bounds: Longs) -> Bytes:
    """Flags of strings that hold neither white space nor quotation marks nor other scripts; uint8 (strings,)."""
    out = np.empty(len(bounds) - 1, np.uint8)
    _ascii_flags(data, bounds, _CLOSERS, out)
    return out


def no_endings(chunks: Chunks) -> Endings:
    """Every piece of every line taken singly."""
    lines = len(chunks.of_line) - 1
    zero = np.zeros((4, lines), np.int64)
    none = np.full((2, lines), NONE, np.int32)
    return Endings(
        none[0], zero[0], zero[1], chunks.of_line[:-1].copy(), chunks.of_line[1:].copy(), none[1], zero[2], zero[3]
    )


@compiled
def decide(data: Bytes, starts: Longs, stops: Longs, chunks: Chunks, ids: Ids, flags: Bytes, endings: Endings) -> None:
    """Fill `endings`: which pieces of each line may be taken singly, and which text at its ends may not."""
    for line in range(len(starts)):
        begin, end = chunks.of_line[line], chunks.of_line[line + 1]
        if begin == end:
            continue
        k = end - 1
        while k > begin and flags[ids[k]] & CLOSING:
            k -= 1
        whole = k == begin
        for piece in range(begin, k):
            whole = whole or flags[ids[piece]] & SPACE != 0
        endings.last_stop[line] = stops[line]
        if whole:
            endings.from_piece[line] = endings.to_piece[line] = begin
            endings.last[line], endings.last_start[line] = LINE, starts[line]
            continue
        endings.to_piece[line] = k
        endings.last[line], endings.last_start[line] = LAST, chunks.starts[k]
        if flags[ids[begin]] & QUOTE and data[starts[line]] != _BLANK:
            endings.first[line] = FIRST
            endings.first_start[line], endings.first_stop[line] = chunks.starts[begin], chunks.stops[begin]
            endings.from_piece[line] = begin + 1


@compiled
def _put_list(code: np.int64, bounds: Longs, words: Ids, rows: Longs, place: int, out: Ids, size: int) -> int:
    """Write the words of one code to `out` at `size` and count them; the new size."""
    start, stop = 0, 1
    if code < 0:
        start, stop = bounds[LIST - code], bounds[LIST - code + 1]
    for at in range(start, stop):
        word = code if code >= 0 else np.int64(words[at])
        if rows[word, 1] == 0:
            rows[word, 2] = place + size
        rows[word, 1] += 1
        out[size] = word + 1
        size += 1
    return size


@compiled
def emit(ids: Ids, rows: Longs, endings: Endings, lists: Any, place: int, out: Ids) -> int:
    """Write each line's words and a 0, and count them; the length of the stream."""
    bounds, words = lists
    size = 0
    for line in range(len(endings.first)):
        if endings.first[line] != NONE:
            size = _put_list(np.int64(endings.first[line]), bounds, words, rows, place, out, size)
        for piece in range(endings.from_piece[line], endings.to_piece[line]):
            code = rows[ids[piece], 0]
            if code < 0:
                size = _put_list(code, bounds, words, rows, place, out, size)
                continue
            if rows[code, 1] == 0:
                rows[code, 2] = place + size
            rows[code, 1] += 1
            out[size] = code + 1
            size += 1
        if endings.last[line] != NONE:
            size = _put_list(np.int64(endings.last[line]), bounds, words, rows, place, out, size)
        out[size] = 0
        size += 1
    return size


@compiled
def join_lines(data: Bytes, bounds: Longs, numbers: Longs, out: Bytes) -> int:
    """Copy the strings of `numbers` >= 0 and a newline for each -1; the bytes written."""
    size = 0
    for n in range(len(numbers)):
        if numbers[n] < 0:
            out[size] = _NEWLINE
            size += 1
            continue
        for at in range(bounds[n], bounds[n + 1]):
            out[size] = data[at]
            size += 1
    return size
