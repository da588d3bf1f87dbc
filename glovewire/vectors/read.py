"""Read vectors: of a finished run, of a fastText model, or of a text file in GloVe's or word2vec's format."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from glovewire.common.array_types import Rows
from glovewire.common.errors import ArtifactError, MalformedFile
from glovewire.common.storage.run_folder import Vectors, load_vectors

from .fasttext_file import is_fasttext, read_fasttext


def read_vectors(path: Path) -> Vectors:
    """Return the vectors at `path`, a run's folder or a file.

    Raises ArtifactError for a run that is damaged or not finished, MalformedFile for a file that holds no vectors.
    """
    if not path.is_file():
        return load_vectors(path)
    try:
        return read_fasttext(path) if is_fasttext(path) else _read_text(path)
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {error.strerror or error}") from error


def _read_text(path: Path) -> Vectors:
    """Read lines of a word and its numbers, separated by blanks; a first line of two numbers is word2vec's header."""
    words: dict[str, None] = {}
    rows: list[Rows] = []
    for number, line in _lines(path):
        word, *fields = line.rstrip().split(" ")
        if number == 1 and len(fields) == 1 and word.isdecimal() and fields[0].isdecimal():
            continue
        try:
            row = np.array(fields, dtype=np.float32)
        except ValueError as error:
            raise MalformedFile(f"{path}, line {number}: expected a word and its numbers") from error
        if word in words or not len(row) or (rows and len(row) != len(rows[0])) or not np.isfinite(row).all():
            raise MalformedFile(
                f"{path}, line {number}: expected a new word and as many finite numbers as in the lines before"
            )
        words[word] = None
        rows.append(row)
    if not rows:
        raise MalformedFile(f"{path} holds no vectors")
    return Vectors(tuple(words), np.array(rows), {})


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    with path.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            try:
                yield number, line.decode()
            except UnicodeDecodeError as error:
                raise MalformedFile(
                    f"{path} is no run, no model of fastText and no text of word vectors: line {number} is not UTF-8"
                ) from error
