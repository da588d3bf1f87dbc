"""The RUN folder: vectors written whole, read back exactly, and every damage told in one line."""

from __future__ import annotations

import json
import shutil
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from handmade import random_dataset
from permissions import closed
from small_disk import may_mount, small_disk

from glovewire.common.endings import Ending, RunEnd
from glovewire.common.errors import ArtifactError, NotFinite, OutputError
from glovewire.common.model.options import PRESETS, TrainingOptions
from glovewire.common.model.postprocess import flatten_spectrum
from glovewire.common.model.subwords import Subwords, fit
from glovewire.common.storage import artifacts
from glovewire.common.storage import run_folder as runs
from glovewire.common.storage.artifacts import MANIFEST, Manifest, seal, writing_artifact
from glovewire.common.storage.dataset import Dataset

WORDS = ["café", "river", "the"]
COUNTS = np.array([2, 2, 9])


def table(words: int = 3, dim: int = 4) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(words, dim)).astype(np.float32)


def random_words(count: int) -> list[str]:
    """Nearly `count` different words of eight letters."""
    letters = np.random.default_rng(1).choice(list("abcdefgh"), (count, 8))
    return sorted({"".join(word) for word in letters})


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = runs.prepare(tmp_path / "deep" / "run")
    (folder / runs.METRICS).write_text("{}\n")
    return folder


def one_line(error: pytest.ExceptionInfo[Exception]) -> str:
    text = str(error.value)
    assert text
    assert "\n" not in text
    return text


def test_vectors_come_back_as_they_were_written(run: Path) -> None:
    runs.write_vectors(run, WORDS, table(), {"loss": 0.25})
    loaded = runs.load_vectors(run)
    assert loaded.words == tuple(WORDS)
    assert loaded.index["the"] == 2
    assert loaded.dim == 4
    assert loaded.facts == {"loss": 0.25, "words": 3, "dim": 4}
    assert loaded.vectors.dtype == np.float32
    np.testing.assert_array_equal(loaded.vectors, table())
    assert Manifest.read(run).kind == runs.KIND
    assert not loaded.vectors.flags.writeable
    assert loaded.counts is None


def test_counts_come_back_as_they_were_written(run: Path) -> None:
    runs.write_vectors(run, WORDS, table(), counts=COUNTS)
    np.testing.assert_array_equal(runs.load_vectors(run).counts, COUNTS)


def fitted(words: list[str], vectors: np.ndarray) -> tuple[np.ndarray, Subwords]:
    """The vectors with compositions in them, and the n-grams; `vectors` keep their values."""
    ours = vectors.copy()
    return ours, fit(words, ours, 0.5)


def test_ngrams_come_back_as_they_were_written(run: Path, tmp_path: Path) -> None:
    vectors, ngrams = fitted(WORDS, table())
    other = runs.prepare(tmp_path / "other")
    for folder in (run, other):
        runs.write_vectors(folder, WORDS, vectors, counts=COUNTS, subwords=ngrams)
    loaded = runs.load_vectors(run)
    assert loaded.subwords is not None
    for name in ("ngrams", "factor", "scale", "lowercase"):
        assert getattr(loaded.subwords, name) == getattr(ngrams, name)
    for name in ("buckets", "places", "rows"):
        np.testing.assert_array_equal(getattr(loaded.subwords, name), getattr(ngrams, name))
    np.testing.assert_array_equal(loaded.subwords.compose("rivers"), ngrams.compose("rivers"))
    assert loaded.facts["subwords"]["factor"] == 0.5
    for name in (runs.VECTORS, runs.NGRAMS, runs.BUCKETS):
        assert (run / name).read_bytes() == (other / name).read_bytes()
    runs.write_vectors(run, WORDS, vectors, loaded.facts)
    assert runs.load_vectors(run).subwords is None
    assert "subwords" not in runs.load_vectors(run).facts
    assert not (run / runs.NGRAMS).exists()


@pytest.mark.parametrize(
    ("options", "ending", "factor"),
    [
        ({}, Ending.COMPLETE, 1.2),
        ({"objective": "sgns"}, Ending.COMPLETE, 0.7),
        ({"objective": "sgns", "subwords": 0.3}, Ending.ASKED, 0.3),
        ({"subwords": 0.0}, Ending.COMPLETE, 0.0),
        (PRESETS["baseline"], Ending.COMPLETE, 0.0),
        ({}, Ending.STOPPED, 0.0),
    ],
)
def test_a_training_ends_with_ngrams(run: Path, options: dict[str, Any], ending: Ending, factor: float) -> None:
    random_dataset(run / "data", size=20)
    dataset = Dataset.open(run / "data")
    how = TrainingOptions.from_flags(dim=4, **options)
    trained = flatten_spectrum(table(20), how.spectrum)
    runs.write_trained(run, dataset, how, table(20), RunEnd(ending).as_fields())
    loaded = runs.load_vectors(run)
    if not factor:
        np.testing.assert_array_equal(loaded.vectors, trained)
        assert loaded.subwords is None
        return
    fit(dataset.words, trained, factor)
    np.testing.assert_array_equal(loaded.vectors, trained)
    assert loaded.subwords is not None
    assert loaded.subwords.factor == factor


