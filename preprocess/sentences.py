"""Learn from the corpus which full stops end a sentence, and split these from their words.

The method is Punkt (Kiss and Strunk 2006, Computational Linguistics 32), unsupervised, with the statistics and
thresholds of NLTK's PunktTrainer with IGNORE_ABBREV_PENALTY: that penalty falls exponentially with the number of times
that a word occurs without a full stop, so in a large text it would rule out `dr.` or `inc.`. NLTK's
tokeniser treats the end of a sentence in one way that matters: it splits off the full stop. So it is enough to decide
for each word with a full stop, from that word and the next one, whether the full stop becomes a token of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from glovewire.common.array_types import Bytes, Ids, Indices
from glovewire.common.runtime.compiled import compiled

from .counts.reduce import combined
from .segments import Segment
from .tokens.encoder import WordCounts
from .tokens.encoder_kernels import AFTER_SHIFT, BEGIN, FINALS_SHIFT, MIDDLE, STOP, UNSURE
from .tokens.nltk_tokens import CLOSING_TOKENS, NltkTokenizer
from .tokens.string_table import StringTable, packed

Marks = npt.NDArray[np.uint32]
MARKS, PAIRS = "marks", "pairs"
"""Arrays of a segment: marks of its words, uint32 (last number + 1,), and keys of its collocations, sorted int64."""
_SEEN, _KEYS, _KEY_COUNTS = "seen", "candidates", "candidate_counts"

# Thresholds of PunktTrainer: of an abbreviation's score, a collocation's log-likelihood, and the count from which a
# type is not rare.
_ABBREVIATION, _COLLOCATION, _FEW = 0.3, 7.88, 5
# Marks of words by their letters, and, from 16 on, by what was learned.
_LETTER, _NUMBER, _INITIAL, _ABBREVIATED, _CLOSER, _PUNCTUATION, _NON_PUNCT = (1 << n for n in range(7))
_INSIDE_IF_LOWER, _SEEN_LOWER, _RARE, _RARE_IF_LOWER = (1 << n for n in range(16, 20))
_STOP_BYTE, _APOSTROPHE = 46, 39


@dataclass(frozen=True)
class _Stems:
    """Words of a segment in lower case, without their full stop; `stop` says which words had one."""

    words: WordCounts
    data: Bytes
    starts: Indices
    stops: Indices
    stop: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, segment: Segment) -> "_Stems":
        words = segment.words()
        stop = words.traits >> AFTER_SHIFT & 3 == STOP
        data = np.frombuffer(words.data.tobytes().lower(), np.uint8)
        return cls(words, data, words.bounds[:-1], words.bounds[1:] - stop, stop)


@dataclass
class _Totals:
    """Counts of tokens: all, with a final full stop, words with one, these at line ends, bare full stops, numbers."""

    tokens: int = 0
    stops: int = 0
    glued: int = 0
    finals: int = 0
    alone: int = 0
    numbers: int = 0


def learn(segments: Sequence[Segment], groups: int) -> dict[str, Any]:
    """Learn from the segments' streams, and store MARKS and PAIRS with each for `Splitter`.

    Returns `abbreviations` (without their full stop, and how often each occurs with it, most frequent first) and
    `enabled`: False if most full stops of the text stand alone, because it is already tokenised.
    """
    totals = _Totals()
    for segment in segments:
        _add_totals(totals, segment)
    enabled = totals.glued > totals.alone
    abbreviations, initials = _abbreviations(segments, groups, totals)
    table = StringTable()
    table.intern(*packed([word.encode() for word, _ in abbreviations]))
    for segment in segments:
        _observe_segment(segment, table, totals)
    _mark(segments, groups, totals, initials)
    return {"abbreviations": abbreviations if enabled else [], "enabled": enabled}


def _add_totals(totals: _Totals, segment: Segment) -> None:
    stems = _Stems.of(segment)
    words, counts = stems.words, stems.words.counts
    after = words.traits >> AFTER_SHIFT & 3
    ends = words.data[words.bounds[1:] - 1] == _STOP_BYTE
    totals.tokens += int(counts.sum())
    totals.stops += int(counts[ends].sum())
    totals.glued += int(counts[stems.stop].sum())
    totals.finals += int((words.traits >> FINALS_SHIFT).sum())
    totals.alone += int(counts[ends & (after == BEGIN)].sum())


def _abbreviations(
    segments: Sequence[Segment], groups: int, totals: _Totals
) -> tuple[list[tuple[str, int]], dict[str, int]]:
    """Return the abbreviations, and how often each letter occurs as a word, with or without a full stop."""
    found: list[tuple[str, int]] = []
    initials: dict[str, int] = {}
    for group in range(groups):
        table, counts = StringTable(), np.zeros((3, 0), np.int64)
        for segment in segments:
            stems = _Stems.of(segment)
            chosen, ids = table.intern_group(stems.data, stems.starts, stems.stops, group, groups)
            counts = np.pad(counts, ((0, 0), (0, table.count - counts.shape[1])))
            np.add.at(counts, (stems.stop[chosen].astype(np.int64), ids), stems.words.counts[chosen])
            np.add.at(counts[2], ids, stems.words.traits[chosen] >> FINALS_SHIFT)
        stopped = np.flatnonzero(counts[1])
        shape = _shapes(*table.strings(stopped))
        score = _abbreviation_scores(counts[1, stopped], counts[0, stopped], shape[:, 0], shape[:, 1], totals)
        seldom_final = 4 * counts[2, stopped] * totals.glued <= 3 * counts[1, stopped] * totals.finals
        good = (score >= _ABBREVIATION) & (shape[:, 2] > 0) & (seldom_final | (shape[:, 1] > 0))
        found += [(table.string(n).decode(), int(counts[1, n])) for n in stopped[good]]
        single = stopped[(shape[:, 0] == 1) & (shape[:, 2] > 0)]
        initials |= {table.string(n).decode(): int(counts[:2, n].sum()) for n in single}
    return sorted(found, key=lambda each: (-each[1], each[0])), initials


def _abbreviation_scores(
    stopped: Indices, bare: Indices, letters: Indices, periods: Indices, totals: _Totals
) -> npt.NDArray[np.float64]:
    """Return Punkt's scores of types from their counts with and without a full stop, lengths and periods."""
    share = max(totals.stops, 1) / max(totals.tokens, 2)
    apart = stopped * np.log(share) + bare * np.log1p(-share)
    together = stopped * np.log(0.99) + bare * np.log(0.01)
    others = letters - periods
    score: npt.NDArray[np.float64] = 2 * (together - apart) * np.exp(-others) * (periods + 1)
    return score


