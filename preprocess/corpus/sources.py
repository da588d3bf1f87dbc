"""What a user calls a corpus: names, files, folders, standard input, Hugging Face data sets; all of it as blocks.

Nothing here tokenises or counts. The only module beside `tokens` that may import `datasets`, and only for a name of
the hub; without a network that is one clear line.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glovewire.common.errors import CorpusError

from .parquet import row_groups
from .splits import Block, File, Form, file_stream, spans, stream

_FORMS: dict[str, Form] = {".txt": "text", ".jsonl": "jsonl", ".parquet": "parquet"}
_COMPRESSIONS = (".gz", ".xz", ".zst", ".bz2")
_WIKITEXT = ("wikitext-2-raw-v1", "wikitext-103-raw-v1")
_SHARD = re.compile(r"(\w+)-\d{5}-of-\d{5}\.parquet")
_OFFLINE_WAYS = "take `pydoc`, a text file, or the data set's parquet files copied into a folder"
_REACH_S = 1.5
# How much larger prose is than its compressed form, roughly.
_COMPRESSED_TIMES, _PARQUET_TIMES = 3, 2
_HUB_ROWS = 1000


@dataclass(frozen=True)
class Selection:
    """What to take of a corpus: `lines` at most (None: all), the column of text, the split; the longest line, bytes."""

    lines: int | None
    text_column: str
    split: str
    longest_line: int
    processes: int = 1


@dataclass(frozen=True)
class Corpus:
    """Named sources in order. `nbytes` is what is known of their size, None where a stream has none."""

    names: tuple[str, ...]
    sources: tuple[File | str, ...]
    selection: Selection

    @property
    def description(self) -> str:
        """The corpus in a few words, without folders of this machine."""
        names = [Path(name).name if Path(name).exists() else name for name in self.names]
        return " + ".join(["standard input" if name == "-" else name for name in names])

    @property
    def nbytes(self) -> int | None:
        """Bytes of blocks to come, as far as that is known: None with anything but plain files taken whole."""
        if self.selection.lines is not None:
            return None
        sizes = [_plain_size(source) for source in self.sources]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    @property
    def estimated_bytes(self) -> int:
        """A guess at the bytes of text, for the disk: 0 where nothing is known."""
        if self.selection.lines is not None:
            return 0
        return sum(_estimate(source) for source in self.sources if isinstance(source, File))

    def fingerprint(self) -> list[list[Any]]:
        """What must not change between a run and its resumption."""
        return [
            [str(source.path), source.size, source.path.stat().st_mtime_ns] if isinstance(source, File) else [source]
            for source in self.sources
        ]

    def blocks(self) -> Iterator[Block]:
        """Every block in order; raises CorpusError where a source cannot be read."""
        ordinal, left = 0, self.selection.lines
        for source in self.sources:
            for block in self._source_blocks(source, ordinal, left):
                yield block
                ordinal = block.ordinal + 1
                if left is not None:
                    left -= _items(block)
            if left is not None and left <= 0:
                return

    def _source_blocks(self, source: File | str, first: int, left: int | None) -> Iterator[Block]:
        longest = self.selection.longest_line
        if isinstance(source, File):
            if source.form == "parquet":
                return row_groups(source, first, left)
            if source.compression or left is not None:
                return file_stream(source, first, longest, left)
            return spans(source, first)
        if source == "-":
            return stream(sys.stdin.buffer, "standard input", "text", first, longest, left)
        if source == "pydoc":
            from .pydoc_corpus import paragraphs

            return packed_items(paragraphs(self.selection.processes), source, first, left)
        return packed_items(_hub_texts(source, self.selection), source, first, left)


def find(names: tuple[str, ...], selection: Selection) -> Corpus:
    """The corpus of these names; CorpusError for what is not there or of no known kind."""
    sources: list[File | str] = []
    for name in names:
        path = Path(name)
        if name in ("pydoc", "-"):
            sources.append(name)
        elif name in _WIKITEXT and not path.exists():
            sources.append(f"hf:Salesforce/wikitext:{name}")
        elif name.startswith("hf:"):
            sources.append(name)
        elif path.is_dir():
            sources.extend(_folder(path, selection.split))
        else:
            sources.append(_file(path, path.name))
    if sources.count("-") > 1:
        raise CorpusError("standard input (-) can be named once")
    return Corpus(names, tuple(sources), selection)


def packed_items(texts: Iterator[str], label: str, first: int, limit: int | None) -> Iterator[Block]:
    """Blocks of texts that exist only in this process."""
    held: list[bytes] = []
    size, ordinal = 0, first
    for n, text in enumerate(texts):
        if limit is not None and n >= limit:
            break
        held.append(text.encode(errors="replace"))
        size += len(held[-1])
        if size > 1 << 20:
            yield _items_block(ordinal, label, held)
            ordinal, size, held = ordinal + 1, 0, []
    if held:
        yield _items_block(ordinal, label, held)


def _items_block(ordinal: int, label: str, held: list[bytes]) -> Block:
    return Block(ordinal, "items", label, data=b"".join(held), lengths=tuple(len(text) for text in held))


def _items(block: Block) -> int:
    from .splits import count_items

    if block.form == "items":
        return len(block.lengths)
    if block.items is not None:
        return block.items
    return count_items(block.data or b"", block.form)


def _plain_size(source: File | str) -> int | None:
    if not isinstance(source, File) or source.compression or source.form == "parquet":
        return None
    return source.size


def _estimate(file: File) -> int:
    if file.compression:
        return file.size * _COMPRESSED_TIMES
    return file.size * (_PARQUET_TIMES if file.form == "parquet" else 1)


def _file(path: Path, label: str) -> File:
    if not path.exists():
        known = f"pydoc, {', '.join(_WIKITEXT)}, hf:NAME"
        raise CorpusError(f"corpus {path} does not exist (and is no known name: {known})")
    if not path.is_file() or not os.access(path, os.R_OK):
        raise CorpusError(f"corpus {path} cannot be read")
    suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
    compression = suffixes.pop() if suffixes and suffixes[-1] in _COMPRESSIONS else ""
    form = _FORMS.get(suffixes[-1] if suffixes else "", "text")
    if form == "parquet" and compression:
        raise CorpusError(f"{label}: a parquet file is compressed inside; decompress it first")
    return File(path, label, form, compression)


def _folder(folder: Path, split: str) -> list[File]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and _is_corpus_file(path, folder))
    shards = {path: match[1] for path in paths if (match := _SHARD.fullmatch(path.name))}
    chosen = [path for path in paths if shards.get(path, split) == split]
    if not chosen:
        held = f" of split {split!r}; it has {', '.join(sorted(set(shards.values())))}" if shards else ""
        raise CorpusError(f"folder {folder} holds no .txt, .jsonl or .parquet file{held}")
    return [_file(path, path.relative_to(folder).as_posix()) for path in chosen]


def _is_corpus_file(path: Path, folder: Path) -> bool:
    if any(part.startswith(".") for part in path.relative_to(folder).parts):
        return False
    name = path.name.lower()
    for compression in _COMPRESSIONS:
        name = name.removesuffix(compression)
    return Path(name).suffix in _FORMS


def _hub_texts(name: str, selection: Selection) -> Iterator[str]:
    """The texts of a data set of the hub, streamed."""
    _require_hub(name)
    _, dataset, *config = name.split(":")
    faults = _hub_faults()
    try:
        rows = _load(dataset, *config[:1], split=selection.split, streaming=not _offline())
        for batch in rows.iter(batch_size=_HUB_ROWS):
            if selection.text_column not in batch:
                raise CorpusError(f"{name} has no column {selection.text_column!r}; it has {', '.join(batch)}")
            yield from (text or "" for text in batch[selection.text_column])
    except faults as error:
        raise CorpusError(f"{name} cannot be had: {' '.join(str(error).split())[:200]}; {_OFFLINE_WAYS}") from error


def _load(name: str, *config: str, split: str, streaming: bool) -> Any:
    import datasets

    return datasets.load_dataset(name, *config, split=split, streaming=streaming)


def _hub_faults() -> tuple[type[BaseException], ...]:
    import datasets.exceptions
    from huggingface_hub.errors import HfHubHTTPError

    transport = HfHubHTTPError.__bases__  # whichever HTTP library the installed hub client uses
    return (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError, *transport)


def _offline() -> bool:
    names = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE")
    return any(os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE") for name in names)


def _require_hub(name: str, connect: Callable[..., Any] = socket.create_connection) -> None:
    """Raise CorpusError within two seconds when the hub cannot be reached; `datasets` alone retries for minutes."""
    proxies = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")
    if _offline() or any(os.environ.get(proxy) for proxy in proxies):
        return
    url = urllib.parse.urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co"))
    try:
        connect((url.hostname, url.port or 443), timeout=_REACH_S).close()
    except OSError as error:
        reason = error.strerror or str(error) or "no answer"
        why = f"{name} needs {url.hostname}, which cannot be reached ({reason})"
        raise CorpusError(f"{why}; {_OFFLINE_WAYS}") from error
