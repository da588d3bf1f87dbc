"""Every export is read back by the program it is for, or by its documented layout; nothing half-written is left."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest
import scipy.sparse
from click.testing import CliRunner
from handmade import full_matrix, random_dataset, write_dataset

from glovewire.common import errors as extras
from glovewire.common.errors import ArtifactError, MissingExtra, OutputError, UsageError
from glovewire.common.model.subwords import fit
from glovewire.common.storage import run_folder as runs
from glovewire.common.storage.artifacts import writing_artifact
from glovewire.vectors import cli, formats, matrix
from glovewire.vectors.export import STREAM_FORMATS, VECTOR_FORMATS, export

WORDS = ["!", "café", "don't", "日本", "zoo"]


@pytest.fixture
def table() -> np.ndarray:
    return (np.random.default_rng(2).normal(size=(5, 7)) * 10.0 ** np.arange(-6, 1)).astype(np.float32)


@pytest.fixture
def run(tmp_path: Path, table: np.ndarray) -> Path:
    folder = runs.prepare(tmp_path / "run")
    runs.write_vectors(folder, WORDS, table)
    return folder


@pytest.mark.parametrize("form", VECTOR_FORMATS)
def test_the_most_frequent_word_comes_first(table: np.ndarray, tmp_path: Path, form: str) -> None:
    pytest.importorskip("safetensors")
    counts, order = np.array([3, 7, 3, 9, 7]), [3, 1, 4, 0, 2]
    ngrams = fit(WORDS, table.copy(), 0.5)
    if form in ("fasttext-bin", "run"):  # which hold the counts, too
        counts[:] = 1
        order = sorted(range(5), key=lambda row: WORDS[row].encode())
    runs.write_vectors(runs.prepare(tmp_path / "counted"), WORDS, table, counts=counts, subwords=ngrams)
    sorted_words = [WORDS[row] for row in order]
    kept = counts if form == "run" else None
    runs.write_vectors(runs.prepare(tmp_path / "sorted"), sorted_words, table[order], counts=kept, subwords=ngrams)
    for name in ("counted", "sorted"):
        export(tmp_path / name, form, tmp_path / f"{name}.out")
    written = [_bytes(tmp_path / f"{name}.out") for name in ("counted", "sorted")]
    assert written[0] == written[1]


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # gensim leaves it open where no header is
@pytest.mark.parametrize(
    ("form", "options"),
    [("glove", {"no_header": True}), ("word2vec", {}), ("word2vec-bin", {"binary": True})],
)
def test_gensim_reads_the_same_bits(
    run: Path, table: np.ndarray, tmp_path: Path, form: str, options: dict[str, bool]
) -> None:
    from gensim.models import KeyedVectors

    export(run, form, tmp_path / "out")
    loaded = KeyedVectors.load_word2vec_format(str(tmp_path / "out"), **options)
    assert loaded.index_to_key == WORDS
    np.testing.assert_array_equal(loaded.vectors, table)


def test_npz_gives_arrays_that_gensim_takes_without_a_pickle(run: Path, table: np.ndarray, tmp_path: Path) -> None:
    from gensim.models import KeyedVectors

    export(run, "npz", tmp_path / "v.npz")
    with np.load(tmp_path / "v.npz", allow_pickle=False) as archive:
        peer = KeyedVectors(7)
        peer.add_vectors(archive["vocabulary"].tolist(), archive["vectors"])
    assert peer.index_to_key == WORDS
    np.testing.assert_array_equal(peer["日本"], table[3])


def test_safetensors(run: Path, table: np.ndarray, tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors")
    export(run, "safetensors", tmp_path / "v.safetensors")
    with safetensors.safe_open(tmp_path / "v.safetensors", framework="numpy") as opened:
        np.testing.assert_array_equal(opened.get_tensor("vectors"), table)
        assert json.loads(opened.metadata()["vocabulary"]) == WORDS


def test_safetensors_missing_names_the_command(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda _: None)
    with pytest.raises(MissingExtra, match=r"pip install 'glovewire\[export\]'"):
        export(run, "safetensors", tmp_path / "out")
    assert os.listdir(tmp_path) == ["run"]


def test_projector(run: Path, table: np.ndarray, tmp_path: Path) -> None:
    export(run, "projector", tmp_path / "p")
    assert (tmp_path / "p" / "metadata.tsv").read_text(encoding="utf-8").split("\n") == [*WORDS, ""]
    read = np.loadtxt(tmp_path / "p" / "vectors.tsv", delimiter="\t", dtype=np.float32)
    np.testing.assert_array_equal(read, table)


def test_centring_removes_the_mean(run: Path, table: np.ndarray, tmp_path: Path) -> None:
    export(run, "npz", tmp_path / "v.npz", centre=True)
    with np.load(tmp_path / "v.npz") as archive:
        np.testing.assert_allclose(archive["vectors"], table - table.mean(axis=0), atol=1e-6)


def test_a_dataset_cannot_be_centred(tmp_path: Path) -> None:
    opened, _ = random_dataset(tmp_path / "data")
    with pytest.raises(UsageError, match=r"is a dataset, .* leave out --centre"):
        export(opened.path, "npz", tmp_path / "m.npz", centre=True)
    assert not (tmp_path / "m.npz").exists()


@pytest.mark.parametrize("form", ["glove", "word2vec", "word2vec-bin", "projector"])
def test_a_word_with_a_blank_is_refused_where_it_would_break_the_format(tmp_path: Path, form: str) -> None:
    run = runs.prepare(tmp_path / "run")
    runs.write_vectors(run, ["new york", "x"], np.eye(2))
    with pytest.raises(OutputError, match="'new york'"):
        export(run, form, tmp_path / "out")
    assert os.listdir(tmp_path) == ["run"]


@pytest.mark.parametrize("symmetric", [True, False])
def test_npz_of_a_dataset_is_scipys_matrix(tmp_path: Path, symmetric: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix, "_ENTRIES_AT_ONCE", 13)
    opened, dense = random_dataset(tmp_path / "data", symmetric=symmetric)
    export(opened.path, "npz", tmp_path / "m.npz")
    np.testing.assert_array_equal(scipy.sparse.load_npz(tmp_path / "m.npz").toarray(), dense)
    with np.load(tmp_path / "m.npz", allow_pickle=False) as archive:
        built = scipy.sparse.coo_matrix((archive["data"], (archive["row"], archive["col"])), shape=archive["shape"])
        np.testing.assert_array_equal(built.toarray(), full_matrix(opened).toarray())
        assert tuple(archive["vocabulary"]) == opened.words
        np.testing.assert_array_equal(archive["counts"], opened.counts)


def test_npz_numbers_the_rows_of_a_vocabulary_that_16_bits_cannot_count(tmp_path: Path) -> None:
    words = sorted(f"w{n}" for n in range(70_000))
    last = len(words) - 1
    i, j = np.array([0, last, 1, last, last]), np.array([last, 0, 1, 2, last])
    i, j = np.append(i, 2), np.append(j, last)
    whole = scipy.sparse.coo_matrix((np.arange(1.0, 7.0)[[0, 0, 1, 2, 3, 2]], (i, j)), (70_000, 70_000))
    opened = write_dataset(tmp_path / "data", whole, np.ones(len(words)), words, partitions=2, tile=1024)
    export(opened.path, "npz", tmp_path / "m.npz")
    assert (scipy.sparse.load_npz(tmp_path / "m.npz").tocsr() != whole.tocsr()).nnz == 0


def test_npz_refuses_words_that_the_longest_one_makes_too_wide(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    longest = "9f" * 100
    counts = scipy.sparse.coo_matrix(np.ones((3, 3)))
    write_dataset(tmp_path / "data", counts, np.ones(3), [longest, "b", "c"])
    runs.write_vectors(runs.prepare(tmp_path / "long"), [longest, "b", "c"], np.eye(3))
    monkeypatch.setattr(formats, "_MOST_TEXT_BYTES", 3 * 200 * 4)
    for name in ("data", "long"):
        export(tmp_path / name, "npz", tmp_path / f"{name}.npz")
    monkeypatch.setattr(formats, "_MOST_TEXT_BYTES", 3 * 200 * 4 - 1)
    for name in ("data", "long"):
        with pytest.raises(OutputError, match=r"the longest, '9f9f[9f]+'\.\.\. with 200 characters") as raised:
            export(tmp_path / name, "npz", tmp_path / "out")
        assert len(str(raised.value)) < 300
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("symmetric", "bucket"), [(True, 1 << 22), (True, 40), (False, 40)])
def test_stanford_holds_every_entry_once_in_its_own_order(
    tmp_path: Path, symmetric: bool, bucket: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matrix, "_BUCKET_RECORDS", bucket)
    monkeypatch.setattr(matrix, "_ENTRIES_AT_ONCE", 17)
    opened, dense = random_dataset(tmp_path / "data", symmetric=symmetric)
    export(opened.path, "stanford", tmp_path / "s", seed=1)
    lines = [line.split(" ") for line in (tmp_path / "s" / "vocab.txt").read_text(encoding="utf-8").split("\n")[:-1]]
    ranks = [(-int(count), word.encode()) for word, count in lines]
    assert ranks == sorted(ranks)
    assert {word: int(count) for word, count in lines} == dict(zip(opened.words, opened.counts.tolist(), strict=True))

    raw = (tmp_path / "s" / "cooccurrence.bin").read_bytes()
    assert len(raw) == 16 * np.count_nonzero(dense)
    records = np.frombuffer(raw, np.dtype("<i4, <i4, <f8"))
    ids = np.array([opened.words.index(word) for word, _ in lines])
    rebuilt = np.zeros(dense.shape)
    np.add.at(rebuilt, (ids[records["f0"] - 1], ids[records["f1"] - 1]), records["f2"])
    np.testing.assert_array_equal(rebuilt, dense.astype(np.float64))
    assert (np.diff(records["f0"]) != 0).mean() > 0.8


def test_stanford_is_the_same_for_a_seed_and_another_for_another(tmp_path: Path) -> None:
    opened, _ = random_dataset(tmp_path / "data")
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        export(opened.path, "stanford", tmp_path / name, seed=seed)
    a, b, c = ((tmp_path / name / "cooccurrence.bin").read_bytes() for name in "abc")
    assert a == b != c


def test_stanford_refuses_the_word_for_which_its_glove_saves_nothing(tmp_path: Path) -> None:
    write_dataset(tmp_path / "data", scipy.sparse.coo_matrix(np.ones((2, 2))), np.ones(2), ["<unk>", "b"])
    with pytest.raises(OutputError, match=r"'<unk>'.*--tokenizer nltk"):
        export(tmp_path / "data", "stanford", tmp_path / "out")
    assert os.listdir(tmp_path) == ["data"]


def test_a_matrix_without_entries_is_exported_as_it_is(tmp_path: Path) -> None:
    write_dataset(tmp_path / "data", scipy.sparse.coo_matrix((3, 3)), np.ones(3), ["a", "b", "c"])
    export(tmp_path / "data", "npz", tmp_path / "m.npz")
    assert scipy.sparse.load_npz(tmp_path / "m.npz").nnz == 0
    export(tmp_path / "data", "stanford", tmp_path / "s")
    assert (tmp_path / "s" / "cooccurrence.bin").stat().st_size == 0


@pytest.mark.parametrize("form", [*VECTOR_FORMATS, "stanford"])
def test_what_exists_is_kept(run: Path, tmp_path: Path, form: str) -> None:
    out = tmp_path / "precious"
    out.write_text("mine")
    with pytest.raises(OutputError, match="exists already"):
        export(run, form, out)
    assert out.read_text() == "mine"


def test_an_empty_folder_may_be_filled_or_replaced(run: Path, tmp_path: Path) -> None:
    for form in ("projector", "glove"):
        (tmp_path / form).mkdir()
        export(run, form, tmp_path / form)
    assert (tmp_path / "projector").is_dir()
    assert (tmp_path / "glove").is_file()


def test_formats_that_do_not_fit_the_source_say_which_do(run: Path, tmp_path: Path) -> None:
    opened, _ = random_dataset(tmp_path / "data")
    with pytest.raises(UsageError, match="glove, word2vec"):
        export(run, "stanford", tmp_path / "out")
    with pytest.raises(UsageError, match="npz or stanford"):
        export(opened.path, "glove", tmp_path / "out")
    with writing_artifact(tmp_path / "check", "checkpoint", 1, {}):
        pass
    with pytest.raises(ArtifactError, match="is a checkpoint"):
        export(tmp_path / "check", "npz", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_full_disk_leaves_nothing(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(stream: BinaryIO, _: object) -> None:
        stream.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setitem(STREAM_FORMATS, "glove", full)
    with pytest.raises(OutputError, match="no space left"):
        export(run, "glove", tmp_path / "out")
    assert os.listdir(tmp_path) == ["run"]


def test_command_reports_what_it_wrote(run: Path, tmp_path: Path) -> None:
    arguments = [str(run), "--format", "glove", "--out", str(tmp_path / "v.txt"), "--json"]
    outcome = CliRunner().invoke(cli.export, arguments)
    assert outcome.exit_code == 0, outcome.output
    line, last = outcome.stdout.splitlines()
    assert "glove: 5 words" in line
    assert json.loads(last)["bytes"] == (tmp_path / "v.txt").stat().st_size
    again = CliRunner().invoke(cli.export, arguments)
    assert again.exit_code == 1
    assert len(again.stderr.splitlines()) == 1


def test_options_have_the_names_of_the_contract(run: Path, tmp_path: Path) -> None:
    environment = {"GLOVEWIRE_EXPORT_FORMAT": "word2vec", "GLOVEWIRE_EXPORT_OUT": str(tmp_path / "v.txt")}
    outcome = CliRunner().invoke(cli.export, [str(run)], env=environment)
    assert outcome.exit_code == 0, outcome.output
    assert (tmp_path / "v.txt").read_text(encoding="utf-8").startswith("5 7\n! ")


def _bytes(out: Path) -> list[bytes]:
    return [path.read_bytes() for path in ([out] if out.is_file() else sorted(out.iterdir()))]
