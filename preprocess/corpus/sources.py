"""Find the sources that a corpus names (files, folders, standard input, Hugging Face data sets) and divide them.

`datasets` is imported only to load a data set of the Hugging Face hub; without a network, loading fails with a one-line
error.
"""

import os
import re
import socket
import sys
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from glovewire.common.errors import CorpusError

from ..config import PreprocessConfig
from .json_lines import check_first_line
from .splits import (
    InputSplit,
    SourceFile,
    TextFormat,
    file_splits,
    identity,
    in_batches,
    one_line,
    open_source,
    stream_splits,
)

_FORMATS: dict[str, TextFormat] = {".txt": "text", ".jsonl": "jsonl", ".parquet": "parquet"}
_COMPRESSIONS = (".gz", ".xz", ".zst", ".bz2")
_WIKITEXT = ("wikitext-2-raw-v1", "wikitext-103-raw-v1")
_SHARD = re.compile(r"(\w+)-\d{5}-of-\d{5}\.parquet")
_OFFLINE_WAYS = "use `pydoc`, a text file, or the data set's parquet files copied into a folder"
_CONNECT_S = 1.5
_HUB_ROWS = 1000
_ITEMS_BYTES = 1 << 20
_SHOWN_OF_NAME = 100
# Approximate size of prose relative to its compressed form, and to its Parquet form.
_COMPRESSED_TIMES, _PARQUET_TIMES = 3, 2


@dataclass(frozen=True)
class Corpus:
    """The sources, in order, that `config` names; a source of type str is `-`, `pydoc` or `hf:...`."""

    config: PreprocessConfig
    sources: tuple[SourceFile | str, ...]

    @property
    def description(self) -> str:
        """Return the names that the user gave, joined by ` + `, with paths reduced to file names."""
        names = [Path(name).name if os.path.exists(name) else name for name in self.config.corpus]
        return " + ".join(["standard input" if name == "-" else name for name in names])

    @property
    def nbytes(self) -> int | None:
        """Return the total size in bytes if all sources are uncompressed text or jsonl, read whole; else None."""
        if self.config.lines is not None:
            return None
        files = [each for each in self.sources if isinstance(each, SourceFile)]
        plain = [file.size for file in files if not file.compression and file.format != "parquet"]
        return sum(plain) if len(plain) == len(self.sources) else None

    @property
    def estimated_bytes(self) -> int:
        """Estimate the size of the text in bytes; 0 with a line limit and for sources that are not files."""
        if self.config.lines is not None:
            return 0
        return sum(_estimated_size(source) for source in self.sources if isinstance(source, SourceFile))

    def fingerprint(self) -> list[list[Any]]:
        """Return each file's path, size and modification time, or the source's name; --resume requires equal values."""
        return [
            list(identity(source.path, source.label)) if isinstance(source, SourceFile) else [source]
            for source in self.sources
        ]

    def splits(self) -> Iterator[InputSplit]:
        """Yield every split in order, with its `ordinal`; CorpusError if a source cannot be read."""
        ordinal, left = 0, self.config.lines
        for source in self.sources:
            for split in self._source_splits(source, left):
                yield replace(split, ordinal=ordinal)
                ordinal += 1
                if left is not None:
                    left -= split.items
            if left is not None and left <= 0:
                return

    def _source_splits(self, source: SourceFile | str, limit: int | None) -> Iterator[InputSplit]:
        longest = self.config.longest_line
        if isinstance(source, SourceFile) and source.format == "parquet":
            from .parquet import row_group_splits  # pyarrow takes 0.2 s

            yield from row_group_splits(source, limit)
        elif isinstance(source, SourceFile):
            if source.format == "jsonl":
                check_first_line(source, self.config.text_column, longest)
            if source.compression or limit is not None:  # such a file must be read from its beginning
                with open_source(source) as stream:
                    yield from stream_splits(stream, source.label, source.format, longest, limit)
            else:
                yield from file_splits(source)
        elif source == "-":
            yield from stream_splits(sys.stdin.buffer, "standard input", "text", longest, limit)
        elif source == "pydoc":
            from .pydoc_corpus import paragraphs

            yield from item_splits(paragraphs(self.config.processes), source, limit)
        else:
            yield from item_splits(_hub_texts(source, self.config), source, limit)


def find_corpus(config: PreprocessConfig) -> Corpus:
    """Return the corpus that `config` names; CorpusError for a name that is missing, unreadable or unsupported."""
    sources: list[SourceFile | str] = []
    for name in config.corpus:
        try:
            sources += _sources(name, config.split)
        except OSError as error:
            file = str(error.filename or name)[:_SHOWN_OF_NAME]
            raise CorpusError(f"corpus {file} cannot be read: {error.strerror or error}") from error
    if sources.count("-") > 1:
        raise CorpusError("standard input (-) can be named once")
    return Corpus(config, tuple(sources))


