"""Text to a stream of word numbers, with a memo of what every piece of text gives.

A line is cut at blanks. With k the last piece that holds more than closing marks, the pieces before k are looked up
one by one, and the rest of the line, from k on, as one string. Lines where that does not hold (one piece only, other
white space before k) go to the tokeniser whole. Each distinct piece is tokenised once. Reads and writes no files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from . import encoder_kernels as kernels
from .ascii_tokens import cut
from .nltk_tokens import CLOSERS, CONTRACTIONS, QUOTES, Tokenizer
from .string_table import Bytes, Ids, Longs, StringTable, packed, padded

# A text whose end or whole is longer than this is not remembered: it will hardly come again.
_LONGEST_REMEMBERED = 64
_LEAST = 1 << 12


@dataclass(frozen=True)
class Counts:
    """What a stream held: distinct words, how often and where first each came.

    `numbers` int64 (n,), `counts` int64 (n,), `first` int64 (n,): place of the first occurrence, see Encoder.encode;
    `data` uint8 and `bounds` int64 (n + 1,): the words' UTF-8, end to end.
    """

    numbers: Longs
    counts: Longs
    first: Longs
    data: Bytes
    bounds: Longs


class _Memo:
    """Strings and what each gives.

    `rows` is int64 (strings, 3): the code, how often the string came as a word, and where first. A code >= 0 is the
    one word, a code <= LIST the list of words LIST - code. The three stand together because they are used together.
    """

    def __init__(self) -> None:
        self.table = StringTable()
        self.rows = np.empty((0, 3), np.int64)
        self.fit()

    @property
    def nbytes(self) -> int:
        return self.table.nbytes + self.rows.nbytes

    def intern(self, data: Bytes, starts: Longs, stops: Longs) -> Ids:
        ids = self.table.intern(data, starts, stops)
        self.fit()
        return ids

    def fit(self) -> None:
        """A row for every string."""
        self.rows = _extended(self.rows, self.table.count, (kernels.UNKNOWN, 0, 0))

    def fresh(self, ids: Ids) -> Longs:
        """The distinct ids whose code is unknown, in order; they are marked as pending."""
        out = np.empty(len(ids), np.int64)
        return out[: kernels.claim_unknown(ids, self.rows, out)]


class _Lists:
    """Lists of words, end to end."""

    def __init__(self) -> None:
        self.count, self.used = 0, 0
        self.bounds = np.zeros(1 << 12, np.int64)
        self.words = np.zeros(1 << 12, np.int32)

    def append(self, words: Ids, lengths: Longs) -> Ids:
        """Add lists of `lengths` words; their codes."""
        codes = (kernels.LIST - self.count - np.arange(len(lengths))).astype(np.int32)
        self.bounds = _extended(self.bounds, self.count + len(lengths) + 1, 0)
        self.words = _extended(self.words, self.used + len(words), 0)
        self.words[self.used : self.used + len(words)] = words
        self.bounds[self.count + 1 : self.count + 1 + len(lengths)] = self.used + np.cumsum(lengths)
        self.count, self.used = self.count + len(lengths), self.used + len(words)
        return codes

    def truncate(self, count: int) -> None:
        """Forget all but the first `count` lists."""
        self.count, self.used = count, int(self.bounds[count])


class Encoder:
    """Tokenises batches of lines into word numbers; counts words since the last `take_counts`."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ends: dict[int, Callable[[str], list[str]]] = {
            kernels.LAST: tokenizer.last,
            kernels.LINE: tokenizer.line,
            kernels.FIRST: tokenizer.first,
        }
        self.forget()

    @property
    def nbytes(self) -> int:
        """Memory that the memo and the counts hold, in bytes."""
        arrays = (self._flags, self._lists.bounds, self._lists.words)
        memos = (self._inside, *self._memos.values())
        return sum(array.nbytes for array in arrays) + sum(memo.nbytes for memo in memos)

    def forget(self) -> None:
        """Begin with an empty memo; the numbers of words given so far mean nothing any more."""
        self._inside, self._lists = _Memo(), _Lists()
        self._memos = {place: _Memo() for place in self._ends}
        self._flags = np.zeros(1 << 12, np.uint8)
        if not self._tokenizer.local:
            ids = self._inside.intern(*packed([word.encode() for word in CONTRACTIONS]))
            self._remember(self._inside, self._inside.fresh(ids), [[word[:3], word[3:]] for word in CONTRACTIONS])

    def encode(self, text: bytes, starts: Longs, stops: Longs, place: int) -> Ids:
        """The words of the lines text[starts[n]:stops[n]], numbered from 1, with a 0 after each line; int32.

        `text` is UTF-8 whose ASCII letters are lower-cased. `place` says where the batch stands in the corpus: the
        first occurrence of a word is `place` + its index in the result. Raises UnicodeDecodeError on what is not
        UTF-8 and NulByte on a NUL.
        """
        data = padded(np.frombuffer(text, np.uint8), stops)
        chunks = kernels.split(data, starts, stops)
        ids = self._inside.intern(data, chunks.starts, chunks.stops)
        self._resolve_inside(ids)
        kept = self._lists.count
        endings = kernels.no_endings(chunks)
        if not self._tokenizer.local:
            kernels.decide(data, starts, stops, chunks, ids, self._flags, endings)
            kept = self._resolve_ends(data, endings)
        out = np.empty(int((stops - starts).sum()) + len(starts), np.int32)
        lists = (self._lists.bounds, self._lists.words)
        size = kernels.emit(ids, self._inside.rows, endings, lists, place, out)
        self._lists.truncate(kept)
        return out[:size]

    def spelt(self, ids: Ids) -> bytes:
        """A stream as text: words with blanks between them, a line a line, in UTF-8."""
        numbers = ids.astype(np.int64) - 1
        data, bounds = self._inside.table.strings(np.maximum(numbers, 0), b" ")
        out = np.empty(len(data), np.uint8)
        return out[: kernels.join_lines(data, bounds, numbers, out)].tobytes()

    def take_counts(self) -> Counts:
        """Counts since the last call, in the order of word numbers; they begin anew."""
        rows = self._inside.rows
        numbers = np.flatnonzero(rows[:, 1])
        data, bounds = self._inside.table.strings(numbers)
        counts = Counts(numbers + 1, rows[numbers, 1], rows[numbers, 2], data, bounds)
        rows[:, 1] = 0
        return counts

    def _resolve_inside(self, ids: Ids) -> None:
        fresh = self._inside.fresh(ids)
        self._flags = _extended(self._flags, self._inside.table.count, 0)
        plain = self._inside.table.alphanumeric(fresh)
        self._inside.rows[fresh[plain], 0] = fresh[plain]
        rest = fresh[~plain]
        if not self._tokenizer.local:
            data, bounds = self._inside.table.strings(rest)
            self._flags[rest] = kernels.ascii_flags(data, bounds)
            rest = self._remember_cut(self._inside, rest, at_end=False)
        pieces = self._strings(rest)
        self._flags[rest] = [_flags(piece) for piece in pieces]
        self._remember(self._inside, rest, self._tokenizer.inside(pieces))

    def _resolve_ends(self, data: Bytes, endings: kernels.Endings) -> int:
        """Give every line's beginning and end its code; the number of lists that are to stay."""
        long: list[tuple[Ids, Any, list[list[str]]]] = []
        for place, tokenize in self._ends.items():
            codes, begins, stops = (
                (endings.first, endings.first_start, endings.first_stop)
                if place == kernels.FIRST
                else (endings.last, endings.last_start, endings.last_stop)
            )
            lines = np.flatnonzero(codes == place)
            short = stops[lines] - begins[lines] <= _LONGEST_REMEMBERED
            some = lines[short]
            memo = self._memos[place]
            ids = memo.intern(data, begins[some], stops[some])
            fresh = memo.fresh(ids)
            if place == kernels.LAST:
                fresh = self._remember_cut(memo, fresh, at_end=True)
            self._remember(memo, fresh, [tokenize(_decoded(memo.table.string(n))) for n in fresh])
            codes[some] = memo.rows[ids, 0]
            others = lines[~short]
            texts = [_decoded(data[begins[n] : stops[n]].tobytes()) for n in others]
            long.append((codes, others, [tokenize(text) for text in texts]))
        kept = self._lists.count
        for codes, lines, tokens in long:
            codes[lines] = self._codes(tokens)
        return kept

    def _remember_cut(self, memo: _Memo, ids: Longs, *, at_end: bool) -> Longs:
        """Resolve the strings whose tokens are plainly their parts; the others' ids."""
        data, bounds = memo.table.strings(ids)
        begins, ends, lengths = cut(data, bounds, at_end=at_end)
        done = lengths >= 0
        words = self._inside.intern(data, begins, ends)
        memo.rows[ids[done], 0] = self._codes_of(words, lengths[done])
        return ids[~done]

    def _strings(self, ids: Longs) -> list[str]:
        """The pieces of these ids, which hold no blank, decoded together."""
        data, _ = self._inside.table.strings(ids, b" ")
        return _decoded(data.tobytes()).split(" ")[:-1] if len(ids) else []

    def _remember(self, memo: _Memo, ids: Longs, tokens: list[list[str]]) -> None:
        memo.rows[ids, 0] = self._codes(tokens)

    def _codes(self, tokens: list[list[str]]) -> Ids:
        """The code of each list of tokens, whose words are numbered."""
        text = " ".join([word for some in tokens for word in some]).encode()
        words = self._inside.intern(*kernels.split_words(text))
        return self._codes_of(words, np.array([len(some) for some in tokens], np.int64))

    def _codes_of(self, words: Ids, lengths: Longs) -> Ids:
        """The code of each list of `lengths` words."""
        single = lengths == 1
        codes = np.empty(len(lengths), np.int32)
        codes[single] = words[np.cumsum(lengths)[single] - 1]
        codes[~single] = self._lists.append(words[np.repeat(~single, lengths)], lengths[~single])
        return codes


class NulByte(ValueError):
    """A NUL in what should be text."""


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


def _extended(array: npt.NDArray[Any], length: int, fill: Any) -> npt.NDArray[Any]:
    """`array`, or a longer one of at least `length` that begins with it."""
    if length <= len(array):
        return array
    out = np.empty((max(length, 2 * len(array), _LEAST), *array.shape[1:]), array.dtype)
    out[: len(array)] = array
    out[len(array) :] = fill
    return out