def _observe_segment(segment: Segment, abbreviations: StringTable, totals: _Totals) -> None:
    """Store what follows the segment's full stops, given the abbreviations; add its count of numbers to `totals`."""
    stems = _Stems.of(segment)
    letters = _marks_of_letters(stems)
    totals.numbers += int(stems.words.counts[letters & _NUMBER != 0].sum())
    for starts in (stems.starts, _after_hyphens(stems.data, stems.starts, stems.stops)):
        letters[stems.stop & (abbreviations.look_up(stems.data, starts, stems.stops) >= 0)] |= _ABBREVIATED
    marks = np.zeros(segment.size, np.uint32)
    marks[stems.words.numbers] = letters
    seen = np.zeros(segment.size, np.uint8)
    seen[stems.words.numbers] = stems.words.traits & 63
    keys: Indices = np.zeros(0, np.int64)
    counts: Indices = np.zeros(0, np.int64)
    for _, stream in segment.streams():
        fresh = np.empty(int(np.count_nonzero(stream < 0)), np.int64)
        size = _observe(stream, marks, seen, fresh)
        keys, counts = combined([(keys, counts), (fresh[:size], np.ones(size, np.int64))])
    for field, array in ((MARKS, marks), (_SEEN, seen), (_KEYS, keys), (_KEY_COUNTS, counts)):
        segment.save(field, array)


