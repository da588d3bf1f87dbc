"""Split lines at blanks, decide how a line ends, write the stream of words: compiled loops of `encoder`."""

from typing import Any, NamedTuple

import numpy as np

from glovewire.common.array_types import Bytes, Ids, Indices
from glovewire.common.runtime.compiled import compiled

from .ascii_tokens import CLOSING_BYTES

# Codes of a string: not tokenised yet, being tokenised, and the first of the codes that stand for a list of words.
UNKNOWN, PENDING, LIST = -1, -2, -3
# Codes of a line's beginning or end before it is tokenised: nothing there, an end, a whole line, a beginning.
NONE, LAST, LINE, FIRST = -1, -2, -3, -4
# Flags of a piece: only closing marks; holds white space; begins with a quotation mark.
CLOSING, SPACE, QUOTE = 1, 2, 4
_BLANK, _NEWLINE = 32, 10


class Chunks(NamedTuple):
    """Pieces between blanks: their bounds, int64 (pieces,), and the first piece of each line, int64 (lines + 1,)."""

    starts: Indices
    stops: Indices
    of_line: Indices


class Endings(NamedTuple):
    """Per line: code and bounds of its beginning, range of pieces looked up singly, code and bounds of its end."""

    first: Ids
    first_start: Indices
    first_stop: Indices
    from_piece: Indices
    to_piece: Indices
    last: Ids
    last_start: Indices
    last_stop: Indices


@compiled
def _split(data: Bytes, starts: Indices, stops: Indices, begins: Indices, ends: Indices, of_line: Indices) -> int:
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


def split(data: Bytes, starts: Indices, stops: Indices) -> Chunks:
    """Return the pieces between blanks of the lines data[starts[n]:stops[n]]."""
    most = int((stops - starts + 1).sum()) // 2 + len(starts)
    begins, ends = np.empty(most, np.int64), np.empty(most, np.int64)
    of_line = np.empty(len(starts) + 1, np.int64)
    count = _split(data, starts, stops, begins, ends, of_line)
    return Chunks(begins[:count], ends[:count], of_line)


@compiled
def claim_unknown(ids: Ids, rows: Indices, out: Indices) -> int:
    """Write the distinct ids whose code is UNKNOWN to `out`, mark them PENDING, and return their number."""
    count = 0
    for n in range(len(ids)):
        if rows[ids[n], 0] == UNKNOWN:
            rows[ids[n], 0] = PENDING
            out[count] = ids[n]
            count += 1
    return count


def split_words(text: bytes) -> tuple[Bytes, Indices, Indices]:
    """Return the bytes of a text whose words are separated by blanks, and where each word starts and stops."""
    data = np.frombuffer(text, np.uint8)
    words = split(data, np.zeros(1, np.int64), np.array([len(text)]))
    return data, words.starts, words.stops


@compiled
def _ascii_flags(data: Bytes, bounds: Indices, out: Bytes) -> None:
    for n in range(len(out)):
        closing = True
        for at in range(bounds[n], bounds[n + 1]):
            closing = closing and CLOSING_BYTES[data[at]]
        out[n] = CLOSING if closing else 0


def ascii_flags(data: Bytes, bounds: Indices) -> Bytes:
    """Return the flags of ASCII strings without white space and quotation marks; uint8 (strings,)."""
    out = np.empty(len(bounds) - 1, np.uint8)
    _ascii_flags(data, bounds, out)
    return out


def no_endings(chunks: Chunks) -> Endings:
    """Return endings with which every piece of every line is looked up singly."""
    lines = len(chunks.of_line) - 1
    zero, none = np.zeros((4, lines), np.int64), np.full((2, lines), NONE, np.int32)
    first, last = chunks.of_line[:-1].copy(), chunks.of_line[1:].copy()
    return Endings(none[0], zero[0], zero[1], first, last, none[1], zero[2], zero[3])


@compiled
def decide(
    data: Bytes, starts: Indices, stops: Indices, chunks: Chunks, ids: Ids, flags: Bytes, endings: Endings
) -> None:
    """Fill `endings`: which pieces of each line are looked up singly, and which text at its ends is tokenised apart."""
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
def _put_list(code: np.int64, bounds: Indices, words: Ids, rows: Indices, place: int, out: Ids, size: int) -> int:
    """Write the words of one code to `out` at `size`, count them, and return the new size."""
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
def emit(ids: Ids, rows: Indices, endings: Endings, lists: Any, place: int, out: Ids) -> int:
    """Write each line's words and a 0, count the words, and return the length of the stream."""
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
def join_lines(data: Bytes, bounds: Indices, numbers: Indices, out: Bytes) -> int:
    """Write the strings of `numbers` >= 0 and a newline for each -1, and return the number of bytes."""
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
