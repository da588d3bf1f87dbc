"""The encoder's tokens are those of NLTK itself on every line.

`GLOVEWIRE_TEST_LINES=1000000 pytest tests/preprocess/tokens -k "many or real"` compares that many generated
lines, and that many of every text in the shared data (an hour: NLTK is the slow one); the default is a sample.
"""

import itertools
import lzma
import os
import random
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glovewire.preprocess.tokens.encoder import Encoder, NulByte
from glovewire.preprocess.tokens.nltk_tokens import NltkTokenizer
from glovewire.preprocess.tokens.tokenizers import make_tokenizer

LINES = int(os.environ.get("GLOVEWIRE_TEST_LINES", "6000"))
AT_ONCE = 500

MARKS = list("'\"`.,:;!?()[]{}<>-—–‘’“”«»„…@#$%&*/\\|=+_^~")
PIECES = [
    *MARKS, "a", "b", "s", "m", "d", "t", "n", "ll", "re", "ve", "n't", "'s", "'t", "'tis", "'twas", "d'ye", "more'n",
    "cannot", "gimme", "gonna", "gotta", "lemme", "wanna", "can", "not", "1", "5", "1990", "u.s", "...", "--", "``",
    "''", "\t", "\xa0", "\u2003", "\x85", "\x1c", "\r", "İ", "ı", "ſ", "Σ", "ά", "é", "٣", "x", "Word", "K", "\uf8ff",
    "\u0301", "\ufeff", "\u200b", "²", "Ⅷ", "中", "🙂",
]  # fmt: skip
WORDS = [
    "the",
    "matrix",
    "Said",
    "players'",
    "o'neil",
    "(see",
    "it).",
    "no,",
    'yes."',
    "1,000",
    "3:15",
    "e.g.,",
    "[1]:",
]

chunks = st.one_of(st.sampled_from(WORDS), st.lists(st.sampled_from(PIECES), max_size=6).map("".join))
lines = st.builds(
    lambda before, middle, after: before + " ".join(middle) + after,
    st.sampled_from(["", "", " ", "\t"]),
    st.lists(chunks, max_size=9),
    st.sampled_from(["", "", " ", " \n", "\r", "  "]),
)


def tokens_of(encoder: Encoder, texts: Iterable[str]) -> list[list[str]]:
    """Return the encoder's tokens of each line, spelt by its own table."""
    raw = [text.encode() for text in texts]
    bounds = np.cumsum([0] + [len(line) for line in raw])
    ids = encoder.encode(b"".join(raw), bounds[:-1], bounds[1:], 0)
    counts = encoder.take_counts()
    ends = counts.bounds.tolist()
    words = [counts.data[a:b].tobytes().decode() for a, b in itertools.pairwise(ends)]
    names = dict(zip(counts.numbers.tolist(), words, strict=True))
    out: list[list[str]] = [[]]
    for number in ids.tolist():
        if number:
            out[-1].append(names[number])
        else:
            out.append([])
    return out[:-1]


def nltk_tokens(texts: Iterable[str], *, lowercase: bool = True) -> list[list[str]]:
    tokenizer = NltkTokenizer()
    return [tokenizer.line(text.lower() if lowercase else text) for text in texts]


def assert_equal(texts: list[str], encoder: Encoder, *, lowercase: bool = True) -> None:
    expected = nltk_tokens(texts, lowercase=lowercase)
    for text, ours, theirs in zip(texts, tokens_of(encoder, texts), expected, strict=True):
        assert ours == theirs, repr(text)


@settings(max_examples=200, deadline=None)
@given(st.lists(lines, min_size=1, max_size=8))
def test_generated_lines_are_tokenised_as_nltk_does(texts: list[str]) -> None:
    assert_equal(texts, Encoder(make_tokenizer("nltk")))


@settings(max_examples=150, deadline=None)
@given(st.lists(lines, min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_generated_lines_that_keep_their_case_are_too(texts: list[str], draw: random.Random) -> None:
    cased = ["".join(draw.choice((each.upper(), each, each)) for each in text) for text in texts]
    assert_equal(cased, Encoder(make_tokenizer("nltk"), lowercase=False), lowercase=False)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), min_size=1, max_size=4))