def _sources(name: str, dataset_split: str) -> list[SourceFile] | list[str]:
    path = Path(name)
    if not name:
        raise CorpusError("the name of a corpus is empty: name pydoc, a file, a folder, hf:NAME, or -")
    if name in _WIKITEXT and not path.exists():
        return [f"hf:Salesforce/wikitext:{name}"]
    if name in ("pydoc", "-") or name.startswith("hf:"):
        return [name]
    return _folder(path, dataset_split) if path.is_dir() else [_file(path, path.name)]


def item_splits(texts: Iterator[str], label: str, limit: int | None) -> Iterator[InputSplit]:
    """Yield splits that carry their texts, which only this process can read; at most `limit` texts."""
    for held in in_batches((text.encode(errors="replace") for text in islice(texts, limit)), _ITEMS_BYTES):
        yield InputSplit("items", label, items=len(held), data=b"".join(held), lengths=tuple(map(len, held)))


def _estimated_size(file: SourceFile) -> int:
    if file.compression:
        return file.size * _COMPRESSED_TIMES
    return file.size * (_PARQUET_TIMES if file.format == "parquet" else 1)


def _file(path: Path, label: str) -> SourceFile:
    if not path.exists():
        known = f"pydoc, {', '.join(_WIKITEXT)}, hf:NAME"
        raise CorpusError(f"corpus {path} does not exist, and is not one of the known names: {known}")
    if not path.is_file() or not os.access(path, os.R_OK):
        raise CorpusError(f"corpus {path} cannot be read")
    suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
    compression = suffixes.pop() if suffixes and suffixes[-1] in _COMPRESSIONS else ""
    if compression and suffixes and suffixes[-1] in _COMPRESSIONS:
        raise CorpusError(f"{label} is compressed twice: decompress it once first")
    format = _FORMATS.get(suffixes[-1] if suffixes else "", "text")
    if format == "parquet" and compression:
        raise CorpusError(f"{label}: a parquet file is compressed inside; decompress it first")
    return SourceFile(path, label, format, compression)


def _folder(folder: Path, dataset_split: str) -> list[SourceFile]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and _is_corpus_file(path, folder))
    shards = {path: match[1] for path in paths if (match := _SHARD.fullmatch(path.name))}
    chosen = [path for path in paths if shards.get(path, dataset_split) == dataset_split]
    if not chosen:
        held = f" of split {dataset_split!r}; it has {', '.join(sorted(set(shards.values())))}" if shards else ""
        raise CorpusError(f"folder {folder} holds no .txt, .jsonl or .parquet file{held}")
    return [_file(path, path.relative_to(folder).as_posix()) for path in chosen]


def _is_corpus_file(path: Path, folder: Path) -> bool:
    if any(part.startswith(".") for part in path.relative_to(folder).parts):
        return False
    name = path.name.lower()
    for compression in _COMPRESSIONS:
        name = name.removesuffix(compression)
    return Path(name).suffix in _FORMATS


def _hub_texts(name: str, config: PreprocessConfig) -> Iterator[str]:
    """Yield the texts of a data set of the Hugging Face hub; CorpusError if it cannot be loaded."""
    require_hub(name)
    _, dataset, *subset = name.split(":")
    column = config.text_column
    faults = _hub_faults()
    try:
        rows = load_from_hub(dataset, *subset[:1], split=config.split, streaming=not _is_offline())
        for batch in rows.iter(batch_size=_HUB_ROWS):
            if column not in batch:
                raise CorpusError(f"{name} has no column {column!r}; it has {', '.join(batch)}")
            for text in batch[column]:
                if not isinstance(text, str | None):
                    raise CorpusError(
                        f"{name}: column {column!r} holds {type(text).__name__}, not text (--text-column)"
                    )
                yield text or ""
    except faults as error:
        raise CorpusError(f"{name} cannot be loaded: {one_line(error)}; {_OFFLINE_WAYS}") from error


def load_from_hub(name: str, *config: str, split: str, streaming: bool) -> Any:
    """Open one split of a data set of the Hugging Face hub."""
    import datasets

    return datasets.load_dataset(name, *config, split=split, streaming=streaming)


def _hub_faults() -> tuple[type[BaseException], ...]:
    import datasets.exceptions
    from huggingface_hub.errors import HfHubHTTPError

    transport = HfHubHTTPError.__bases__  # errors of the HTTP library that the installed hub client uses
    return (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError, *transport)


def _is_offline() -> bool:
    names = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE")
    return any(os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE") for name in names)


def require_hub(name: str) -> None:
    """Raise CorpusError within two seconds if the hub is unreachable, where `datasets` would retry for minutes."""
    proxies = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")
    if _is_offline() or any(os.environ.get(proxy) for proxy in proxies):
        return
    url = urllib.parse.urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co"))
    try:
        socket.create_connection((url.hostname, url.port or 443), timeout=_CONNECT_S).close()
    except OSError as error:
        reason = error.strerror or str(error) or "no answer"
        raise CorpusError(
            f"{name} needs {url.hostname}, which cannot be reached ({reason}); {_OFFLINE_WAYS}"
        ) from error
