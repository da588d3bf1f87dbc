"""Split lines at blanks, decide how a line ends, write the stream of words: compiled loops of `encoder`."""

from typing import Any, NamedTuple

import numpy as np

from glovewire.common.array_types import Bytes, Ids, Indices
from glovewire.common.runtime.compiled import compiled

# Codes of a string: not tokenised yet, being tokenised, and the first of the codes that stand for a list of words.
UNKNOWN, PENDING, LIST = -1, -2, -3
# Codes of a line's beginning or end before it is tokenised: none, an end, a whole line, a beginning.
NONE, LAST, LINE, FIRST = -1, -2, -3, -4
# Flags of a piece: only closing marks; holds white space; begins with a quotation mark.
CLOSING, SPACE, QUOTE = 1, 2, 4
# Contexts of a word: after the end of a sentence, inside one, after an ellipsis, after a word with a full stop. Bit
# 2 * context (+ 1: with a capital) of a row's traits says that the word was seen there.
BEGIN, MIDDLE, UNSURE, STOP = range(4)
AFTER_SHIFT, WORD = 8, 1 << 10
FINALS_SHIFT = 16
"""The bits of a row's traits from this one up count how often a word with a full stop ended a line."""
_BLANK, _FULL_STOP = 32, 46
_UPPER = np.array([chr(n).isupper() for n in range(0x800)])


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
def split(data: Bytes, starts: Indices, stops: Indices) -> Chunks:
    """Return the pieces between blanks of the lines data[starts[n]:stops[n]]."""
    most = (stops - starts + 1).sum() // 2 + len(starts)
    begins, ends = np.empty(most, np.int64), np.empty(most, np.int64)
    of_line = np.empty(len(starts) + 1, np.int64)
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
    return Chunks(begins[:count], ends[:count], of_line)


@compiled
def claim_unknown(ids: Ids, rows: Indices) -> Indices:
    """Return the distinct ids whose code is UNKNOWN, in order of appearance, and mark them PENDING."""
    out, count = np.empty(len(ids), np.int64), 0
    for n in range(len(ids)):
        if rows[ids[n], 0] == UNKNOWN:
            rows[ids[n], 0] = PENDING
            out[count] = ids[n]
            count += 1
    return out[:count]


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
def _is_upper(raw: Bytes, at: int) -> bool:
    """Return whether the character at `at` is an upper-case letter, up to U+07FF."""
    byte = raw[at]
    if byte < 128:
        return bool(65 <= byte <= 90)
    return bool(byte < 0xE0 and at + 1 < len(raw) and _UPPER[((byte & 31) << 6) | (raw[at + 1] & 63)])


@compiled
def _begins_word(byte: int) -> bool:
    return byte >= 128 or 97 <= (byte | 32) <= 122 or 48 <= byte <= 57


@compiled
def _put_word(
    word: Any, upper: Any, known: Any, rows: Indices, place: int, out: Ids, size: int, before: Any, pending: Any
) -> tuple[Any, Any]:
    """Write and count one word, as `emit` says; return its context and the new `pending`.

    `before` is the context of the word, recorded with its case if it is `known`; `pending` is the place of the word
    before it in `out` if that has a full stop, else -1.
    """
    if rows[word, 1] == 0:
        rows[word, 2] = place + size
    rows[word, 1] += 1
    if known:
        rows[word, 3] |= 1 << (2 * before + upper)
    if pending >= 0:
        out[pending] -= upper
    after = rows[word, 3] >> AFTER_SHIFT & 3
    out[size] = -2 * (word + 1) if after == STOP else word + 1
    return after, size if after == STOP else np.int64(-1)


@compiled
def _put_list(
    code: np.int64,
    lists: Any,
    raw: Bytes,
    start: int,
    stop: int,
    rows: Indices,
    place: int,
    out: Ids,
    size: int,
    before: int,
    pending: int,
) -> tuple[int, int, int]:
    """Write the words of one code, which stands for raw[start:stop], as `emit` does a single word.

    Only the first word that begins with a letter or a digit has a known case. Returns the new size, context, pending.
    """
    bounds, words = lists
    first, last = 0, 1
    if code < 0:
        first, last = bounds[LIST - code], bounds[LIST - code + 1]
    while start < stop and not _begins_word(raw[start]):
        start += 1
    upper = np.int64(start < stop and _is_upper(raw, start))
    known = True
    for at in range(first, last):
        word = code if code >= 0 else np.int64(words[at])
        is_word = rows[word, 3] & WORD != 0
        here = upper if is_word and known else 0
        before, pending = _put_word(word, here, known or not is_word, rows, place, out, size, before, pending)
        known = known and not is_word
        size += 1
    return size, before, pending


@compiled
def emit(
    ids: Ids, raw: Bytes, starts: Indices, rows: Indices, endings: Endings, lists: Any, place: int, out: Ids
) -> int:
    """Write each line's words and a 0, count the words, and return the length of the stream.

    A word w with a full stop at its end is written as -2 * w, less 1 if the next word begins with a capital in `raw`.
    Each word's row records the contexts (see `word_traits`) in which it occurs with and without a capital.
    """
    size, pending = 0, -1
    for line in range(len(endings.first)):
        before = BEGIN
        if endings.first[line] != NONE:
            code, start, stop = np.int64(endings.first[line]), endings.first_start[line], endings.first_stop[line]
            size, before, pending = _put_list(code, lists, raw, start, stop, rows, place, out, size, before, pending)
        for piece in range(endings.from_piece[line], endings.to_piece[line]):
            code = rows[ids[piece], 0]
            start = starts[piece]
            if code < 0:
                stop = starts[piece + 1] if piece + 1 < len(starts) else len(raw)
                size, before, pending = _put_list(
                    code, lists, raw, start, stop, rows, place, out, size, before, pending
                )
                continue
            upper = np.int64(_is_upper(raw, start))
            before, pending = _put_word(code, upper, True, rows, place, out, size, before, pending)
            size += 1
        if endings.last[line] != NONE:
            code, start, stop = np.int64(endings.last[line]), endings.last_start[line], endings.last_stop[line]
            size, before, pending = _put_list(code, lists, raw, start, stop, rows, place, out, size, before, pending)
        if pending >= 0 and pending == size - 1:
            rows[-out[pending] // 2 - 1, 3] += 1 << FINALS_SHIFT
        out[size] = 0
        size += 1
    return size


@compiled
def word_traits(data: Bytes, bounds: Indices, out: Indices) -> None:
    """Write the traits of each string as a word: WORD, and from bit AFTER_SHIFT up the context of the next word."""
    for n in range(len(out)):
        start, stop = bounds[n], bounds[n + 1]
        last = data[stop - 1] if stop > start else np.uint8(0)
        after = MIDDLE
        if last == _FULL_STOP:
            after = BEGIN if stop - start == 1 else (UNSURE if data[stop - 2] == _FULL_STOP else STOP)
        elif stop - start == 1 and (last == 33 or last == 63):
            after = BEGIN
        out[n] = after << AFTER_SHIFT | (WORD if stop > start and _begins_word(data[start]) else 0)
