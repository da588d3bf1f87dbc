"""Write and read the results in a RUN folder: vectors, or the tensors of a dense model.

The folder exists during training, while its metrics, plot and checkpoints keep changing. `manifest.json` therefore
lists only the results and is written last: an unfinished run has no manifest. The results are
`vectors.npy`, `vocabulary.txt`, `counts.npy` and the n-grams of the words (kind `vectors`), or `tensors.npz` (kind
`tensors`); numpy reads them without Glovewire. This module changes no other file of the folder and loads no pickle.
"""

import os
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from ..array_types import Array, Floats, Indices, Rows
from ..endings import Ending
from ..errors import ArtifactError, NotFinite, OutputError, UsageError
from ..model.options import TrainingOptions
from ..model.postprocess import flatten_spectrum
from ..model.subwords import Halves, Ngrams, NgramStore, Subwords, fit
from . import artifacts
from .dataset import Dataset

KIND, TENSORS_KIND = "vectors", "tensors"
SCHEMA = TENSORS_SCHEMA = 2
VECTORS, VOCABULARY, COUNTS = "vectors.npy", "vocabulary.txt", "counts.npy"
NGRAMS, BUCKETS, SUBWORDS = "ngrams.npy", "ngram_buckets.npy", "subwords"
"""Files with the vectors of n-grams and the row of each bucket, and the manifest's fact that describes them."""
TENSORS = "tensors.npz"
METRICS, PLOT, CONFIG, CHECKPOINTS = "metrics.jsonl", "loss.png", "config.toml", "checkpoints"
_CHECK_ROWS = 8192


@dataclass(frozen=True)
class Vectors:
    """The vectors of a finished run: `vectors` is float32 of shape (words, dim), read-only, row i for `words[i]`.

    `counts`, int64 of shape (words,), says how often each word occurs in the text; None if unknown. `subwords` compose
    the vectors of other words; None if there are none.
    """

    words: tuple[str, ...]
    vectors: Rows
    facts: Mapping[str, Any]
    counts: Indices | None = None
    subwords: Subwords | None = None

    @cached_property
    def index(self) -> dict[str, int]:
        """Return the row number of each word."""
        return {word: row for row, word in enumerate(self.words)}

    @property
    def dim(self) -> int:
        """Return the number of dimensions of a vector."""
        return int(self.vectors.shape[1])


def prepare(run: Path) -> Path:
    """Create the folder `run` for a new training and return it; OutputError if it is not empty or cannot be made."""
    artifacts.require_free(run, what="run")
    with artifacts.output_errors(run, "run"):
        artifacts.make_folder(run)
    return run


def started_before(run: Path) -> OutputError:
    """Return the error for a new training in a folder where one was started before."""
    return OutputError(f"run {run} exists already: continue it (--resume), name another place or remove it")


def is_run(folder: Path) -> bool:
    """Return whether training was started in `folder`, finished or not; False if the folder may not be searched."""
    return any(os.path.isfile(folder / name) for name in (CONFIG, METRICS))


def completed_facts(run: Path) -> Mapping[str, Any] | None:
    """Return the manifest's facts of a completed training; None if it is incomplete or its vectors are damaged."""
    with suppress(ArtifactError):
        facts = load_vectors(run).facts
        return facts if facts.get("ending") == Ending.COMPLETE else None
    return None


# ---- vectors


def write_trained(
    run: Path, dataset: Dataset, options: TrainingOptions, vectors: Rows, facts: Mapping[str, Any]
) -> None:
    """Post-process the trained vectors of a run in place, as its options ask, and write them.

    `vectors`: float32 (words, dim), in the order of the vocabulary. A run stopped by a signal gets no n-grams, because
    fitting them may take longer than the process has left.
    """
    flatten_spectrum(vectors, options.spectrum)
    if options.subwords and facts.get("ending") != Ending.STOPPED:
        write_with_ngrams(run, dataset.words, vectors, options.subwords, facts, dataset.counts)
    else:
        write_vectors(run, dataset.words, vectors, facts, dataset.counts)


