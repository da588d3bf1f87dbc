"""Write vectors or a dataset to a file, a folder or standard output, in one of the formats of `formats` and `matrix`.

Files and folders appear whole or not at all. A file whose name ends in .gz, .bz2, .xz or .zst is compressed.
"""

import bz2
import gzip
import lzma
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO, cast

from glovewire.common.addresses import url_of
from glovewire.common.errors import ArtifactError, UsageError
from glovewire.common.storage import dataset as datasets
from glovewire.common.storage import run_folder as runs
from glovewire.common.storage.artifacts import Manifest, atomic, files_in, output_errors, require_free
from glovewire.common.storage.stores import local, uploaded

from . import formats, matrix
from .checkpoint_vectors import is_checkpoint
from .fasttext_file import write_fasttext
from .formats import by_frequency
from .read import read_vectors

STREAM_FORMATS = {
    "glove": formats.write_glove,
    "word2vec": formats.write_word2vec,
    "word2vec-bin": formats.write_word2vec_bin,
    "npz": formats.write_npz,
    "safetensors": formats.write_safetensors,
    "fasttext-bin": write_fasttext,
}
SEEKING_FORMATS = ("npz", "fasttext-bin")
"""Formats whose writers seek in the file instead of writing it from beginning to end."""
VECTOR_FORMATS = (*STREAM_FORMATS, "projector", "run")
DATASET_FORMATS = ("npz", "stanford")
STDOUT = Path("-")
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
_BY_SUFFIX = {".npz": "npz", ".safetensors": "safetensors", "": "run"}


def export(
    path: Path, form: str, out: Path, *, centre: bool = False, seed: int = 0, dataset: Path | None = None
) -> dict[str, Any]:
    """Write the vectors or dataset in `path` to `out`, `-` for stdout; return what was written, as plain values.

    `path` is anything that `read_vectors` reads, with its `dataset`. `centre` subtracts the mean vector first; `seed`
    shuffles Stanford's records (datasets). Raises ArtifactError for a damaged source, OutputError for an `out` that
    exists or cannot be written, UsageError for a format or option that does not fit the source, MissingExtra for
    a library that is not installed.
    """
    with local(path) as place, uploaded(out, "export") as target:
        if out != STDOUT:
            require_free(target, what="export")
        holds_vectors = os.path.isfile(place) or runs.is_run(place) or is_checkpoint(place)
        kind = runs.KIND if holds_vectors else Manifest.read(place).kind
        if kind == runs.KIND:
            facts = _export_vectors(place, form, target, centre=centre, dataset=dataset)
        elif kind == datasets.KIND:
            facts = _export_dataset(place, form, target, centre=centre, seed=seed)
        else:
            raise ArtifactError(f"{place} is a {kind}: only vectors, a run or a dataset can be exported")
        size = {} if out == STDOUT else {"bytes": sum(file.stat().st_size for file in files_in(target))}
        return {"format": form, "out": url_of(out) or str(out), **facts, **size}


def save(loaded: runs.Vectors, out: Path, form: str | None) -> None:
    """Write vectors to `out` in the format `form`, by default that of its name; raises as `export` does."""
    if form is None:
        suffix = _without_compression(out).suffix.lower()
        if suffix not in _BY_SUFFIX:
            raise UsageError(f"name a format for {out}: one of {', '.join(VECTOR_FORMATS)}")
        form = _BY_SUFFIX[suffix]
    if form not in VECTOR_FORMATS:
        raise UsageError(f"no format is called {form!r}: use one of {', '.join(VECTOR_FORMATS)}")
    with uploaded(out, "export") as place:
        require_free(place, what="export")
        _write_vectors(by_frequency(loaded), form, place)


