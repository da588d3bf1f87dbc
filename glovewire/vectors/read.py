"""Read vectors of any origin: a run, a checkpoint, or a file of this or another program, plain or compressed.

The content of a file decides how it is read, never its name. No pickle is loaded.
"""

import json
import lzma
import os
import struct
import zipfile
import zlib
from collections.abc import Sequence
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from glovewire.common.array_types import Rows
from glovewire.common.errors import ArtifactError, MalformedFile, require_extra
from glovewire.common.storage import run_folder as runs
from glovewire.common.storage.artifacts import MANIFEST
from glovewire.common.storage.run_folder import Vectors
from glovewire.common.storage.stores import local
from glovewire.preprocess.corpus.compressed import open_decompressed

from .checkpoint_vectors import is_checkpoint, newest_checkpoint, read_checkpoint
from .fasttext_file import FASTTEXT_MAGIC, read_fasttext
from .word2vec_files import read_words

_COMPRESSED = {b"\x1f\x8b": ".gz", b"BZh": ".bz2", b"\xfd7zXZ\0": ".xz", b"\x28\xb5\x2f\xfd": ".zst"}
_ZIP, _NPY = b"PK\x03\x04", b"\x93NUMPY"
_PICKLES = tuple(bytes([0x80, version]) for version in range(2, 6))
_VECTOR_NAMES, _WORD_NAMES = ("vectors", "embeddings"), ("vocabulary", "words", "vocab")
_MAX_JSON_BYTES = 1 << 30
_DAMAGE = (
    EOFError,
    lzma.LZMAError,
    zlib.error,
    zipfile.BadZipFile,
    ValueError,
    struct.error,
    OverflowError,
    RecursionError,
)


def read_vectors(path: Path, dataset: Path | None = None) -> Vectors:
    """Return the vectors at `path`: of a run, of a checkpoint (or the newest of an unfinished run), or in a file.

    Files: GloVe's text, word2vec's text and binary, fastText's models, npz and safetensors, plain or compressed by
    gzip, bzip2, xz, zstd, or alone in a zip archive. A checkpoint needs its `dataset`, unless the run's `config.toml`
    names it. Raises ArtifactError for a run that is damaged or not finished, MalformedFile for a file that holds no
    vectors, StoreError if `path` is a URL that cannot be read.
    """
    with local(path) as place:
        return _read(place, dataset)


def _read(path: Path, dataset: Path | None) -> Vectors:
    if is_checkpoint(path):
        return read_checkpoint(path, dataset)
    if runs.is_run(path) and not (path / MANIFEST).exists():
        return read_checkpoint(newest_checkpoint(path), dataset)
    if not os.path.isfile(path):  # also False if a folder above it may not be searched
        return runs.load_vectors(path)
    try:
        return _read_file(path)
    except OSError as error:
        if error.errno is None:  # raised by a decompressor
            raise MalformedFile(f"{path} is damaged: {error}") from error
        raise ArtifactError(f"{path} cannot be read: {error.strerror or error}") from error
    except _DAMAGE as error:
        raise MalformedFile(f"{path} is damaged: {error or type(error).__name__}") from error
    except MemoryError as error:
        raise MalformedFile(f"{path} does not fit into memory") from error


def _read_file(path: Path) -> Vectors:
    with path.open("rb") as plain:
        head = plain.read(16)
    compression = next((suffix for magic, suffix in _COMPRESSED.items() if head.startswith(magic)), "")
    with open_decompressed(path, compression) as raw, BufferedReader(cast(Any, raw)) as stream:
        return _read_stream(stream, path, plain=not compression)


def _read_stream(stream: BufferedReader | zipfile.ZipExtFile, path: Path, *, plain: bool = False) -> Vectors:
    """Read a file of any format from its content, decompressed; `plain` if it is that of `path` as it stands."""
    head = stream.peek(16)
    if head.startswith(FASTTEXT_MAGIC):
        return read_fasttext(path, None if plain else stream.read())
    if head.startswith(_ZIP):
        return _read_zip(path if plain else BytesIO(stream.read()), path)
    if head.startswith(_PICKLES):
        raise MalformedFile(
            f"{path} is a Python pickle, which could run any program and is not loaded: write the vectors with "
            "gensim's save_word2vec_format and read that file"
        )
    if head.startswith(_NPY):
        raise MalformedFile(f"{path} is an array without words: give an npz file with `vectors` and `vocabulary`")
    if len(head) > 9 and head[8:9] == b"{" and 2 <= int.from_bytes(head[:8], "little") <= _MAX_JSON_BYTES:
        return _read_safetensors(stream.read(), path)
    return read_words(cast(BinaryIO, stream), path)