@pytest.mark.parametrize("dim", [256, 512])
def test_vectors_come_before_ngrams_on_a_disk_with_room_for_one(tmp_path: Path, dim: int) -> None:
    """The n-grams alone fit on the disk if there are 256 dimensions, else not even they do."""
    if not may_mount(tmp_path):
        pytest.skip("needs the right to mount a tiny file system")
    words = random_words(200)
    runs.write_with_ngrams(runs.prepare(tmp_path / "large"), words, table(len(words), dim), 1.0)
    vectors, ngrams = ((tmp_path / "large" / name).stat().st_size for name in (runs.VECTORS, runs.NGRAMS))
    with small_disk(tmp_path / "small"):
        run, room = runs.prepare(tmp_path / "small" / "run"), shutil.disk_usage(tmp_path / "small").free
        assert vectors < room < vectors + ngrams
        assert (ngrams < room) == (dim == 256)
        with pytest.raises(OutputError, match=r"ngrams\.npy cannot be written: no space left on the disk$"):
            runs.write_with_ngrams(run, words, table(len(words), dim), 1.0)
        assert (run / runs.VECTORS).read_bytes() == (tmp_path / "large" / runs.VECTORS).read_bytes()
        assert sorted(path.name for path in run.iterdir()) == [runs.BUCKETS, runs.VECTORS, runs.VOCABULARY]