def _export_vectors(path: Path, form: str, out: Path, *, centre: bool, dataset: Path | None) -> dict[str, Any]:
    if form not in VECTOR_FORMATS:
        raise UsageError(f"{path} holds vectors, which go to {', '.join(VECTOR_FORMATS)}, not to {form}")
    if centre and form == "fasttext-bin":
        raise UsageError("--centre does not fit fasttext-bin: it would move the known words, but not the unseen ones")
    loaded = by_frequency(read_vectors(path, dataset))
    if centre:
        loaded = replace(loaded, vectors=loaded.vectors - loaded.vectors.mean(axis=0))
    _write_vectors(loaded, form, out)
    return {"kind": runs.KIND, "words": len(loaded.words), "dim": loaded.dim}


def _write_vectors(loaded: runs.Vectors, form: str, out: Path) -> None:
    if form in STREAM_FORMATS:
        with _stream_to(out) as stream:
            if form in SEEKING_FORMATS and (out == STDOUT or _without_compression(out) != out):
                with TemporaryFile() as file:
                    STREAM_FORMATS[form](cast(BinaryIO, file), loaded)
                    file.seek(0)
                    shutil.copyfileobj(file, stream)
            else:
                STREAM_FORMATS[form](stream, loaded)
        return
    if out == STDOUT or _without_compression(out) != out:
        raise UsageError(f"{form} is a folder, which cannot go to {'stdout' if out == STDOUT else out.name}")
    if form == "run":
        runs.prepare(out)
        runs.write_vectors(out, loaded.words, loaded.vectors, loaded.facts, loaded.counts, loaded.subwords)
        return
    with _atomic_output(out) as scratch:
        formats.write_projector(scratch, loaded)


def _export_dataset(path: Path, form: str, out: Path, *, centre: bool, seed: int) -> dict[str, Any]:
    if centre:
        raise UsageError(f"{path} is a dataset, which has no mean vector to subtract: leave out --centre")
    if form not in DATASET_FORMATS:
        raise UsageError(f"{path} is a dataset, which goes to {' or '.join(DATASET_FORMATS)}, not to {form}")
    if out == STDOUT or _without_compression(out) != out:
        raise UsageError(f"a dataset goes to a file or folder, not to {'stdout' if out == STDOUT else out.name}")
    opened = datasets.Dataset.open(path)
    with _atomic_output(out) as scratch:
        if form == "npz":
            matrix.write_npz(scratch, opened)
        else:
            matrix.write_stanford(scratch, opened, seed)
    return {"kind": datasets.KIND, "words": len(opened.words), "entries": opened.total_entries}


# ---- destinations


def _without_compression(out: Path) -> Path:
    return out.with_suffix("") if out.suffix.lower() in _COMPRESSED else out


@contextmanager
def _stream_to(out: Path) -> Iterator[BinaryIO]:
    """Yield a stream whose content becomes the file `out`, compressed as its name says, or goes to stdout."""
    if out == STDOUT:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    with _atomic_output(out) as scratch, scratch.open("wb") as plain, _compressing(plain, out.suffix.lower()) as stream:
        yield stream


def _compressing(plain: BinaryIO, suffix: str) -> AbstractContextManager[Any]:
    """Return a stream that compresses into `plain`; equal content gives equal bytes."""
    match suffix:
        case ".gz":
            return gzip.GzipFile("", "wb", 6, plain, mtime=0)
        case ".bz2":
            return bz2.BZ2File(plain, "wb")
        case ".xz":
            return lzma.LZMAFile(plain, "wb")
        case ".zst":
            import pyarrow as pa

            return cast(AbstractContextManager[Any], pa.CompressedOutputStream(pa.PythonFile(plain, "w"), "zstd"))
    return nullcontext(plain)


@contextmanager
def _atomic_output(out: Path) -> Iterator[Path]:
    """Yield a scratch path that is renamed to `out` at the end; OutputError if `out` cannot be written."""
    with output_errors(out, "export"):
        out.parent.mkdir(parents=True, exist_ok=True)
        with atomic(out) as scratch:
            yield scratch