# ---- archives


def _read_zip(source: Path | BytesIO, path: Path) -> Vectors:
    """Read numpy's archive, or the only file in another zip archive, as Stanford packs its vectors."""
    with zipfile.ZipFile(source) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")]
        if names and all(name.endswith(".npy") for name in names):
            return _read_npz(source, path)
        if len(names) != 1:
            held = ", ".join(names[:8]) or "nothing"
            raise MalformedFile(f"{path} holds {len(names)} files ({held}): unpack it and name one of them")
        try:
            opened = archive.open(names[0])
        except RuntimeError as error:  # a password, or a compression that Python does not know
            raise MalformedFile(f"{path}: {error}: unpack it with another program and name the file in it") from error
        with opened as stream:
            return _read_stream(cast(zipfile.ZipExtFile, stream), path)


def _read_npz(source: Path | BytesIO, path: Path) -> Vectors:
    with np.load(source, allow_pickle=False) as archive:
        found = ", ".join(archive.files)
        try:
            vectors = next((archive[name] for name in _VECTOR_NAMES if name in archive.files), None)
            words = next((archive[name] for name in _WORD_NAMES if name in archive.files), None)
        except ValueError as error:
            if "allow_pickle" not in str(error):
                raise
            raise MalformedFile(
                f"{path} holds Python objects, which could run any program and are not loaded: save the words as "
                "np.array(words, dtype=str)"
            ) from error
    if vectors is None or words is None or words.ndim != 1 or words.dtype.kind not in "US":
        raise MalformedFile(
            f"{path} holds {found}: an npz file of vectors has `vectors`, of shape (words, dim), and `vocabulary`"
        )
    spelled = np.char.decode(words, "utf-8") if words.dtype.kind == "S" else words
    return _checked(path, [str(word) for word in spelled], vectors)


def _read_safetensors(data: bytes, path: Path) -> Vectors:
    """Read the tensor `vectors`, or the only one, and the words in the metadata `vocabulary`."""
    require_extra("safetensors", "export", f"reading {path}")
    import safetensors
    from safetensors.numpy import load

    try:
        tensors = load(data)
        about = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")]).get("__metadata__", {})
    except safetensors.SafetensorError as error:
        raise MalformedFile(f"{path} is damaged: {error}") from error
    except KeyError as error:  # a number type that numpy lacks
        raise MalformedFile(f"{path} holds {error.args[0]}: convert its tensors to float32") from error
    vectors = tensors.get("vectors", next(iter(tensors.values())) if len(tensors) == 1 else None)
    words = next((json.loads(about[name]) for name in _WORD_NAMES if name in about), None)
    if vectors is None or not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise MalformedFile(
            f"{path} holds {', '.join(tensors)}: a safetensors file of vectors has `vectors` and, in its metadata, "
            "`vocabulary` as a JSON list"
        )
    return _checked(path, words, vectors)


def _checked(path: Path, words: Sequence[str], vectors: Any) -> Vectors:
    """Return words and vectors from a file as Vectors; MalformedFile if they do not fit each other."""
    if vectors.ndim != 2 or len(vectors) != len(words) or vectors.dtype.kind != "f":
        raise MalformedFile(f"{path} holds {vectors.dtype} of shape {vectors.shape} for {len(words)} words")
    with np.errstate(over="ignore"):
        rows: Rows = np.ascontiguousarray(vectors, dtype=np.float32)
    if not len(words) or not np.isfinite(rows).all():
        raise MalformedFile(
            f"{path} holds {'NaN, infinity or a number too large for float32' if len(words) else 'no vectors'}"
        )
    if len(set(words)) < len(words):
        raise MalformedFile(f"{path} holds a word twice")
    if broken := [word for word in words if word.encode(errors="ignore").decode() != word]:  # half a surrogate pair
        raise MalformedFile(f"{path} holds the word {broken[0]!r}, which UTF-8 cannot encode: remove or repair it")
    return Vectors(tuple(words), rows, {})
