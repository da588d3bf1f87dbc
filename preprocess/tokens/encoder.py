"""Encode text as a stream of word numbers, with a memo of the tokens of every piece of text.

A line is split into pieces at blanks. Let k be the last piece that holds more than closing marks: the pieces before k
are looked up in the memo one by one, and the rest of the line, from k on, as one string. A line with one piece only, or
with other white space before k, is tokenised whole. Each distinct piece is tokenised once. No I/O.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from string import ascii_letters, ascii_uppercase, digits
from typing import Any

import numpy as np

from glovewire.common.array_types import Array, Bytes, Ids, Indices

from . import encoder_kernels as kernels
from .ascii_tokens import CLOSING_BYTES, split_ascii
from .nltk_tokens import CLOSERS, CLOSING_TOKENS, CONTRACTIONS, QUOTES, NltkTokenizer
from .string_table import StringTable, packed, padded
from .tokenizers import Tokenizer

_MAX_MEMO_BYTES = 64
"""Ends of lines, and whole lines, that are longer than this are not memoised, because they rarely repeat."""
_MIN_CAPACITY = 1 << 12
_PLAIN_BYTES = np.isin(np.arange(256), [ord(character) for character in ascii_letters + digits])
_NEW_ROW = (kernels.UNKNOWN, 0, 0, kernels.MIDDLE << kernels.AFTER_SHIFT)


@dataclass(frozen=True)
class WordCounts:
    """Distinct words of a stream, with the count and the first place of their occurrences.

    `numbers`, `counts`, `first` (see Encoder.encode) and `traits` (see `encoder_kernels`) are int64 (n,); `data` uint8
    and `bounds` int64 (n + 1,) are the words in UTF-8, end to end.
    """

    numbers: Indices
    counts: Indices
    first: Indices
    traits: Indices
    data: Bytes
    bounds: Indices


class _Memo:
    """Table of strings and their tokens.

    `rows` is int64 (strings, 4): the code, the count of the string as a word, the place of its first occurrence, its
    traits as a word (0 unless `traits`). A code >= 0 is the index of a single word; a code <= LIST stands for word list
    LIST - code. Two rows fit a cache line.
    """

    def __init__(self, *, traits: bool = False) -> None:
        self.table = StringTable()
        self.rows = np.empty((0, 4), np.int64)
        self._traits = traits

    @property
    def nbytes(self) -> int:
        return self.table.nbytes + self.rows.nbytes

    def intern(self, data: Bytes, starts: Indices, stops: Indices) -> Ids:
        """Return the numbers of the strings data[starts[n]:stops[n]]; add a row for each new string."""
        old = self.table.count
        ids = self.table.intern(data, starts, stops)
        self.rows = _extended(self.rows, self.table.count, _NEW_ROW)
        if self._traits and self.table.count > old:
            new = self.table.strings(np.arange(old, self.table.count))
            kernels.word_traits(*new, self.rows[old : self.table.count, 3])
        return ids


class _WordLists:
    """Lists of words, stored end to end in one array; the first `count` are kept, the rest may be overwritten."""

    def __init__(self) -> None:
        self.count = 0
        self.bounds = np.zeros(1 << 12, np.int64)
        self.words = np.zeros(1 << 12, np.int32)

    def append(self, words: Ids, lengths: Indices) -> Ids:
        """Split `words` into lists of the given `lengths`, add these lists, and return their codes."""
        codes = (kernels.LIST - self.count - np.arange(len(lengths))).astype(np.int32)
        used = int(self.bounds[self.count])
        self.bounds = _extended(self.bounds, self.count + len(lengths) + 1, 0)
        self.words = _extended(self.words, used + len(words), 0)
        self.words[used : used + len(words)] = words
        self.bounds[self.count + 1 : self.count + 1 + len(lengths)] = used + np.cumsum(lengths)
        self.count += len(lengths)
        return codes


class Encoder:
    """Tokenises batches of lines into word numbers, and counts words since the last `take_counts`.

    With `stops` (for `punkt`), words keep a full stop at the end of a line, and the stream marks every word that has
    one. `zero` writes the digits 0 to 9 as 0; `lowercase` applies to all scripts.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, stops: bool = False, lowercase: bool = True, zero: bool = False
    ) -> None:
        self._tokenizer, self._stops, self._lowercase = tokenizer, stops, lowercase
        source = (ascii_uppercase if lowercase else "") + (digits if zero else "")
        self._fold = bytes.maketrans(source.encode(), re.sub("[0-9]", "0", source.lower()).encode())
        self._ends: dict[int, Callable[[str], list[str]]] = {}
        """Functions that tokenise the ends of lines, by place; empty if tokens do not depend on a piece's place."""
        if isinstance(tokenizer, NltkTokenizer):
            last, line = (_glued(tokenizer.last), _glued(tokenizer.line)) if stops else (tokenizer.last, tokenizer.line)
            self._ends = {kernels.LAST: last, kernels.LINE: line, kernels.FIRST: tokenizer.first}
        self.clear()

    @property
    def nbytes(self) -> int:
        """Return the memory of the memo and the counts, in bytes."""
        arrays = (self._flags, self._lists.bounds, self._lists.words)
        memos = (self._inside, *self._memos.values())
        return sum(array.nbytes for array in arrays) + sum(memo.nbytes for memo in memos)

    def clear(self) -> None:
        """Empty the memo; word numbers returned so far become invalid."""
        self._inside, self._lists = _Memo(traits=self._stops), _WordLists()
        self._memos = {place: _Memo() for place in self._ends}
        self._flags = np.zeros(1 << 12, np.uint8)
        if self._ends:
            any_case = (product(*zip(word, word.upper(), strict=True)) for word in CONTRACTIONS)
            words = CONTRACTIONS if self._lowercase else ["".join(letters) for word in any_case for letters in word]
            ids = self._inside.intern(*packed([word.encode() for word in words]))
            self._inside.rows[ids, 0] = self._codes([[w[:3], w[3:]] for w in words])

    def encode(self, text: bytes, starts: Indices, stops: Indices, place: int) -> Ids:
        """Return the words of the lines text[starts[n]:stops[n]], numbered from 1, with a 0 after each line; int32.

        `text` is UTF-8. `place` is the batch's place in the corpus: the first occurrence of a word is recorded as
        `place` + its index in the result. A word with a full stop is marked, see `emit`. Raises UnicodeDecodeError for
        text that is not UTF-8 and NulByte for a NUL.
        """
        data = padded(np.frombuffer(text.translate(self._fold), np.uint8), stops)
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
        raw = np.frombuffer(text, np.uint8)
        size = kernels.emit(ids, raw, chunks.starts, self._inside.rows, endings, lists, place, out)
        self._lists.count = kept
        return out[:size]

    def take_counts(self) -> WordCounts:
        """Return the counts since the last call, in the order of word numbers, and reset them."""
        rows = self._inside.rows
        numbers = np.flatnonzero(rows[:, 1])
        data, bounds = self._inside.table.strings(numbers)
        count, first, traits = rows[numbers, 1:].T
        counts = WordCounts(numbers + 1, count, first, traits, data, bounds)
        rows[:, 1] = 0
        rows[:, 3] &= (1 << kernels.FINALS_SHIFT) - 1
        return counts

    def _decoded(self, piece: bytes) -> str:
        if b"\0" in piece:
            raise NulByte
        text = piece.decode()
        return text.lower() if self._lowercase and not text.isascii() else text

    def _resolve_inside(self, ids: Ids) -> None:
        fresh = kernels.claim_unknown(ids, self._inside.rows)
        self._flags = _extended(self._flags, self._inside.table.count, 0)
        plain = self._inside.table.consist_of(_PLAIN_BYTES, fresh) & self._tokenizer.keeps_plain
        self._inside.rows[fresh[plain], 0] = fresh[plain]
        rest = fresh[~plain]
        if self._ends:
            self._flags[rest] = kernels.CLOSING * self._inside.table.consist_of(CLOSING_BYTES, rest)
            rest = self._memoise_ascii(self._inside, rest, at_end=False)
        data, _ = self._inside.table.strings(rest, b" ")
        pieces = self._decoded(data.tobytes()).split(" ")[:-1]
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
            fresh = kernels.claim_unknown(ids, memo.rows)
            if place == kernels.LAST:
                fresh = self._memoise_ascii(memo, fresh, at_end=True)
            memo.rows[fresh, 0] = self._codes([tokenize(self._decoded(memo.table.string(n))) for n in fresh])
            codes[short] = memo.rows[ids, 0]
            texts = [self._decoded(data[begins[n] : stops[n]].tobytes()) for n in others]
            long.append((codes, others, [tokenize(text) for text in texts]))
        kept = self._lists.count
        for codes, lines, tokens in long:
            codes[lines] = self._codes(tokens)
        return kept

    def _memoise_ascii(self, memo: _Memo, ids: Indices, *, at_end: bool) -> Indices:
        """Memoise the strings that the fast path can tokenise, and return the ids of the others."""
        data, bounds = memo.table.strings(ids)
        begins, ends, lengths = split_ascii(data, bounds, at_end=at_end, glued=self._stops)
        done = lengths >= 0
        words = self._inside.intern(data, begins, ends)
        memo.rows[ids[done], 0] = self._codes_of(words, lengths[done])
        return ids[~done]

    def _codes(self, tokens: list[list[str]]) -> Ids:
        """Number the words of each list of tokens and return the code of each list."""
        words = self._inside.intern(*packed([word.encode() for some in tokens for word in some]))
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


def _glued(tokenize: Callable[[str], list[str]]) -> Callable[[str], list[str]]:
    """Return a variant of `tokenize` that leaves the full stop that ends a line on its word."""

    def glued(text: str) -> list[str]:
        tokens = tokenize(text)
        stop = len(tokens) - 1
        while stop > 0 and tokens[stop] in CLOSING_TOKENS:
            stop -= 1
        word = tokens[stop - 1] if stop > 0 else ""
        if word and tokens[stop] == "." and word[-1].isalnum() and "'" not in word and f"{word}." in text:
            tokens[stop - 1 : stop + 1] = [word + "."]
        return tokens

    return glued


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
