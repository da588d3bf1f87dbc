"""Define the tokens of a piece of text: exactly those of NLTK's NLTKWordTokenizer on the lower-cased line.

NLTK's tokeniser is a chain of regular expressions over the whole line, but almost none of them looks past a blank. So a
line can be split at blanks and each piece tokenised once, unless the piece stands at the end of the line (where a full
stop is split off) or at its beginning with a quotation mark. `encoder` splits lines and memoises pieces; this module
tokenises a piece by its place in the line. Pieces without quotation marks and the like are split by one equivalent
expression, other pieces by NLTK itself, many at a time. No I/O.
"""

from __future__ import annotations

import re
from functools import cached_property
from typing import TYPE_CHECKING

from glovewire.common.errors import hidden

if TYPE_CHECKING:
    from nltk.tokenize.destructive import NLTKWordTokenizer

# Words that NLTK splits in two.
CONTRACTIONS = ("cannot", "gimme", "gonna", "gotta", "lemme", "wanna")
# Marks that may follow a full stop at the end of a line.
CLOSERS = "])}>\"'»”’"
QUOTES = "\"'`«“‘„»”’"
CLOSING_TOKENS = frozenset((*"])}>'»”’", "''"))

# A private-use character that no rule of NLTK touches; it separates pieces that are tokenised together.
_SENTINEL = "\uf8ff"
_CONTRACTED = f"(?i:{'|'.join(CONTRACTIONS)})"
# Pieces for NLTK itself: white space, quotation marks other than ", runs of marks, contractions. NLTK uses the engine
# `regex`, this module `re`; what they may treat differently (digits of other scripts) also goes to NLTK.
_HARD = re.compile(rf"[\s'`«“‘„»”’{_SENTINEL}]|--|\.\.|[:,][:,\x80-\U0010ffff]|{_CONTRACTED}")
_ALONE = r";@#$%&?!*()\[\]{}<>\u2012-\u2015"
_SIMPLE = re.compile(rf"[{_ALONE}]|[:,](?![0-9])|``|''|(?:[^{_ALONE}:,'` ]|[:,](?=[0-9]))+")
_CLOSING = '])}>"'
_OPENERS = "([{<"
# A word with one clitic at its end, optionally followed by one mark.
_CLITIC = re.compile(r"([A-Za-z0-9-]*[A-Za-z0-9])('(?:s|m|d|ll|re|ve)?)([,;:?!)\]]?)")
_NEGATION = re.compile(r"([A-Za-z0-9-]+)(n't)([,;:?!)\]]?)")
_NOT_A_CORE = re.compile(rf"--|{_CONTRACTED}")
_PIECES_PER_CALL = 256


class NltkTokenizer:
    """Tokenises text exactly as NLTKWordTokenizer does, piece by piece."""

    keeps_plain = True
    """ASCII letters and digits alone are always one token."""

    @cached_property
    def _nltk(self) -> NLTKWordTokenizer:
        with hidden("sklearn", "scipy"):  # NLTK would load both for its classifiers: 140 MB, 1 s
            from nltk.tokenize.destructive import NLTKWordTokenizer

        return NLTKWordTokenizer()

    def inside(self, pieces: list[str]) -> list[list[str]]:
        """Return the tokens of pieces without blanks that, in their line, follow a blank and precede more text."""
        found = [_tokenize_simple(piece) for piece in pieces]
        hard = [n for n, tokens in enumerate(found) if tokens is None]
        for at in range(0, len(hard), _PIECES_PER_CALL):
            some = hard[at : at + _PIECES_PER_CALL]
            for n, tokens in zip(some, self._inside_by_nltk([pieces[n] for n in some]), strict=True):
                found[n] = tokens
        return [tokens for tokens in found if tokens is not None]

    def first(self, piece: str) -> list[str]:
        """Return the tokens of a piece at the beginning of a line, with more text after it."""
        if piece.startswith('"') and '"' not in piece[1:] and (tokens := _tokenize_simple(piece)) is not None:
            return tokens
        return self.line(piece + " x")[:-1]

    def last(self, text: str) -> list[str]:
        """Return the tokens of the end of a line, which follows a blank."""
        body = text.rstrip(_CLOSING)
        closing = text[len(body) :]
        stop = body.endswith(".")
        body = body.removesuffix(".")
        if not body.endswith((".", *_OPENERS)) and (tokens := _tokenize_simple(body)) is not None:
            return [*tokens, *("." * stop), *("''" if mark == '"' else mark for mark in closing)]
        return self.line(" " + text)

    def line(self, text: str) -> list[str]:
        """Return the tokens of a whole line, by NLTK itself."""
        tokens: list[str] = self._nltk.tokenize(text)
        return tokens

    def _inside_by_nltk(self, pieces: list[str]) -> list[list[str]]:
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


def _tokenize_simple(piece: str) -> list[str] | None:
    """Return the tokens of a piece between blanks, or None if NLTK itself must decide."""
    if _HARD.search(piece):
        if match := _CLITIC.fullmatch(piece) or _NEGATION.fullmatch(piece):
            return None if _NOT_A_CORE.search(piece) else [part for part in match.groups() if part]
        return None
    if '"' in piece:
        piece = _quoted(piece)
    return _SIMPLE.findall(piece)


def _quoted(piece: str) -> str:
    """Replace " by `` after a blank or an opening bracket, and by '' elsewhere."""
    if piece.startswith('"'):
        piece = " `` " + piece[1:]
    for bracket in _OPENERS:
        piece = piece.replace(f'{bracket}"', f"{bracket} `` ")
    return piece.replace('"', " '' ")
