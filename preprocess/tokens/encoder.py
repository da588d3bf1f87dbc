"""Encode text as a stream of word numbers, with a memo of the tokens of every piece of text.

A line is split into pieces at blanks. Let k be the last piece that holds more than closing marks: the pieces before k
are looked up in the memo one by one, and the rest of the line, from k on, as one string. A line with one piece only, or
with other white space before k, is tokenised whole. Each distinct piece is tokenised once. No I/O.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from glovewire.common.array_types import Array, Bytes, Ids, Indices

from . import encoder_kernels as kernels
from .ascii_tokens import split_ascii
from .nltk_tokens import CLOSERS, CONTRACTIONS, QUOTES, NltkTokenizer, Tokenizer
from .string_table import StringTable, packed, padded

_MAX_MEMO_BYTES = 64
"""Ends of lines, and whole lines, that are longer than this are not memoised, because they rarely repeat."""
_MIN_CAPACITY = 1 << 12


@dataclass(frozen=True)
class WordCounts:
    """Distinct words of a stream, with the count and the first place of their occurrences.

    `numbers`, `counts` and `first` (see Encoder.encode) are int64 (n,); `data` uint8 and `bounds` int64 (n + 1,) are
    the words in UTF-8, end to end.
    """

    numbers: Indices
    counts: Indices
    first: Indices
    data: Bytes
    bounds: Indices


class _Memo:
    """Table of strings and their tokens.

    `rows` is int64 (strings, 3): the code, the count of the string as a word, and the place of its first occurrence. A
    code >= 0 is the index of a single word; a code <= LIST stands for word list LIST - code. A row fits a cache line.
    """

    def __init__(self) -> None:
        self.table = StringTable()
        self.rows = np.empty((0, 3), np.int64)

    @property
    def nbytes(self) -> int:
        return self.table.nbytes + self.rows.nbytes

    def intern(self, data: Bytes, starts: Indices, stops: Indices) -> Ids:
        """Return the numbers of the strings data[starts[n]:stops[n]]; add a row for each new string."""
        ids = self.table.intern(data, starts, stops)
        self.rows = _extended(self.rows, self.table.count, (kernels.UNKNOWN, 0, 0))
        return ids

    def claim_unknown(self, ids: Ids) -> Indices:
        """Return the distinct ids whose code is unknown, in order of appearance, and mark them as pending."""
        out = np.empty(len(ids), np.int64)
        return out[: kernels.claim_unknown(ids, self.rows, out)]


class _WordLists:
    """Lists of words, stored end to end in one array."""

    def __init__(self) -> None:
        self.count, self.used = 0, 0
        self.bounds = np.zeros(1 << 12, np.int64)
        self.words = np.zeros(1 << 12, np.int32)

    def append(self, words: Ids, lengths: Indices) -> Ids:
        """Split `words` into lists of the given `lengths`, add these lists, and return their codes."""
        codes = (kernels.LIST - self.count - np.arange(len(lengths))).astype(np.int32)
        self.bounds = _extended(self.bounds, self.count + len(lengths) + 1, 0)
        self.words = _extended(self.words, self.used + len(words), 0)
        self.words[self.used : self.used + len(words)] = words
        self.bounds[self.count + 1 : self.count + 1 + len(lengths)] = self.used + np.cumsum(lengths)
        self.count, self.used = self.count + len(lengths), self.used + len(words)
        return codes

    def truncate(self, count: int) -> None:
        """Keep the first `count` lists only."""
        self.count, self.used = count, int(self.bounds[count])


class Encoder:
    """Tokenises batches of lines into word numbers, and counts words since the last `take_counts`."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ends: dict[int, Callable[[str], list[str]]] = {}
        """Functions that tokenise the ends of lines, by place; empty if tokens do not depend on a piece's place."""
        if isinstance(tokenizer, NltkTokenizer):
            self._ends = {kernels.LAST: tokenizer.last, kernels.LINE: tokenizer.line, kernels.FIRST: tokenizer.first}
        self.clear()

    @property
    def nbytes(self) -> int:
        """Return the memory of the memo and the counts, in bytes."""
        arrays = (self._flags, self._lists.bounds, self._lists.words)
        memos = (self._inside, *self._memos.values())
        return sum(array.nbytes for array in arrays) + sum(memo.nbytes for memo in memos)

    def clear(self) -> None:
        """Empty the memo; word numbers returned so far become invalid."""
        self._inside, self._lists = _Memo(), _WordLists()
        self._memos = {place: _Memo() for place in self._ends}
        self._flags = np.zeros(1 << 12, np.uint8)
        if self._ends:
            ids = self._inside.intern(*packed([word.encode() for word in CONTRACTIONS]))
            self._inside.rows[self._inside.claim_unknown(ids), 0] = self._codes([[w[:3], w[3:]] for w in CONTRACTIONS])

    def encode(self, text: bytes, starts: Indices, stops: Indices, place: int) -> Ids:
        """Return the words of the lines text[starts[n]:stops[n]], numbered from 1, with a 0 after each line; int32.

        `text` is UTF-8 with its ASCII letters lower-cased. `place` is the batch's place in the corpus: the first
        occurrence of a word is recorded as `place` + its index in the result. Raises UnicodeDecodeError for text that
        is not UTF-8 and NulByte for a NUL.
        """
        data = padded(np.frombuffer(text, np.uint8), stops)
        chunks = kernels.split(data, starts, stops)
        ids = self._inside.intern(data, chunks.starts, chunks.stops)
        self._resolve_inside(ids)
        kept = self._lists.count
        endings = kernels.no_endings(chunks)
        if self._ends:
            kernels.decide(data, starts, stops, chunks, ids, self._flags, endings)
            kept = self._resolve_ends(data, endings)
        out = np.empty(int((stops - starts).sum()) + len(starts), np.int32)
        lists = (self._lists.bounds, self._lists.words)
        size = kernels.emit(ids, self._inside.rows, endings, lists, place, out)
        self._lists.truncate(kept)
        return out[:size]

    def decode(self, ids: Ids) -> bytes:
        """Return a stream as UTF-8 text: words separated by blanks, one line per line."""
        numbers = ids.astype(np.int64) - 1
        data, bounds = self._inside.table.strings(np.maximum(numbers, 0), b" ")
        out = np.empty(len(data), np.uint8)
        return out[: kernels.join_lines(data, bounds, numbers, out)].tobytes()

    def take_counts(self) -> WordCounts:
        """Return the counts since the last call, in the order of word numbers, and reset them."""
        rows = self._inside.rows
        numbers = np.flatnonzero(rows[:, 1])
        data, bounds = self._inside.table.strings(numbers)
        counts = WordCounts(numbers + 1, rows[numbers, 1], rows[numbers, 2], data, bounds)
        rows[:, 1] = 0
        return counts

    def _resolve_inside(self, ids: Ids) -> None:
        fresh = self._inside.claim_unknown(ids)
        self._flags = _extended(self._flags, self._inside.table.count, 0)
        plain = self._inside.table.alphanumeric(fresh)
        self._inside.rows[fresh[plain], 0] = fresh[plain]
        rest = fresh[~plain]
        if self._ends:
            data, bounds = self._inside.table.strings(rest)
            self._flags[rest] = kernels.ascii_flags(data, bounds)
            rest = self._memoise_ascii(self._inside, rest, at_end=False)
        data, _ = self._inside.table.strings(rest, b" ")
        pieces = _decoded(data.tobytes()).split(" ")[:-1]
        self._flags[rest] = [_flags(piece) for piece in pieces]
        self._inside.rows[rest, 0] = self._codes(self._tokenizer.inside(pieces))

    def _resolve_ends(self, data: Bytes, endings: kernels.Endings) -> int:
        """Fill in the codes of every line's beginning and end; return the number of word lists to keep."""
        long: list[tuple[Ids, Indices, list[list[str]]]] = []
        for place, tokenize in self._ends.items():
            codes, begins, stops = endings[:3] if place == kernels.FIRST else endings[5:]
            lines = np.flatnonzero(codes == place)
            is_short = stops[lines] - begins[lines] <= _MAX_MEMO_BYTES
            short, others = lines[is_short], lines[~is_short]
            memo = self._memos[place]
            ids = memo.intern(data, begins[short], stops[short])
            fresh = memo.claim_unknown(ids)
            if place == kernels.LAST:
                fresh = self._memoise_ascii(memo, fresh, at_end=True)
            memo.rows[fresh, 0] = self._codes([tokenize(_decoded(memo.table.string(n))) for n in fresh])
            codes[short] = memo.rows[ids, 0]
            long.append((codes, others, [tokenize(_decoded(data[begins[n] : stops[n]].tobytes())) for n in others]))
        kept = self._lists.count
        for codes, lines, tokens in long:
            codes[lines] = self._codes(tokens)
        return kept

    def _memoise_ascii(self, memo: _Memo, ids: Indices, *, at_end: bool) -> Indices:
        """Memoise the strings that the fast path can tokenise, and return the ids of the others."""
        data, bounds = memo.table.strings(ids)
        begins, ends, lengths = split_ascii(data, bounds, at_end=at_end)
        done = lengths >= 0
        words = self._inside.intern(data, begins, ends)
        memo.rows[ids[done], 0] = self._codes_of(words, lengths[done])
        return ids[~done]

    def _codes(self, tokens: list[list[str]]) -> Ids:
        """Number the words of each list of tokens and return the code of each list."""
        text = " ".join([word for some in tokens for word in some]).encode()
        words = self._inside.intern(*kernels.split_words(text))
        return self._codes_of(words, np.array([len(some) for some in tokens], np.int64))

    def _codes_of(self, words: Ids, lengths: Indices) -> Ids:
        """Split `words` into lists of the given `lengths`, and return the code of each list, int32."""
        single = lengths == 1
        codes = np.empty(len(lengths), np.int32)
        codes[single] = words[np.cumsum(lengths)[single] - 1]
        codes[~single] = self._lists.append(words[np.repeat(~single, lengths)], lengths[~single])
        return codes


class NulByte(ValueError):
    """Error: the text contains a NUL byte."""


def _decoded(piece: bytes) -> str:
    if b"\0" in piece:
        raise NulByte
    text = piece.decode()
    return text if text.isascii() else text.lower()


def _flags(piece: str) -> int:
    flags = kernels.QUOTE if piece[0] in QUOTES else 0
    if not piece.isalnum():
        bare = piece.strip(CLOSERS)
        space = piece.split(None, 1)[:1] != [piece]
        if not bare or (space and all(mark in CLOSERS or mark.isspace() for mark in bare)):
            flags |= kernels.CLOSING
        flags |= kernels.SPACE if space else 0
    return flags


def _extended(array: Array, length: int, fill: Any) -> Array:
    """Return `array` if it has `length` elements, else a copy extended with `fill` to at least that many."""
    if length <= len(array):
        return array
    out = np.empty((max(length, 2 * len(array), _MIN_CAPACITY), *array.shape[1:]), array.dtype)
    out[: len(array)] = array
    out[len(array) :] = fill
    return out
