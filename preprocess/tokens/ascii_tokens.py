"""The compiled short cut of the tokeniser: ASCII pieces whose tokens are plainly their parts.

It says where the tokens of a piece begin and end, by the same rules as `tokens`, or that `tokens` must tell: other
scripts, quotation marks, runs of marks, letters cut in two. `tokens` stays the definition; tests compare the two.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from glovewire.common.runtime.compiled import compiled

from .string_table import Bytes, Longs

# What a byte is: a letter or digit, an ordinary mark, a mark that is a token alone, one of `:` and `,`; all else is
# for `tokens`.
_OTHER, _LETTER, _DIGIT, _MARK, _ALONE, _COLON, _QUOTE = range(7)
_HYPHEN, _STOP, _APOSTROPHE = 45, 46, 39


def _kinds() -> Bytes:
    kinds = np.full(256, _OTHER, np.uint8)
    for characters, kind in (
        ("abcdefghijklmnopqrstuvwxyz", _LETTER),
        ("0123456789", _DIGIT),
        ("-./\\|=+_^~", _MARK),
        (";@#$%&?!*()[]{}<>", _ALONE),
        (":,", _COLON),
        ("'", _QUOTE),
    ):
        kinds[[ord(character) for character in characters]] = kind
    return kinds


_KINDS = _kinds()
_CLOSING = np.isin(np.arange(256), [ord(character) for character in "])}>"])
_OPENING = np.isin(np.arange(256), [ord(character) for character in "([{<"])
_AFTER_CLITIC = np.isin(np.arange(256), [ord(character) for character in ",;:?!)]"])


@compiled
def _is_simple(data: Bytes, start: int, stop: int, kinds: Bytes) -> bool:
    """Whether the tokens are found by looking at single bytes; there may be one apostrophe."""
    quotes = 0
    for at in range(start, stop):
        byte, kind = data[at], kinds[data[at]]
        quotes += kind == _QUOTE
        if kind == _OTHER or quotes > 1:
            return False
        if at + 1 < stop:
            after = data[at + 1]
            if kind == _COLON and kinds[after] == _COLON:
                return False
            # all contractions (cannot, gimme, gotta ...) are cut between two equal letters: `tokens` looks closer
            if byte == after and (byte in (_HYPHEN, _STOP) or byte in (109, 110, 116)):
                return False
    return True


@compiled
def _clitic(data: Bytes, start: int, stop: int, kinds: Bytes, after: npt.NDArray[np.bool_]) -> tuple[int, int]:
    """Where the clitic of a word begins and ends (`'s`, `n't` ...; perhaps one mark follows), or (-1, -1)."""
    quote = start
    while quote < stop and data[quote] != _APOSTROPHE:
        kind = kinds[data[quote]]
        if kind != _LETTER and kind != _DIGIT and data[quote] != _HYPHEN:
            return -1, -1
        quote += 1
    end = quote + 1
    while end < stop and kinds[data[end]] == _LETTER:
        end += 1
    if quote in (start, stop) or stop - end > 1 or (stop - end == 1 and not after[data[end]]):
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
def _cut_one(
    data: Bytes,
    start: int,
    stop: int,
    kinds: Bytes,
    after_clitic: npt.NDArray[np.bool_],
    begins: Longs,
    ends: Longs,
    count: int,
) -> int:
    """Write the tokens of a piece; their new number, or -1."""
    if not _is_simple(data, start, stop, kinds):
        return -1
    at = start
    for look in range(start, stop):
        if data[look] == _APOSTROPHE:
            clitic, end = _clitic(data, start, stop, kinds, after_clitic)
            if clitic < 0:
                return -1
            begins[count], ends[count] = start, clitic
            begins[count + 1], ends[count + 1] = clitic, end
            count += 2
            at = end
            break
    token = at
    while at < stop:
        kind = kinds[data[at]]
        digit_next = at + 1 < stop and kinds[data[at + 1]] == _DIGIT
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
def _cut(
    data: Bytes,
    bounds: Longs,
    at_end: bool,
    tables: tuple[Bytes, npt.NDArray[np.bool_], npt.NDArray[np.bool_], npt.NDArray[np.bool_]],
    begins: Longs,
    ends: Longs,
    lengths: Longs,
) -> int:
    kinds, closing, opening, after_clitic = tables
    count = 0
    for n in range(len(lengths)):
        start, stop = bounds[n], bounds[n + 1]
        body = stop
        if at_end:
            while body > start and closing[data[body - 1]]:
                body -= 1
            if body > start and data[body - 1] == _STOP:
                body -= 1
        lengths[n] = -1
        if body > start and at_end and (data[body - 1] == _STOP or opening[data[body - 1]]):
            continue
        after = _cut_one(data, start, body, kinds, after_clitic, begins, ends, count)
        if after < 0:
            continue
        for at in range(body, stop):  # the full stop and the closing marks
            begins[after], ends[after] = at, at + 1
            after += 1
        lengths[n] = after - count
        count = after
    return count


def cut(data: Bytes, bounds: Longs, *, at_end: bool) -> tuple[Longs, Longs, Longs]:
    """The tokens of the pieces data[bounds[n]:bounds[n + 1]], standing inside a line or at its end.

    Where they start and stop, int64 (tokens,) twice, and the number of each piece's, int64 (pieces,): -1 where
    `tokens` must tell.
    """
    most = int(bounds[-1] - bounds[0]) if len(bounds) else 0
    begins, ends = np.empty(most + 1, np.int64), np.empty(most + 1, np.int64)
    lengths = np.empty(len(bounds) - 1, np.int64)
    tables = (_KINDS, _CLOSING, _OPENING, _AFTER_CLITIC)
    count = _cut(data, bounds, at_end, tables, begins, ends, lengths)
    return begins[:count], ends[:count], lengths
