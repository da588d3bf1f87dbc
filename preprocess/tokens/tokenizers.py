"""Choose the tokeniser that `--tokenizer` names. All but NLTK's look at the pieces between white space one by one."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from glovewire.common.errors import UsageError

from .nltk_tokens import NltkTokenizer

if TYPE_CHECKING:
    import tokenizers


class WhitespaceTokenizer:
    """Splits at white space, for text that is tokenised already."""

    keeps_plain = True

    def line(self, text: str) -> list[str]:
        """Return the words of a line, which white space separates."""
        return text.split()

    def inside(self, pieces: list[str]) -> list[list[str]]:
        """Return the tokens of each piece; its place in the line does not matter."""
        return [self.line(piece) for piece in pieces]


class RegexTokenizer(WhitespaceTokenizer):
    """Returns what a regular expression finds in each piece between white space."""

    keeps_plain = False

    def __init__(self, pattern: str) -> None:
        try:
            self._find = re.compile(pattern)
        except re.error as error:
            raise UsageError(f"--tokenizer regex: {pattern!r} is not a regular expression: {error}") from error

    def line(self, text: str) -> list[str]:
        """Return the matches in a line, without empty ones."""
        return [match[0] for piece in text.split() for match in self._find.finditer(piece) if match[0]]


class SubwordTokenizer(WhitespaceTokenizer):
    """Splits with a tokeniser of the `tokenizers` library, each piece as if a blank preceded it."""

    keeps_plain = False

    def __init__(self, path: Path) -> None:
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # its threads do not survive a fork
        try:
            import tokenizers
        except ImportError as error:
            raise UsageError("--tokenizer bpe needs the extra `bpe`: pip install 'glovewire[bpe]'") from error
        try:
            self._tokenizer: tokenizers.Tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises Exception itself
            raise UsageError(f"--tokenizer bpe: {path} is not a file of the tokenizers library: {error}") from error

    def line(self, text: str) -> list[str]:
        """Return the tokens of a line."""
        return [token for tokens in self.inside(text.split()) for token in tokens]

    def inside(self, pieces: list[str]) -> list[list[str]]:
        """Return the tokens of each piece, without white space in them."""
        found = self._tokenizer.encode_batch([f" {piece}" for piece in pieces], add_special_tokens=False)
        return [[part for token in each.tokens for part in token.split()] for each in found]


Tokenizer = NltkTokenizer | WhitespaceTokenizer


def make_tokenizer(name: str) -> Tokenizer:
    """Return the tokeniser `nltk`, `whitespace`, `regex:PATTERN` or `bpe:FILE`; UsageError for any other name."""
    kind, _, rest = name.partition(":")
    if name == "nltk":
        return NltkTokenizer()
    if name == "whitespace":
        return WhitespaceTokenizer()
    if kind == "regex" and rest:
        return RegexTokenizer(rest)
    if kind == "bpe" and rest:
        return SubwordTokenizer(Path(rest))
    raise UsageError(f"--tokenizer {name}: must be nltk, whitespace, regex:PATTERN or bpe:FILE")