def _mark(segments: Sequence[Segment], groups: int, totals: _Totals, initials: dict[str, int]) -> None:
    """Add what was learned about a segment's words to its MARKS, and store its PAIRS, for every segment."""
    pairs: list[list[Indices]] = [[] for _ in segments]
    for group in range(groups):
        table, counts, seen = StringTable(), np.zeros(0, np.int64), np.zeros(0, np.int64)
        number = int(table.intern(*packed([b"##number##"]))[0]) if group == 0 else -1
        known: list[tuple[Indices, Ids, Indices, Indices]] = []
        for segment in segments:
            stems = _Stems.of(segment)
            chosen, ids = table.intern_group(stems.data, stems.starts, stems.stops, group, groups)
            numbers = stems.words.numbers[chosen]
            new = (0, table.count - len(counts))
            counts, seen = np.pad(counts, new), np.pad(seen, new)
            np.add.at(counts, ids, stems.words.counts[chosen])
            np.bitwise_or.at(seen, ids, segment.load(_SEEN)[numbers])
            known.append((numbers, ids, *_global_keys(segment, stems.words, numbers, ids, number)))
        if group == 0:
            counts[number] = totals.numbers
        learned = _learned_marks(seen, counts)
        keys, times = combined(
            [(each[3], s.load(_KEY_COUNTS)[each[2]]) for s, each in zip(segments, known, strict=True)]
        )
        good = keys[_collocated(keys, times, initials, counts, totals.tokens)]
        for segment, of_segment, (numbers, ids, where, global_keys) in zip(segments, pairs, known, strict=True):
            marks = segment.load(MARKS)
            marks[numbers] |= learned[ids]
            segment.save(MARKS, marks)
            of_segment.append(segment.load(_KEYS)[where[np.isin(global_keys, good)]])
    for segment, of_segment in zip(segments, pairs, strict=True):
        segment.save(PAIRS, np.sort(np.concatenate(of_segment)))


class Splitter:
    """Rewrites a segment's streams: every full stop that ends a sentence becomes a token of its own."""

    def __init__(self, segment: Segment, *, enabled: bool) -> None:
        self._marks, self._pairs, self._enabled = segment.load(MARKS), segment.load(PAIRS), enabled
        words = segment.words()
        stopped = np.flatnonzero(words.traits >> AFTER_SHIFT & 3 == STOP)
        starts, stops = words.bounds[:-1], words.bounds[1:]
        table = StringTable()
        table.intern(words.data, starts, stops)
        stems = table.intern(words.data, starts[stopped], stops[stopped] - 1)
        quoted = np.searchsorted(words.bounds, np.flatnonzero(words.data == _APOSTROPHE), "right") - 1
        odd = {n: _NLTK.last(table.string(n).decode()) for n in np.intersect1d(stopped, quoted).tolist()}
        full_stop = table.intern(*packed([b"."]))[0]
        lengths = np.zeros(segment.size + 1, np.int64)
        lengths[words.numbers[stopped] + 1] = 2
        for n, tokens in odd.items():
            lengths[words.numbers[n] + 1] = len(tokens)
        self._bounds, self._longest = np.cumsum(lengths), int(lengths.max(initial=1))
        parts = np.full(self._bounds[-1], full_stop, np.int32)
        parts[self._bounds[words.numbers[stopped]]] = stems
        for n, tokens in odd.items():
            at = self._bounds[words.numbers[n]]
            parts[at : at + len(tokens)] = table.intern(*packed([token.encode() for token in tokens]))
        new = np.arange(len(starts), table.count)
        numbers = np.concatenate([words.numbers, segment.size + new - len(starts)])
        self._parts = numbers[parts].astype(np.int32)
        self.data, self.bounds = table.strings(new)

    def __call__(self, stream: Ids) -> Ids:
        """Return the stream with full stops split off."""
        out = np.empty(len(stream) + (self._longest - 1) * int(np.count_nonzero(stream < 0)), np.int32)
        size = _split(stream, self._marks, self._pairs, self._bounds, self._parts, self._enabled, out)
        return out[:size]


_NLTK = NltkTokenizer()
_MARKED = StringTable()
_OF_MARKED = np.array([_CLOSER] * len(CLOSING_TOKENS) + [_PUNCTUATION] * 6, np.uint32)
_MARKED.intern(*packed([token.encode() for token in (*sorted(CLOSING_TOKENS), *",;:.!?")]))


def _marks_of_letters(stems: _Stems) -> Marks:
    marks = _mark_letters(stems.data, stems.starts, stems.stops, stems.stop)
    ids = _MARKED.look_up(stems.data, stems.starts, stems.stops)
    marks[ids >= 0] |= _OF_MARKED[ids[ids >= 0]]
    return marks


