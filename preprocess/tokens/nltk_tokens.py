"""What the tokens of a piece of text are: exactly those of NLTK's NLTKWordTokenizer on the lower-cased line.

NLTK's tokeniser is a chain of regular expressions over the whole line, but almost none of them looks past a blank.
So a line may be cut at blanks, each piece tokenised once and remembered, as long as the piece does not stand at the
end of the line (where a full stop is split off) or at its beginning with a quotation mark. `encoder.py`
does the cutting and remembering; here is what a piece gives in each place. Pieces without quotation marks and the
like are split by one equivalent expression, the others by NLTK itself, many at a time. Reads and writes nothing.
"""

from __future__ import annotations

import re
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from glovewire.common.errors import hidden

if TYPE_CHECKING:
    from nltk.tokenize.destructive import NLTKWordTokenizer

# ASCII words that NLTK cuts in two although they hold nothing but letters.
CONTRACTIONS = ("cannot", "gimme", "gonna", "gotta", "lemme", "wanna")
# What may follow the full stop of a line and still leave it the line's full stop.
CLOSERS = "])}>\"'»”’"
QUOTES = "\"'`«“‘„»”’"

# A private character that no rule of NLTK touches: it separates pieces that are tokenised together.
_SENTINEL = "\uf8ff"
_CONTRACTED = f"(?i:{'|'.join(CONTRACTIONS)})"
# Pieces for NLTK itself: white space, quotation marks but for the plain ones, runs of marks, letters cut in two. NLTK
# uses the engine `regex`, this module `re`: what the two may see differently (other scripts' digits) is here too.
_HARD = re.compile(rf"[\s'`«“‘„»”’{_SENTINEL}]|--|\.\.|[:,][:,\x80-\U0010ffff]|{_CONTRACTED}")
_ALONE = r";@#$%&?!*()\[\]{}<>\u2012-\u2015"
_SIMPLE = re.compile(rf"[{_ALONE}]|[:,](?![0-9])|``|''|(?:[^{_ALONE}:,'` ]|[:,](?=[0-9]))+")
_CLOSING = '])}>"'
_OPENERS = "([{<"
# A word with one clitic at its end, and perhaps one mark after it.
_CLITIC = re.compile(r"([a-z0-9-]*[a-z0-9])('(?:s|m|d|ll|re|ve)?)([,;:?!)\]]?)")
_NEGATION = re.compile(r"([a-z0-9-]+)(n't)([,;:?!)\]]?)")
_NOT_A_CORE = re.compile(rf"--|{_CONTRACTED}")
_TOGETHER = 256


class Tokenizer(Protocol):
    """Tokens of lower-cased text, by the place of the text in its line."""

    @property
    def local(self) -> bool:
        """Whether every piece between blanks gives its tokens wherever it stands."""

    def inside(self, pieces: list[str]) -> list[list[str]]:
        """Tokens of pieces without a blank, with a blank before and more text after."""

    def first(self, piece: str) -> list[str]:
        """Tokens of a piece at the very beginning of a line, with more text after."""

    def last(self, text: str) -> list[str]:
        """Tokens of the end of a line, with a blank before."""

    def line(self, text: str) -> list[str]:
        """Tokens of a whole line."""

    def load(self) -> None:
        """Do now what would be done at the first use."""


class WhitespaceTokenizer:
    """Text that is tokenised already: tokens are what white space separates."""

    local = True

    def inside(self, pieces: list[str]) -> list[list[str]]:
        """Tokens of each piece."""
        return [piece.split() for piece in pieces]

    def first(self, piece: str) -> list[str]:
        """Tokens of the piece."""
        return piece.split()

    last = line = first

    def load(self) -> None:
        """Nothing is to be loaded."""


class NltkTokenizer:
    """Exactly NLTKWordTokenizer, piece by piece."""

    local = False

    @cached_property
    def _nltk(self) -> NLTKWordTokenizer:
        with hidden("sklearn", "scipy"):  # NLTK loads both for its classifiers: 140 MB, 1 s
            from nltk.tokenize.destructive import NLTKWordTokenizer

        return NLTKWordTokenizer()

    def inside(self, pieces: list[str]) -> list[list[str]]:
        """Tokens of pieces without a blank, with a blank before and more text after."""
        found = [_quick(piece) for piece in pieces]
        hard = [n for n, tokens in enumerate(found) if tokens is None]
        for at in range(0, len(hard), _TOGETHER):
            some = hard[at : at + _TOGETHER]
            for n, tokens in zip(some, self._inside_together([pieces[n] for n in some]), strict=True):
                found[n] = tokens
        return [tokens for tokens in found if tokens is not None]

    def first(self, piece: str) -> list[str]:
        """Tokens of a piece at the very beginning of a line, with more text after."""
        if piece.startswith('"') and '"' not in piece[1:]:
            tokens = _quick(piece)
            if tokens is not None:
                return tokens
        return self.line(piece + " x")[:-1]

    def last(self, text: str) -> list[str]:
        """Tokens of the end of a line, with a blank before."""
        body = text.rstrip(_CLOSING)
        closing = text[len(body) :]
        stop = body.endswith(".")
        body = body.removesuffix(".")
        if not body.endswith((".", *_OPENERS)):
            tokens = _quick(body)
            if tokens is not None:
                return [*tokens, *("." * stop), *("''" if mark == '"' else mark for mark in closing)]
        return self.line(" " + text)

    def line(self, text: str) -> list[str]:
        """Tokens of a whole line, by NLTK itself."""
        tokens: list[str] = self._nltk.tokenize(text)
        return tokens

    def load(self) -> None:
        """Import NLTK, which takes a second."""
        self.line("")

    def _inside_together(self, pieces: list[str]) -> list[list[str]]:
        if any(_SENTINEL in piece for piece in pieces):
            return [self.line(f" {piece} x")[:-1] for piece in pieces]
        tokens = self.line(" " + f" {_SENTINEL} ".join([*pieces, "x"]))
        found: list[list[str]] = [[]]
        for token in tokens:
            if token == _SENTINEL:
                found.append([])
            else:
                found[-1].append(token)
        return found[:-1]


def _quick(piece: str) -> list[str] | None:
    """The tokens of a piece between blanks, or None where NLTK itself must tell."""
    if _HARD.search(piece):
        if match := _CLITIC.fullmatch(piece) or _NEGATION.fullmatch(piece):
            return None if _NOT_A_CORE.search(piece) else [part for part in match.groups() if part]
        return None
    if '"' in piece:
        piece = _quoted(piece)
    return _SIMPLE.findall(piece)


def _quoted(piece: str) -> str:
    """A piece whose plain quotation marks are spelt out: one opens after a blank or a bracket, and closes elsewhere."""
    if piece.startswith('"'):
        piece = " `` " + piece[1:]
    for bracket in _OPENERS:
        piece = piece.replace(f'{bracket}"', f"{bracket} `` ")
    return piece.replace('"', " '' ")


def make_tokenizer(name: str) -> Tokenizer:
    """The tokeniser called `nltk` or `whitespace`."""
    return NltkTokenizer() if name == "nltk" else WhitespaceTokenizer()


def nltk_version() -> str:
    """The version of the NLTK that is installed."""
    from importlib.metadata import version

    return version("nltk")
