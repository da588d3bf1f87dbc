"""Tokenise plain ASCII pieces in compiled code: the fast path in front of `nltk_tokens`.

The loops find where the tokens of a piece begin and end. Pieces with other scripts, quotation marks, runs of marks or
contractions are left to `nltk_tokens`, which defines the tokens; tests compare the two modules.
"""

from string import ascii_letters, digits

import numpy as np

from glovewire.common.array_types import Bytes, Indices
from glovewire.common.runtime.compiled import compiled

# Classes of bytes: a mark of class ALONE is a token by itself, COLON is `:` or `,`, OTHER is left to `nltk_tokens`.
_OTHER, _LETTER, _DIGIT, _MARK, _ALONE, _COLON, _QUOTE = range(7)
_HYPHEN, _STOP, _APOSTROPHE = 45, 46, 39

_KIND_OF = {
    character: kind
    for characters, kind in (
        (ascii_letters, _LETTER),
        (digits, _DIGIT),
        ("-./\\|=+_^~", _MARK),
        (";@#$%&?!*()[]{}<>", _ALONE),
        (":,", _COLON),
        ("'", _QUOTE),
    )
    for character in characters
}
_KINDS = np.array([_KIND_OF.get(chr(byte), _OTHER) for byte in range(256)], np.uint8)
CLOSING_BYTES = np.isin(np.arange(256), [ord(character) for character in "])}>"])
_OPENING = np.isin(np.arange(256), [ord(character) for character in "([{<"])
_AFTER_CLITIC = np.isin(np.arange(256), [ord(character) for character in ",;:?!)]"])


@compiled
def _is_simple(data: Bytes, start: int, stop: int) -> bool:
    """Return whether the classes of single bytes determine the tokens; at most one apostrophe is allowed."""
    quotes = 0
    for at in range(start, stop):
        byte, kind = data[at], _KINDS[data[at]]
        quotes += kind == _QUOTE
        if kind == _OTHER or quotes > 1:
            return False
        if at + 1 < stop:
            after = data[at + 1]
            if kind == _COLON and _KINDS[after] == _COLON:
                return False
            # contractions (cannot, gimme, gotta ...) are all cut between two equal letters; NLTK decides such pieces
            if byte | 32 == after | 32 and (byte in (_HYPHEN, _STOP) or byte | 32 in (109, 110, 116)):
                return False
    return True


@compiled
def _clitic(data: Bytes, start: int, stop: int) -> tuple[int, int]:
    """Return where the clitic of a word (`'s`, `n't` ...) begins and ends, or (-1, -1); one mark may follow it."""
    quote = start
    while quote < stop and data[quote] != _APOSTROPHE:
        kind = _KINDS[data[quote]]
        if kind != _LETTER and kind != _DIGIT and data[quote] != _HYPHEN:
            return -1, -1
        quote += 1
    end = quote + 1
    while end < stop and _KINDS[data[end]] == _LETTER:
        end += 1
    if quote in (start, stop) or stop - end > 1 or (stop - end == 1 and not _AFTER_CLITIC[data[end]]):
        return -1, -1
    length = end - quote - 1
    first = data[quote + 1] if length >= 1 else np.uint8(0)
    second = data[quote + 2] if length == 2 else np.uint8(0)
    if length == 1 and first == 116 and data[quote - 1] == 110 and quote - 1 > start:
        return quote - 1, end
    short = length == 0 or (length == 1 and first in (115, 109, 100))
    long = (first == 108 and second == 108) or (first in (114, 118) and second == 101)
    if data[quote - 1] != _HYPHEN and (short or (length == 2 and long)):
        return quote, end
    return -1, -1


@compiled
def _split_piece(data: Bytes, start: int, stop: int, begins: Indices, ends: Indices, count: int) -> int:
    """Write the bounds of a piece's tokens and return the new `count`, or -1 if NLTK must decide."""
    if not _is_simple(data, start, stop):
        return -1
    at = start
    for look in range(start, stop):
        if data[look] == _APOSTROPHE:
            clitic, end = _clitic(data, start, stop)
            if clitic < 0:
                return -1
            begins[count], ends[count] = start, clitic
            begins[count + 1], ends[count + 1] = clitic, end
            count += 2
            at = end
            break
    token = at
    while at < stop:
        kind = _KINDS[data[at]]
        digit_next = at + 1 < stop and _KINDS[data[at + 1]] == _DIGIT
        if kind == _ALONE or (kind == _COLON and not digit_next):
            if token < at:
                begins[count], ends[count] = token, at
                count += 1
            begins[count], ends[count] = at, at + 1
            count += 1
            token = at + 1
        at += 1
    if token < stop:
        begins[count], ends[count] = token, stop
        count += 1
    return count


@compiled
def _is_bare(data: Bytes, start: int, stop: int) -> bool:
    """Return whether a word ends in a letter or a digit and has no apostrophe."""
    if start >= stop or (_KINDS[data[stop - 1]] != _LETTER and _KINDS[data[stop - 1]] != _DIGIT):
        return False
    return _APOSTROPHE not in data[start:stop]


@compiled
def _split_pieces(
    data: Bytes, bounds: Indices, at_end: bool, glued: bool, begins: Indices, ends: Indices, lengths: Indices
) -> int:
    count = 0
    for n in range(len(lengths)):
        start, stop = bounds[n], bounds[n + 1]
        body = stop
        if at_end:
            while body > start and CLOSING_BYTES[data[body - 1]]:
                body -= 1
            if body > start and data[body - 1] == _STOP:
                body -= 1
        lengths[n] = -1
        if body > start and at_end and (data[body - 1] == _STOP or _OPENING[data[body - 1]]):
            continue
        after = _split_piece(data, start, body, begins, ends, count)
        if after < 0:
            continue
        if glued and body < stop and data[body] == _STOP and after > count and _is_bare(data, begins[after - 1], body):
            body += 1
            ends[after - 1] = body
        for at in range(body, stop):  # the full stop and closing marks
            begins[after], ends[after] = at, at + 1
            after += 1
        lengths[n] = after - count
        count = after
    return count


def split_ascii(data: Bytes, bounds: Indices, *, at_end: bool, glued: bool) -> tuple[Indices, Indices, Indices]:
    """Tokenise the pieces data[bounds[n]:bounds[n + 1]]; with `at_end`, split off the full stop that ends a line.

    With `glued`, a word keeps that full stop instead.
    Returns where tokens start and stop, int64 (tokens,) twice, and the number of tokens of each piece, int64
    (pieces,): -1 where NLTK must decide.
    """
    most = int(bounds[-1] - bounds[0])
    begins, ends = np.empty(most + 1, np.int64), np.empty(most + 1, np.int64)
    lengths = np.empty(len(bounds) - 1, np.int64)
    count = _split_pieces(data, bounds, at_end, glued, begins, ends, lengths)
    return begins[:count], ends[:count], lengths
