"""Export a run or a dataset atomically to a file or folder in one of the formats of `formats` and `matrix`."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from glovewire.common.errors import ArtifactError, UsageError
from glovewire.common.storage import dataset as datasets
from glovewire.common.storage import run_folder as runs
from glovewire.common.storage.artifacts import Manifest, atomic, files_in, output_errors, require_free

from . import formats, matrix
from .fasttext_file import write_fasttext
from .formats import most_frequent_first
from .read import read_vectors

VECTOR_FORMATS = {
    "glove": formats.write_glove,
    "word2vec": formats.write_word2vec,
    "word2vec-bin": formats.write_word2vec_bin,
    "npz": formats.write_npz,
    "safetensors": formats.write_safetensors,
    "projector": formats.write_projector,
    "fasttext-bin": write_fasttext,
}
DATASET_FORMATS = ("npz", "stanford")


def export(path: Path, form: str, out: Path, *, centre: bool = False, seed: int = 0) -> dict[str, Any]:
    """Write the run or dataset in `path` to `out`; return what was written, as plain values.

    `path` may also be a file of vectors. `centre` subtracts the mean vector first; `seed` shuffles Stanford's records
    (datasets). Raises ArtifactError for a damaged source, OutputError for an `out` that exists or cannot be written,
    UsageError for a format that does not fit the source, MissingExtra for a library that is not installed.
    """
    require_free(out, what="export")
    kind = runs.KIND if path.is_file() or runs.is_run(path) else Manifest.read(path).kind
    if kind == runs.KIND:
        facts = _export_vectors(path, form, out, centre=centre)
    elif kind == datasets.KIND:
        facts = _export_dataset(path, form, out, seed=seed)
    else:
        raise ArtifactError(f"{path} is a {kind}: only a run or a dataset can be exported")
    return {"format": form, "out": str(out), **facts, "bytes": sum(path.stat().st_size for path in files_in(out))}


def _export_vectors(path: Path, form: str, out: Path, *, centre: bool) -> dict[str, Any]:
    if form not in VECTOR_FORMATS:
        raise UsageError(f"{path} holds vectors, which go to {', '.join(VECTOR_FORMATS)}, not to {form}")
    if centre and form == "fasttext-bin":
        raise UsageError("--centre moves known words alone, and fasttext-bin has unseen words, too")
    loaded = _by_frequency(read_vectors(path))
    if centre:
        loaded = replace(loaded, vectors=loaded.vectors - loaded.vectors.mean(axis=0))
    with _atomic_output(out) as scratch:
        VECTOR_FORMATS[form](scratch, loaded)
    return {"kind": runs.KIND, "words": len(loaded.words), "dim": loaded.dim}


def _by_frequency(loaded: runs.Vectors) -> runs.Vectors:
    """Return the vectors sorted by descending count of their words; unchanged if the run has no counts."""
    if loaded.counts is None:
        return loaded
    order = most_frequent_first(loaded.words, loaded.counts)
    words = tuple(loaded.words[row] for row in order)
    return replace(loaded, words=words, vectors=loaded.vectors[order], counts=loaded.counts[order])


def _export_dataset(path: Path, form: str, out: Path, *, seed: int) -> dict[str, Any]:
    if form not in DATASET_FORMATS:
        raise UsageError(f"{path} is a dataset, which goes to {' or '.join(DATASET_FORMATS)}, not to {form}")
    opened = datasets.Dataset.open(path)
    with _atomic_output(out) as scratch:
        if form == "npz":
            matrix.write_npz(scratch, opened)
        else:
            matrix.write_stanford(scratch, opened, seed)
    return {"kind": datasets.KIND, "words": len(opened.words), "entries": opened.total_entries}


@contextmanager
def _atomic_output(out: Path) -> Iterator[Path]:
    """Yield a scratch path that is renamed to `out` at the end; OutputError if `out` cannot be written."""
    with output_errors(out, "export"):
        out.parent.mkdir(parents=True, exist_ok=True)
        with atomic(out) as scratch:
            yield scratch
