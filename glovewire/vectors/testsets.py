"""Read test sets: word pairs with a human similarity score, and analogy questions.

MalformedFile names the file and the line. The case of words is kept.
"""

import csv
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from glovewire.common.errors import MalformedFile
from glovewire.common.storage.artifacts import input_errors

Pair = tuple[str, str, float]
Question = tuple[str, str, str, str]
KINDS = SEMANTIC, SYNTACTIC = "semantic", "syntactic"


@dataclass(frozen=True)
class Section:
    """Analogy questions of one section: in a question (a, b, c, d), a is to b as c is to d."""

    name: str
    questions: tuple[Question, ...]

    @property
    def kind(self) -> str:
        """Return `syntactic` for sections whose name starts with `gram`, as in Google's set; else `semantic`."""
        return SYNTACTIC if self.name.startswith("gram") else SEMANTIC


def read_pairs(path: Path) -> tuple[Pair, ...]:
    """Return the pairs of `word word score` lines, separated by blanks, tabs or commas.

    Skips empty lines, `#` comments and a line of column names at the beginning; of lines with commas or tabs, only the
    first three columns count, as in WordSim's files. Raises MalformedFile if a file cannot be read, has no pairs or
    has a malformed line.
    """
    pairs = []
    for place, (number, line) in enumerate(_lines(path)):
        try:
            fields = _fields(line)
        except csv.Error as error:
            raise MalformedFile(f"{path}, line {number}: {error}") from error
        if place or not _are_column_names(line, fields):
            pairs.append(_pair(path, number, fields))
    if not pairs:
        raise MalformedFile(f"{path} contains no word pairs")
    return tuple(pairs)


def _fields(line: str) -> list[str]:
    for mark in ("\t", ","):
        if line.count(mark) >= 2:
            return [field.strip() for field in next(csv.reader([line], delimiter=mark))[:3]]
    return line.split()


def _are_column_names(line: str, fields: list[str]) -> bool:
    """Return whether the first line of a file names three columns: the last field is not a number."""
    try:
        float(fields[-1])
    except (ValueError, IndexError):
        return len(fields) == 3 and ("," in line or "\t" in line or fields[0].lower().startswith("word"))
    return False


def read_questions(path: Path) -> tuple[Section, ...]:
    """Return the questions of a file in Google's format: `: section` lines, and lines of four words.

    Raises MalformedFile for a file that cannot be read, has no questions or has a malformed line.
    """
    sections: dict[str, list[Question]] = {}
    name = ""
    for number, line in _lines(path):
        if line.startswith(":"):
            name = line[1:].strip().lower()
        else:
            words = line.split()
            if len(words) != 4:
                raise MalformedFile(f"{path}, line {number}: expected four words, found {len(words)}")
            sections.setdefault(name, []).append((words[0], words[1], words[2], words[3]))
    if not sections:
        raise MalformedFile(f"{path} contains no analogy questions")
    return tuple(Section(name, tuple(questions)) for name, questions in sections.items())


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    with input_errors(path, MalformedFile):
        try:
            text = path.read_bytes().decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise MalformedFile(f"{path} is not UTF-8 text") from error
    for number, line in enumerate(re.split("\r\n|\r|\n", text), start=1):
        if (bare := line.strip()) and not bare.startswith("#"):
            yield number, bare


def _pair(path: Path, number: int, fields: list[str]) -> Pair:
    try:
        first, second, text = fields
        score = float(text)
    except ValueError as error:
        raise MalformedFile(f"{path}, line {number}: expected two words and a score") from error
    if not math.isfinite(score):
        raise MalformedFile(f"{path}, line {number}: the score is {text}")
    return first, second, score