def write_with_ngrams(
    run: Path,
    words: Sequence[str],
    vectors: Rows,
    factor: float,
    facts: Mapping[str, Any] | None = None,
    counts: Indices | None = None,
) -> Subwords:
    """Fit n-grams to `vectors`, mix them in with the weight `factor`, in place, and write both with `write_vectors`.

    Returns the n-grams. They are written to disk while they are being fitted, because they are as large as the vectors.
    """
    with closing(_NgramsFile(run / NGRAMS)) as file:
        subwords = fit(words, vectors, factor, kept=file)
        write_vectors(run, words, vectors, facts, counts, subwords, file)
        return subwords


class _NgramsFile(NgramStore):
    """Vectors of n-grams, written a few columns at a time beside `path` and moved there when they are complete.

    On a disk with room for only one of the two, the vectors of words take precedence: n-grams that cannot be written,
    or that take the room of the vectors, are removed, and `move` raises the reason.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._scratch = path, artifacts.scratch_path(path)
        self._failure: OutputError | None = None
        self._shape = 0, 0

    def close(self) -> None:
        """Remove the file unless it was moved."""
        with suppress(OSError):  # on a failing disk, the next start removes the file
            self._scratch.unlink(missing_ok=True)

    def allocate(self, rows: int, dim: int) -> None:
        """Make the file; it takes up disk space only as columns are put into it."""
        self._shape = rows, dim
        self._attempt(partial(artifacts.make_array, self._scratch, self._shape, np.dtype(np.float16)))

    def put(self, columns: slice, values: Halves) -> None:
        """Write some columns of all rows."""
        self._attempt(partial(artifacts.put_columns, self._scratch, columns, values))

    def rows(self) -> Halves:
        """Return all rows, mapped; no rows if they could not be written."""
        if self._failure is not None:
            return np.empty((0, self._shape[1]), np.float16)
        with artifacts.output_errors(self._path):
            return artifacts.load_array(self._scratch, mapped=True)

    def give_way(self, error: OutputError) -> None:
        """Remove the n-grams, because `error` says that the vectors cannot be written beside them."""
        _, _, why = str(error).rpartition(" cannot be written: ")
        self._fail(OutputError(f"file {self._path} cannot be written: {why}"))

    def move(self) -> None:
        """Move the file to its place."""
        self._attempt(partial(artifacts.move_into_place, self._scratch, self._path))
        if self._failure is not None:
            raise self._failure

    def _attempt(self, write: Callable[[], None]) -> None:
        if self._failure is None:
            try:
                with artifacts.output_errors(self._path):
                    write()
            except OutputError as error:
                self._fail(error)

    def _fail(self, error: OutputError) -> None:
        self._failure = error
        with suppress(OSError):
            os.truncate(self._scratch, 0)  # a mapped file keeps its disk space when it is removed
            self._scratch.unlink()


def write_vectors(
    run: Path,
    words: Sequence[str],
    vectors: Floats,
    facts: Mapping[str, Any] | None = None,
    counts: Indices | None = None,
    subwords: Subwords | None = None,
    ngrams: _NgramsFile | None = None,
) -> artifacts.Manifest:
    """Write `vectors.npy`, `vocabulary.txt`, `counts.npy`, n-grams and their manifest into `run`, replacing older ones.

    `vectors`: shape (words, dim), row i for `words[i]`, stored as float32; `counts`: shape (words,), occurrences in
    the text, if known; `subwords`: the n-grams, if there are any, whose vectors may be in the file `ngrams` already.
    `facts` (plain JSON values) go into the manifest alongside the sizes. Raises NotFinite for NaN or infinity and
    ArtifactError for words or shapes that do not match, both before any file changes; OutputError, which names every
    file that cannot be written.
    """
    table = np.ascontiguousarray(vectors, dtype="<f4")
    _check_words(run, words)
    if table.ndim != 2 or len(table) != len(words):
        raise ArtifactError(f"{run / VECTORS} cannot hold an array of shape {table.shape} for {len(words)} words")
    if (bad := _first_not_finite(table)) is not None:
        raise NotFinite(f"the vector of {words[bad]!r} holds NaN or infinity: {run / VECTORS} was not written")
    if counts is not None and counts.shape != (len(words),):
        raise ArtifactError(f"{run / COUNTS} cannot hold an array of shape {counts.shape} for {len(words)} words")
    arrays: dict[str, Array] = {VECTORS: table}
    described: dict[str, Any] = {}
    if counts is not None:
        arrays[COUNTS] = counts.astype("<i8")
    if subwords is not None:
        arrays[NGRAMS] = subwords.rows
        arrays[BUCKETS] = np.column_stack([subwords.buckets, subwords.places]).astype("<i4")
        mixed = {"factor": subwords.factor, "scale": subwords.scale, "lowercase": subwords.lowercase}
        described[SUBWORDS] = mixed | asdict(subwords.ngrams)
    with artifacts.output_errors(run, "run"):
        for name in (artifacts.MANIFEST, COUNTS, NGRAMS, BUCKETS):
            (run / name).unlink(missing_ok=True)
    writes: dict[str, Callable[[], None]] = {name: partial(_save, run / name, array) for name, array in arrays.items()}
    vocabulary = "".join(f"{word}\n" for word in words)
    writes[VOCABULARY] = partial(artifacts.write_text_atomically, run / VOCABULARY, vocabulary)
    if ngrams is not None:
        writes[VECTORS] = partial(_save_first, writes[VECTORS], ngrams)
        writes[NGRAMS] = ngrams.move
    artifacts.attempt_all(*writes.values())
    sizes = {"words": len(words), "dim": int(table.shape[1])}
    kept = {name: value for name, value in (facts or {}).items() if name != SUBWORDS}
    return artifacts.seal(run, KIND, SCHEMA, {**kept, **sizes, **described}, only=writes)


def add_facts(run: Path, facts: Mapping[str, Any]) -> None:
    """Add facts to the manifest of a finished run's vectors; ArtifactError if there are none."""
    manifest = artifacts.Manifest.load(run, KIND, SCHEMA, verify=False)
    artifacts.seal(run, KIND, SCHEMA, {**manifest.facts, **facts}, only=tuple(manifest.files))