def test_ngrams_are_written_without_being_in_memory(run: Path) -> None:
    words = random_words(20_000)
    vectors, again = table(len(words), 192), table(len(words), 192)
    fit(words[:9], table(9, 192), 1.0)  # compiles
    peaks = []
    tracemalloc.start()
    try:
        expected = fit(words, vectors, 1.0).rows
        peaks.append(tracemalloc.get_traced_memory()[1])
        np.save(run / "expected.npy", expected)
        size = expected.nbytes
        del expected
        tracemalloc.reset_peak()
        runs.write_with_ngrams(run, words, again, 1.0)
        peaks.append(tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()
    assert peaks[1] < peaks[0] - size / 2
    assert (run / runs.NGRAMS).read_bytes() == (run / "expected.npy").read_bytes()
    np.testing.assert_array_equal(np.load(run / runs.VECTORS), vectors)


BROKEN_NGRAMS = {
    "rows of integers": (np.ones((2, 4), np.int32), [[1, 0], [4, 1]], {}),
    "rows too short": (np.ones((2, 3), np.float16), [[1, 0], [4, 1]], {}),
    "one row": (np.ones(4, np.float16), [[1, 0], [4, 0]], {}),
    "a pickle": (np.array([None, 1], object), [[1, 0], [4, 0]], {}),
    "NaN": (np.full((2, 4), np.nan, np.float16), [[1, 0], [4, 1]], {}),
    "falling buckets": (np.ones((2, 4), np.float16), [[4, 0], [1, 1]], {}),
    "a bucket twice": (np.ones((2, 4), np.float16), [[4, 0], [4, 1]], {}),
    "a negative bucket": (np.ones((2, 4), np.float16), [[-1, 0], [4, 1]], {}),
    "a bucket too many": (np.ones((2, 4), np.float16), [[1, 0], [10, 1]], {}),
    "a row too many": (np.ones((2, 4), np.float16), [[1, 0], [4, 2]], {}),
    "a negative row": (np.ones((2, 4), np.float16), [[1, -1], [4, 0]], {}),
    "buckets alone": (np.ones((2, 4), np.float16), [1, 4, 5], {}),
    "no facts": (np.ones((2, 4), np.float16), [[1, 0], [4, 1]], None),
    "facts of another kind": (np.ones((2, 4), np.float16), [[1, 0], [4, 1]], {"buckets": []}),
    "impossible n-grams": (np.ones((2, 4), np.float16), [[1, 0], [4, 1]], {"longest": 2}),
    "infinite scale": (np.ones((2, 4), np.float16), [[1, 0], [4, 1]], {"scale": float("inf")}),
}


@pytest.mark.parametrize("name", BROKEN_NGRAMS)
def test_ngrams_that_cannot_be_are_refused(run: Path, name: str) -> None:
    rows, buckets, changed = BROKEN_NGRAMS[name]
    runs.write_vectors(run, WORDS, table())
    np.save(run / runs.NGRAMS, rows, allow_pickle=True)
    np.save(run / runs.BUCKETS, np.array(buckets, np.int32))
    about = {"shortest": 3, "longest": 6, "buckets": 10, "factor": 0.5, "scale": 1.0, "lowercase": True}
    facts = {} if changed is None else {runs.SUBWORDS: about | changed}
    seal(run, runs.KIND, runs.SCHEMA, facts, only=(runs.VECTORS, runs.VOCABULARY, runs.NGRAMS, runs.BUCKETS))
    with pytest.raises(ArtifactError) as error:
        runs.load_vectors(run)
    assert str(run) in one_line(error)


def test_float64_is_stored_as_float32_and_the_bytes_depend_on_the_content_alone(run: Path, tmp_path: Path) -> None:
    other = runs.prepare(tmp_path / "other")
    runs.write_vectors(run, WORDS, table().astype(np.float64))
    runs.write_vectors(other, WORDS, np.asfortranarray(table()))
    assert (run / runs.VECTORS).read_bytes() == (other / runs.VECTORS).read_bytes()


def test_files_that_go_on_changing_are_not_sealed(run: Path) -> None:
    runs.write_vectors(run, WORDS, table())
    (run / runs.METRICS).write_text("{}\n{}\n")
    (run / runs.CHECKPOINTS).mkdir()
    (run / runs.PLOT).write_bytes(b"png")
    runs.load_vectors(run)
    assert set(json.loads((run / MANIFEST).read_text())["files"]) == {runs.VECTORS, runs.VOCABULARY}


def test_writing_again_replaces_and_leaves_no_scratch(run: Path) -> None:
    runs.write_vectors(run, WORDS, table(), counts=COUNTS)
    mapped = runs.load_vectors(run)
    runs.write_vectors(run, ["a", "b"], table(2))
    assert runs.load_vectors(run).words == ("a", "b")
    np.testing.assert_array_equal(mapped.vectors, table())
    assert {p.name for p in run.iterdir()} == {MANIFEST, runs.METRICS, runs.VECTORS, runs.VOCABULARY}


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused_and_the_old_vectors_stay(run: Path, value: float) -> None:
    runs.write_vectors(run, WORDS, table())
    bad = table()
    bad[1, 2] = value
    with pytest.raises(NotFinite) as error:
        runs.write_vectors(run, WORDS, bad)
    assert "'river'" in one_line(error)
    np.testing.assert_array_equal(runs.load_vectors(run).vectors, table())


def test_a_count_for_each_word_is_needed(run: Path) -> None:
    with pytest.raises(ArtifactError, match=r"counts\.npy cannot hold an array of shape \(2,\) for 3 words"):
        runs.write_vectors(run, WORDS, table(), counts=COUNTS[:2])
    assert not (run / runs.VECTORS).exists()


@pytest.mark.parametrize("words", [["a", "b"], ["a", "b", "a"], ["a", "b", ""], ["a", "b", "c\nd"]])
def test_words_that_do_not_fit_are_refused(run: Path, words: list[str]) -> None:
    with pytest.raises(ArtifactError) as error:
        runs.write_vectors(run, words, table())
    one_line(error)
    assert not (run / runs.VECTORS).exists()


def test_a_run_in_training_says_so(run: Path) -> None:
    with pytest.raises(ArtifactError, match="training has not finished"):
        runs.load_vectors(run)


def test_a_run_that_was_interrupted_while_writing_says_so(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs.write_vectors(run, WORDS, table())

    def full(*_: object, **__: object) -> None:
        raise OutputError("no space left on the disk")

    monkeypatch.setattr(artifacts, "write_text_atomically", full)
    with pytest.raises(OutputError):
        runs.write_vectors(run, ["x", "y", "z"], table() + 1)
    with pytest.raises(ArtifactError, match="training has not finished"):
        runs.load_vectors(run)


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ArtifactError) as error:
            runs.load_vectors(path)
        one_line(error)


def test_a_folder_that_may_not_be_searched(run: Path) -> None:
    """Seen to fail: a PermissionError with its traceback."""
    with pytest.raises(ArtifactError, match="Permission denied") as error, closed(run.parent):
        runs.load_vectors(run)
    one_line(error)


def test_another_kind_of_artifact_is_named(tmp_path: Path) -> None:
    with writing_artifact(tmp_path / "data", "dataset", 1, {}):
        pass
    with pytest.raises(ArtifactError, match="is a folder of kind dataset: give the folder of a run with vectors"):
        runs.load_vectors(tmp_path / "data")


@pytest.mark.parametrize("name", [runs.VECTORS, runs.VOCABULARY, runs.COUNTS])
@pytest.mark.parametrize("harm", ["missing", "truncated", "altered"])
def test_damage_is_told_in_one_line_that_names_the_file(run: Path, name: str, harm: str) -> None:
    runs.write_vectors(run, WORDS, table(), counts=COUNTS)
    path = run / name
    data = path.read_bytes()
    if harm == "missing":
        path.unlink()
    else:
        path.write_bytes(data[:-1] if harm == "truncated" else data[:-2] + b"!" + data[-1:])
    with pytest.raises(ArtifactError) as error:
        runs.load_vectors(run)
    assert name in one_line(error)


def reseal(run: Path) -> None:
    seal(run, runs.KIND, runs.SCHEMA, {}, only=(runs.VECTORS, runs.VOCABULARY, runs.COUNTS))


def test_vectors_sealed_by_another_program_are_still_checked(run: Path) -> None:
    runs.write_vectors(run, WORDS, table(), counts=COUNTS)
    np.save(run / runs.COUNTS, COUNTS[:2])
    reseal(run)
    with pytest.raises(ArtifactError, match=r"counts\.npy is not an int64 array with a count for each of 3 words"):
        runs.load_vectors(run)
    np.save(run / runs.COUNTS, COUNTS)
    bad = table()
    bad[0, 0] = np.nan
    np.save(run / runs.VECTORS, bad)
    reseal(run)
    with pytest.raises(ArtifactError, match="NaN"):
        runs.load_vectors(run)
    np.save(run / runs.VECTORS, table(2))
    reseal(run)
    with pytest.raises(ArtifactError, match="3 words"):
        runs.load_vectors(run)
    np.save(run / runs.VECTORS, np.array([{}], dtype=object), allow_pickle=True)
    reseal(run)
    with pytest.raises(ArtifactError, match="no readable vectors"):
        runs.load_vectors(run)


def test_prepare_takes_an_empty_folder_and_refuses_any_other(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    assert runs.prepare(empty) == empty
    (empty / "x").write_text("")
    with pytest.raises(OutputError, match="exists already"):
        runs.prepare(empty)
    with pytest.raises(OutputError):
        runs.prepare(empty / "x")
    with pytest.raises(OutputError, match="not a folder"):
        runs.prepare(empty / "x" / "run")


def test_the_facts_of_a_complete_run_are_found_again(run: Path) -> None:
    words, vectors = ["a", "b"], np.zeros((2, 3), np.float32)
    for ending in Ending:
        runs.write_vectors(run, words, vectors, RunEnd(ending).as_fields())
        found = runs.completed_facts(run)
        assert (found is not None) == (ending is Ending.COMPLETE)
    (run / MANIFEST).unlink()
    assert runs.completed_facts(run) is None


def test_every_file_that_cannot_be_written_is_named_and_the_others_are_there(run: Path) -> None:
    for name in (runs.VECTORS, runs.VOCABULARY):
        (run / name / "in the way").mkdir(parents=True)
    with pytest.raises(OutputError) as refused:
        runs.write_vectors(run, WORDS, table(), counts=COUNTS)
    assert runs.VECTORS in str(refused.value)
    assert runs.VOCABULARY in str(refused.value)
    np.testing.assert_array_equal(np.load(run / runs.COUNTS), COUNTS)
    assert not (run / MANIFEST).exists()


def test_all_is_attempted_and_the_error_has_the_type_of_the_last() -> None:
    done = []

    def fail(error: Exception) -> None:
        done.append(error)
        raise error

    one, two = NotFinite("one"), OutputError("two")
    with pytest.raises(OutputError, match=r"^one; two$"):
        artifacts.attempt_all(lambda: fail(one), lambda: done.append("between"), lambda: fail(two))
    assert done == [one, "between", two]
    with pytest.raises(NotFinite) as alone:
        artifacts.attempt_all(lambda: fail(one), lambda: done.append("after"))
    assert alone.value is one
    assert done[-1] == "after"


def test_tensors_come_back_under_their_names(run: Path) -> None:
    """Seen to fail: `a.npy` came back with the values of `a`."""
    values = {name: np.full((2, 3), number, np.float32) for number, name in enumerate(("a", "a.npy", "a.npy.npy"))}
    runs.write_tensors(run, values, {})
    loaded, _ = runs.load_tensors(run)
    assert {name: value.tolist() for name, value in loaded.items()} == {
        name: value.tolist() for name, value in values.items()
    }
