"""Make a dataset from text: `glovewire.preprocess`, for corpora on disk, on the Hugging Face hub, or in memory."""

import errno
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from glovewire.common.addresses import url_of
from glovewire.common.errors import CorpusError
from glovewire.common.storage.artifacts import output_errors
from glovewire.common.storage.dataset import Dataset
from glovewire.common.storage.stores import local, staged

from . import background
from .notebook import Bar

Corpus = str | PathLike[str] | Iterable[Any]
_NOTHING = object()
_PHASES = ("tokenise", "sentences", "vocabulary", "count", "add up", "write")
_PHASE = re.compile(r"phase=(?:'([^']+)'|(\S+))")
_PERCENT = re.compile(r"percent=(\d+)")
_TOKENS_AS_THEY_ARE = {"tokenizer": "whitespace", "sentences": "off", "lowercase": False}


def preprocess(corpus: Corpus, out: str | PathLike[str], *, progress: bool | None = None, **options: Any) -> Dataset:
    """Make a dataset (vocabulary and co-occurrence matrix) in the new folder `out`, and return it.

    `corpus` is `pydoc`, the name of a file or folder, `hf:NAME`, paths, or an iterable: of texts, of lists of tokens,
    or of rows with a text, such as a `datasets.Dataset`. Lists of tokens are counted as they are, case included.
    `options` are those of `glovewire preprocess`: vocab_size, min_count, window, tokenizer, ... `progress` says whether
    to show progress (None: only in notebooks). Uses background processes. Raises CorpusError, OutputError, UsageError.

    >>> texts = ["the cat sits on the mat", "the dog sits on the rug"] * 10
    >>> dataset = glovewire.preprocess(texts, "data/pets", min_count=2)
    >>> dataset
    Dataset('data/pets': 7 words, 35 entries)
    >>> dataset.words
    ('cat', 'dog', 'mat', 'on', 'rug', 'sits', 'the')
    >>> glovewire.preprocess([["New", "York"], ["New", "Delhi"]], "data/places").words
    ('Delhi', 'New', 'York')
    """
    out = Path(out)
    with _names(corpus, staged(out), options) as (names, options), Bar(f"preprocess {out.name}", progress) as bar:
        arguments = [*names, "--out", str(out)]
        result = background.run("preprocess", arguments, options, lambda log: _update(bar, log), show=bar.on_stderr)
        bar.update(1.0, f"{result['words']:,} words, {result['entries']:,} entries of {result['tokens']:,} tokens")
    with local(out) as folder:
        return Dataset.open(folder, verify=False)


@contextmanager
def _names(corpus: Corpus, out: Path, options: dict[str, Any]) -> Iterator[tuple[list[str], dict[str, Any]]]:
    """Yield the corpus as the command names it, and the options; write texts in memory to a temporary file."""
    if isinstance(corpus, (str, PathLike)):
        _check_name(str(corpus))
        yield [str(corpus)], options
        return
    items = iter(corpus)
    first = next(items, _NOTHING)
    items = chain([] if first is _NOTHING else [first], items)
    if isinstance(first, PathLike):
        yield [str(item) for item in items], options
        return
    column = str(options.get("text_column", "text"))
    kept = {name: value for name, value in options.items() if name != "text_column"}
    if isinstance(first, (list, tuple)):
        kept = _TOKENS_AS_THEY_ARE | kept
    with output_errors(out, "dataset"):
        out.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as folder:
        file = Path(folder) / "texts.jsonl"
        with output_errors(file), file.open("w", encoding="utf-8") as stream:
            for number, item in enumerate(items, start=1):
                stream.write(json.dumps({"text": _text(item, number, column)}) + "\n")
        yield [str(file)], kept


def _check_name(name: str) -> None:
    """Raise CorpusError for a name that is too long for a file: the caller may have passed a text."""
    try:
        Path(name).exists()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG and not url_of(name):
            raise CorpusError(f"corpus {name[:100]} has too long a name: to give texts, pass a list of them") from error


def _text(item: Any, number: int, column: str) -> str:
    """Return one item of an iterable as a text; CorpusError if it is not one."""
    if isinstance(item, Mapping):
        if column not in item:
            raise CorpusError(f"row {number} has no {column!r}, but {', '.join(map(str, item))}: name a text_column")
        item = "" if item[column] is None else item[column]  # as in parquet files and data sets of the hub
    if isinstance(item, str):
        return item
    if isinstance(item, (list, tuple)):
        for token in item:
            if not isinstance(token, str) or token.split() != [token]:
                raise CorpusError(f"text {number} has the token {token!r}: tokens are words without blanks")
        return " ".join(item)
    what = None if item is None else type(item).__name__
    raise CorpusError(f"text {number} is {what}: give texts, lists of tokens, or rows with a text")


def _update(bar: Bar, log: Path) -> None:
    """Show the last phase that the command has logged."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    if lines and (found := _PHASE.search(lines[-1])):
        phase, percent = found[1] or found[2], _PERCENT.search(lines[-1])
        done = (int(percent[1]) / 100 if percent else 0.5) if "event=progress" in lines[-1] else 1.0
        place = _PHASES.index(phase) if phase in _PHASES else 0
        bar.update((place + done) / len(_PHASES), phase)