def _global_keys(
    segment: Segment, words: WordCounts, numbers: Indices, ids: Ids, number: int
) -> tuple[Indices, Indices]:
    """Return which of the segment's keys end in one of the words `numbers`, and these keys as (code point, id).

    `number` is the id that stands for all numbers in figures, or -1 if it is not in this group.
    """
    keys = segment.load(_KEYS)
    before, after = keys >> 32, keys & 0xFFFFFFFF
    by_number = np.full(segment.size, -1, np.int64)
    by_number[numbers], by_number[0] = ids, number
    where = np.flatnonzero(by_number[after] >= 0)
    codes = np.zeros(segment.size, np.int64)
    for number in np.unique(before).tolist():
        n = int(np.searchsorted(words.numbers, number))
        codes[number] = ord(words.data[words.bounds[n] : words.bounds[n + 1]].tobytes().decode().lower()[0])
    return where, codes[before[where]] << 32 | by_number[after[where]]


def _learned_marks(seen: Indices, counts: Indices) -> Marks:
    """Return the marks of types that follow from the contexts in which they were `seen` and from their `counts`.

    See `_ortho_heuristic` and `_is_rare_abbrev_type` in NLTK.
    """
    contexts = (BEGIN, MIDDLE, UNSURE)
    lower = seen & sum(1 << 2 * context for context in contexts) != 0
    upper = seen & sum(2 << 2 * context for context in contexts) != 0
    upper_inside, upper_first = (seen & 2 << 2 * context != 0 for context in (MIDDLE, BEGIN))
    lower_first = seen & 1 << 2 * BEGIN != 0
    facts = {
        _INSIDE_IF_LOWER: upper | ~lower_first,
        _SEEN_LOWER: lower,
        _RARE: counts < _FEW,
        _RARE_IF_LOWER: upper_first & ~upper_inside,
    }
    return sum((mark * fact.astype(np.uint32) for mark, fact in facts.items()), np.zeros(len(seen), np.uint32))


def _collocated(
    keys: Indices, times: Indices, initials: dict[str, int], counts: Indices, tokens: int
) -> npt.NDArray[np.bool_]:
    """Return which pairs of an initial and a type are collocations; `initials` counts each letter."""
    codes, types = keys >> 32, keys & 0xFFFFFFFF
    first = np.array([initials.get(chr(code), 0) for code in codes.tolist()], np.int64)
    second = counts[types]
    few = np.minimum(first, second)
    likely = _log_likelihood(first, second, np.minimum(times, few), tokens) >= _COLLOCATION
    often = tokens * times > first * second
    good: npt.NDArray[np.bool_] = likely & often & (times > 1) & (few > 1) & (times <= few)
    return good


def _log_likelihood(first: Indices | int, second: Indices, both: Indices, total: int) -> npt.NDArray[np.float64]:
    """Return Dunning's log-likelihood ratio: large if two types with these counts do not meet just by chance."""
    rest, other = np.maximum(second - both, 0), np.maximum(total - first, 1)
    p, p1, p2 = second / total, both / np.maximum(first, 1), np.minimum(rest / other, 1.0)

    def chance(times: Any, of: Any, probability: Any) -> Any:
        with np.errstate(divide="ignore", invalid="ignore"):
            value = times * np.log(probability) + (of - times) * np.log1p(-probability)
        return np.where((probability <= 0) | (probability >= 1), 0.0, value)

    found: npt.NDArray[np.float64] = -2 * (
        chance(both, first, p) + chance(rest, other, p) - chance(both, first, p1) - chance(rest, other, p2)
    )
    return found


# ---- compiled loops


@compiled
def _shapes(data: Bytes, bounds: Indices) -> Indices:
    """Return the number of each string's characters, of its full stops, and of its letters; int64 (strings, 3)."""
    out = np.empty((len(bounds) - 1, 3), np.int64)
    for n in range(len(out)):
        characters, periods, letters = 0, 0, 0
        for at in range(bounds[n], bounds[n + 1]):
            byte = data[at]
            characters += byte & 192 != 128
            periods += byte == _STOP_BYTE
            letters += byte >= 128 or 97 <= byte <= 122
        out[n, 0], out[n, 1], out[n, 2] = characters, periods, letters
    return out


