"""Make datasets of one text with vocabularies of several sizes, for `glovewire bench scale`."""

import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import numpy as np

from glovewire.common.errors import CorpusError, UsageError
from glovewire.common.storage.artifacts import MANIFEST, Manifest, output_errors, write_text_atomically
from glovewire.common.storage.dataset import KIND, SCHEMA, Dataset
from glovewire.preprocess.config import PreprocessConfig
from glovewire.preprocess.corpus.sources import find_corpus

from ..vectors.export import export
from ..vectors.matrix import COOCCURRENCE, RECORD, VOCABULARY
from .config import ScaleBenchConfig
from .preprocess import preprocess

MADE_OF = "made-of.json"
_RECORDS_AT_ONCE = 1 << 22


def make_datasets(config: ScaleBenchConfig, scratch: Path, report: Callable[[str], None]) -> dict[int, Path]:
    """Return the dataset of each vocabulary that the text has enough words for; `report` gets what is left out.

    Makes those that the work folder (else `scratch`) lacks. Raises UsageError for a work folder of another text, and
    CorpusError if the text has fewer words than the smallest vocabulary.
    """
    work = config.work or scratch
    full = Dataset.open(Path(config.corpus)) if Path(config.corpus, MANIFEST).exists() else None
    _claim(config, work, full)
    found: dict[int, Path] = {}
    sizes = sorted(set(config.sizes))
    for size in sizes:
        path = work / f"words-{size}"
        if not path.exists():
            report(f"preprocessing {size:,} words")
            how = config.of_size(size, path) if full is None else _of_dataset(config, full, size, path, scratch)
            preprocess(how)
        words = int(Manifest.load(path, KIND, SCHEMA, verify=False).facts["vocabulary"])
        if words < size:
            if not found:
                raise CorpusError(f"{config.corpus} has {words:,} words: name a smaller --vocab-size or a larger text")
            left = ", ".join(f"{each:,}" for each in sizes if each > words)
            report(f"{config.corpus} has {words:,} words: left out {left}")
            break
        found[size] = path
    return found


def _claim(config: ScaleBenchConfig, work: Path, full: Dataset | None) -> None:
    """Record in the work folder what its datasets are made from; UsageError if it records a different source."""
    how = config.of_size(config.sizes[0], work)
    source = find_corpus(how).fingerprint() if full is None else full.checksum
    made_of = json.dumps({"corpus": source, "window": config.window, "schema": SCHEMA}) + "\n"
    note = work / MADE_OF
    with output_errors(note):
        known = note.read_text(encoding="utf-8") if note.exists() else None
        if (known is None and any(work.glob("words-*"))) or known not in (None, made_of):
            raise UsageError(f"{work} holds datasets of another text, window or version: name another --work")
        write_text_atomically(note, made_of)


def _of_dataset(config: ScaleBenchConfig, full: Dataset, size: int, out: Path, scratch: Path) -> PreprocessConfig:
    """Write the matrix of the `size` most frequent words of a dataset; return options to make a dataset from it."""
    whole, part = scratch / "whole", scratch / f"most-frequent-{size}"
    if not whole.exists():
        export(full.path, "stanford", whole)
    part.mkdir()
    records = np.memmap(whole / COOCCURRENCE, RECORD, "r")
    with output_errors(part), (part / COOCCURRENCE).open("wb") as stream:
        for first in range(0, len(records), _RECORDS_AT_ONCE):
            piece = records[first : first + _RECORDS_AT_ONCE]
            stream.write(piece[(piece["word1"] <= size) & (piece["word2"] <= size)].tobytes())
        with (whole / VOCABULARY).open("rb") as words:
            (part / VOCABULARY).write_bytes(b"".join(islice(words, size)))
    return PreprocessConfig(
        from_stanford=(part / COOCCURRENCE, part / VOCABULARY),
        out=out,
        symmetric=full.layout.symmetric,
        processes=config.processes,
        memory=config.memory,
    )
