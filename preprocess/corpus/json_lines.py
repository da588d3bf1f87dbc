"""Read the text of one line of a `.jsonl` file; an error says which keys the line has."""

import json
from contextlib import suppress

from glovewire.common.errors import CorpusError
from glovewire.common.text import printable

from .splits import DAMAGE, SourceFile, one_line, open_source

MAX_KEYS = 8


def text_of(line: bytes, column: str) -> str:
    """Return the text under `column` of a line with a JSON object; CorpusError says what the line lacks."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise CorpusError(f"is not JSON: {one_line(error)}") from error
    if not isinstance(row, dict):
        raise CorpusError(f"is not a JSON object, which has its text under a key such as {column!r}")
    if not isinstance(text := row.get(column), str):
        raise CorpusError(f"has no text in {column!r} (name another with --text-column); {_keys(row)}")
    return text


def check_first_line(file: SourceFile, column: str, longest: int) -> None:
    """Raise CorpusError unless the first line of the file that is not blank has a text under `column`.

    Several processes read parts of a file at once, and any of them could be the first to fail. With this check, a key
    that no line has is always reported for the first line.
    """
    number, line = 0, b"\n"
    with open_source(file) as lines, suppress(*DAMAGE):  # damage is reported where the file is read
        while line and not line.strip():
            number, line = number + 1, lines.readline(longest + 1)
    if 0 < len(line) <= longest and line.strip():
        try:
            text_of(line.removeprefix(b"\xef\xbb\xbf"), column)
        except CorpusError as error:
            raise CorpusError(f"{file.label}: line {number} {error}") from error


def _keys(row: dict[str, object]) -> str:
    """Return text that names the keys that hold text or, if none does, all keys."""
    texts = [key for key, value in row.items() if isinstance(value, str)]
    shown = ", ".join(repr(printable(key)) for key in (texts or list(row))[:MAX_KEYS])
    return f"it has text in {shown}" if texts else f"its keys are {shown}" if row else "it has no keys"