@compiled
def _mark_letters(data: Bytes, starts: Indices, stops: Indices, stop: Any) -> Marks:
    """Return marks of words by letters, as PunktToken's properties do; a character beyond ASCII counts as a letter."""
    out = np.empty(len(starts), np.uint32)
    for n in range(len(out)):
        letters, digits, others, characters = 0, 0, 0, 0
        for at in range(starts[n], stops[n]):
            byte = data[at]
            letters += byte >= 128 or 97 <= byte <= 122 or byte == 95
            digits += 48 <= byte <= 57
            others += 44 <= byte <= 46
            characters += byte & 192 != 128
        length = stops[n] - starts[n]
        first = data[starts[n]] if length > 0 else np.uint8(0)
        mark = 0
        if first >= 128 or 97 <= first <= 122:
            mark |= _LETTER
        if digits > 0 and digits + others == length:
            mark |= _NUMBER
        if letters > 0 or mark & _NUMBER:
            mark |= _NON_PUNCT
        if stop[n] and characters == 1 and letters == length and first != 95:
            mark |= _INITIAL
        out[n] = mark
    return out


@compiled
def _after_hyphens(data: Bytes, starts: Indices, stops: Indices) -> Indices:
    """Return where the part after the last hyphen of each string begins; int64 (strings,)."""
    out = stops.copy()
    for n in range(len(out)):
        while out[n] > starts[n] and data[out[n] - 1] != 45:
            out[n] -= 1
    return out


@compiled
def _key(word: Any, following: Any, after: Any) -> np.int64:
    """Return the key of an initial and the next word; every number in figures counts as word 0."""
    return np.int64(word) << 32 | (np.int64(0) if after & _NUMBER else np.int64(following))


@compiled
def _observe(stream: Ids, marks: Marks, seen: Bytes, keys: Indices) -> int:
    """Record the contexts after words with a full stop; write keys of possible collocations and return their number."""
    size = 0
    for n in range(len(stream) - 1):
        if stream[n] >= 0 or stream[n + 1] == 0:
            continue
        word, upper = -stream[n] >> 1, -stream[n] & 1
        is_break = not marks[word] & _ABBREVIATED
        following = np.int64(stream[n + 1] if stream[n + 1] > 0 else -stream[n + 1] >> 1)
        is_initial = marks[word] & _INITIAL
        context = BEGIN if is_break and not is_initial else UNSURE
        seen[following] |= 1 << (2 * context + upper)
        if is_break and is_initial and marks[following] & _NON_PUNCT:
            keys[size] = _key(word, following, marks[following])
            size += 1
    return size


@compiled
def _is_break(word: Any, mark: Any, after: Any, upper: Any, following: Any, pairs: Indices) -> bool:
    """Return whether a full stop inside a line becomes a token; see `_second_pass_annotation` in NLTK.

    `mark` and `after` are the marks of its word and of the next word; `upper` is 1 if the next begins with a capital.
    An abbreviation always keeps its full stop inside a line. NLTK also looks for sentences that begin after one, and
    so separates `dr.` from every name that often begins a sentence.
    """
    if mark & _ABBREVIATED:
        return False
    lower = after & _LETTER != 0 and upper == 0
    if mark & _RARE and not mark & _NUMBER and (after & _PUNCTUATION or (lower and after & _RARE_IF_LOWER)):
        return False
    if not mark & _INITIAL:
        return True
    key = _key(word, following, after)
    at = np.searchsorted(pairs, key)
    if at < len(pairs) and pairs[at] == key:
        return False
    if after & _PUNCTUATION or (lower and after & _INSIDE_IF_LOWER):
        return False
    return not (upper and not after & _SEEN_LOWER)


@compiled
def _split(
    stream: Ids,
    marks: Marks,
    pairs: Indices,
    bounds: Indices,
    parts: Ids,
    enabled: bool,
    out: Ids,
) -> int:
    """Write the stream with full stops split off, and return its length.

    Word w with its full stop split off is parts[bounds[w]:bounds[w + 1]]. The full stop that ends a line is always
    split off; other full stops only if `enabled`.
    """
    size = 0
    for n in range(len(stream)):
        if stream[n] >= 0:
            out[size] = stream[n]
            size += 1
            continue
        word, upper = np.int64(-stream[n] >> 1), -stream[n] & 1
        at = n + 1
        while stream[at] > 0 and marks[stream[at]] & _CLOSER:
            at += 1
        is_break = stream[at] == 0
        if enabled and not is_break:
            following = np.int64(stream[n + 1] if stream[n + 1] > 0 else -stream[n + 1] >> 1)
            is_break = _is_break(word, marks[word], marks[following], upper, following, pairs)
        if not is_break:
            out[size] = word
            size += 1
            continue
        for part in range(bounds[word], bounds[word + 1]):
            out[size] = parts[part]
            size += 1
    return size