def _save(path: Path, array: Array) -> None:
    with artifacts.output_errors(path), artifacts.atomic(path) as scratch:
        artifacts.save_array(scratch, array)


def _save_first(save: Callable[[], None], ngrams: _NgramsFile) -> None:
    """Save vectors; if there is no room, remove the n-grams first."""
    try:
        save()
    except OutputError as error:
        ngrams.give_way(error)
        save()


def load_vectors(run: Path, *, verify: bool = True) -> Vectors:
    """Map the vectors of a finished run; with `verify`, checksums and finiteness are checked first.

    Raises ArtifactError if training has not finished or a file is missing, truncated, altered or not finite.
    """
    if is_run(run) and not (run / artifacts.MANIFEST).exists():
        raise ArtifactError(f"training has not finished: {run} has no vectors yet")
    if (kind := artifacts.Manifest.read(run, KIND).kind) != KIND:
        raise ArtifactError(f"{run} is a folder of kind {kind}: give the folder of a run with vectors")
    manifest = artifacts.Manifest.load(run, KIND, SCHEMA, verify=verify)
    with artifacts.damage_errors(f"{run} holds no readable vectors"):
        words = tuple((run / VOCABULARY).read_bytes().decode().split("\n")[:-1])
        vectors = artifacts.load_array(run / VECTORS, mapped=True)
        counts = artifacts.load_array(run / COUNTS) if COUNTS in manifest.files else None
    if vectors.dtype != np.float32 or vectors.ndim != 2 or len(vectors) != len(words):
        raise ArtifactError(f"{run / VECTORS} is not a float32 array with a row for each of {len(words)} words")
    if verify and (bad := _first_not_finite(vectors)) is not None:
        raise ArtifactError(f"{run / VECTORS}: the vector of {words[bad]!r} holds NaN or infinity")
    if counts is not None and (counts.dtype != np.int64 or counts.shape != (len(words),)):
        raise ArtifactError(f"{run / COUNTS} is not an int64 array with a count for each of {len(words)} words")
    return Vectors(words, vectors, manifest.facts, counts, _load_subwords(run, manifest, vectors.shape[1], verify))