def test_any_unicode_is_tokenised_as_nltk_does(texts: list[str]) -> None:
    assert_equal(texts, Encoder(make_tokenizer("nltk")))


def test_a_used_memo_gives_the_same_tokens() -> None:
    encoder = Encoder(make_tokenizer("nltk"))
    texts = [
        'He said "no." ',
        "They cannot; the players' dogs can't.",
        "“Yes,” she’d said: 3:15 p.m.",
        "a.",
        "",
        "x (y.)",
    ]
    first = tokens_of(encoder, texts * 3)
    assert first == tokens_of(encoder, texts * 3) == nltk_tokens(texts * 3)
    encoder.clear()
    assert tokens_of(encoder, texts) == nltk_tokens(texts)


def test_case_is_that_of_the_whole_line() -> None:
    assert_equal(["ὈΔΥΣΣΕΎΣ ΣΑΣ. ΑΣ", "İSTANBUL Straße K"], Encoder(make_tokenizer("nltk")))


def test_whitespace_tokens() -> None:
    encoder = Encoder(make_tokenizer("whitespace"))
    texts = ['The cat\'s  paw\tand , . "x"\xa0y ', "", " a", "cannot\u2003gonna."]
    assert tokens_of(encoder, texts) == [text.lower().split() for text in texts]


def test_bytes_that_are_not_text_are_refused() -> None:
    encoder = Encoder(make_tokenizer("nltk"))
    with pytest.raises(UnicodeDecodeError):
        encoder.encode(b"a \xff b", np.array([0]), np.array([5]), 0)
    with pytest.raises(NulByte):
        encoder.encode(b"a \0 b", np.array([0]), np.array([5]), 0)


def test_counts_and_first_places() -> None:
    encoder = Encoder(make_tokenizer("nltk"))
    text = b"b a, a c"
    encoder.encode(text, np.array([0]), np.array([len(text)]), 100)
    counts = encoder.take_counts()
    words = [counts.data[a:b].tobytes() for a, b in itertools.pairwise(counts.bounds)]
    found = {w: (int(c), int(f)) for w, c, f in zip(words, counts.counts, counts.first, strict=True)}
    assert found == {b"b": (1, 100), b"a": (2, 101), b",": (1, 102), b"c": (1, 104)}
    assert len(encoder.take_counts().numbers) == 0


def drawn(draw: random.Random) -> str:
    """Draw a line of words, pieces and marks, as hypothesis would, a hundred times faster."""
    chunks = (
        draw.choice(WORDS) if draw.random() < 0.4 else "".join(draw.choices(PIECES, k=draw.randrange(6)))
        for _ in range(draw.randrange(12))
    )
    return draw.choice(["", "", " ", "\t"]) + " ".join(chunks) + draw.choice(["", "", " ", " \n", "\r", "  "])


@pytest.mark.timeout(0 if LINES > 6000 else 400)
def test_many_drawn_lines_are_tokenised_as_nltk_does() -> None:
    draw, encoder = random.Random(LINES), Encoder(make_tokenizer("nltk"))
    for _ in range(0, LINES, AT_ONCE):
        assert_equal([drawn(draw) for _ in range(AT_ONCE)], encoder)


@pytest.mark.timeout(0 if LINES > 6000 else 400)
@pytest.mark.parametrize("name", ["wikitext2-valid.txt.xz", "enwiki-large.txt.xz"])
def test_real_text_is_tokenised_as_nltk_does(shared_data: Path, name: str) -> None:
    encoder = Encoder(make_tokenizer("nltk"))
    with lzma.open(shared_data / "text" / name, "rt", encoding="utf-8", newline="\n") as stream:
        lines = itertools.islice(stream, LINES)
        while texts := list(itertools.islice(lines, AT_ONCE)):
            assert_equal(texts, encoder)