def _load_subwords(run: Path, manifest: artifacts.Manifest, dim: int, verify: bool) -> Subwords | None:
    """Map the n-grams of a run, None if it has none; ArtifactError if their files do not match each other."""
    if NGRAMS not in manifest.files:
        return None
    with artifacts.damage_errors(f"{run} holds no readable n-grams", KeyError, UsageError):
        about = manifest.facts[SUBWORDS]
        ngrams = Ngrams(*(int(about[name]) for name in ("shortest", "longest", "buckets")))
        factor, scale, lowercase = float(about["factor"]), float(about["scale"]), bool(about["lowercase"])
        rows = artifacts.load_array(run / NGRAMS, mapped=True)
        buckets, places = artifacts.load_array(run / BUCKETS).reshape(-1, 2).T
    if rows.dtype not in (np.float16, np.float32) or rows.ndim != 2 or rows.shape[1] != dim:
        raise ArtifactError(f"{run / NGRAMS} is not an array of float16 or float32 with {dim} columns")
    known = buckets.dtype == np.int32 and (np.diff(buckets, prepend=-1, append=ngrams.buckets) > 0).all()
    if not known or not ((places >= 0) & (places < len(rows))).all():
        raise ArtifactError(f"{run / BUCKETS} does not name ascending buckets below {ngrams.buckets:,} and their rows")
    if not np.isfinite([factor, scale]).all() or (verify and _first_not_finite(rows) is not None):
        raise ArtifactError(f"{run / NGRAMS} holds NaN or infinity")
    return Subwords(ngrams, buckets, places, rows, factor, scale, lowercase)


def _check_words(run: Path, words: Sequence[str]) -> None:
    if len(set(words)) != len(words):
        raise ArtifactError(f"{run / VOCABULARY} cannot hold the same word twice")
    for word in words:
        if not word or "\n" in word:
            raise ArtifactError(f"{run / VOCABULARY} cannot hold the word {word!r}")


def _first_not_finite(table: Floats) -> int | None:
    """Return the number of the first row with NaN or infinity, None if there is none."""
    for start in range(0, len(table), _CHECK_ROWS):
        good = np.isfinite(table[start : start + _CHECK_ROWS]).all(axis=1)
        if not good.all():
            return start + int(np.argmin(good))
    return None


# ---- tensors


def write_tensors(run: Path, values: Mapping[str, Array], facts: Mapping[str, Any]) -> artifacts.Manifest:
    """Write `tensors.npz` and its manifest into the folder `run`; equal values give equal bytes."""
    with artifacts.atomic_stream(run / TENSORS) as stream, zipfile.ZipFile(stream, "w") as archive:
        for name, value in values.items():
            member = zipfile.ZipInfo(f"{name}.npy")  # dated 1980: the bytes do not depend on the time of writing
            with archive.open(member, "w", force_zip64=True) as into:
                np.lib.format.write_array(into, np.asanyarray(value), allow_pickle=False)
    return artifacts.seal(run, TENSORS_KIND, TENSORS_SCHEMA, {**facts, "tensors": len(values)}, only=(TENSORS,))


def load_tensors(run: Path | str, *, verify: bool = True) -> tuple[dict[str, Array], artifacts.Manifest]:
    """Return the tensors of a finished run by name, and its manifest; ArtifactError if they are damaged or missing."""
    run = Path(run)
    manifest = artifacts.Manifest.load(run, TENSORS_KIND, TENSORS_SCHEMA, verify=verify)
    damage = artifacts.damage_errors(f"{run / TENSORS} cannot be read", zipfile.BadZipFile)
    with damage, np.load(run / TENSORS, allow_pickle=False) as archive:
        return {member.removesuffix(".npy"): archive[member] for member in archive.zip.namelist()}, manifest
