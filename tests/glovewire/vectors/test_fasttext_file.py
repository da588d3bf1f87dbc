"""fastText's models: fastText and gensim read what we write, we read what gensim writes, and damage is refused."""

import struct
from pathlib import Path

import numpy as np
import pytest

from glovewire.common.errors import MalformedFile, OutputError, UsageError
from glovewire.common.model.subwords import Ngrams, Subwords, fit
from glovewire.common.storage.run_folder import Vectors
from glovewire.vectors.fasttext_file import read_fasttext, write_fasttext

WORDS = ["the", "café", "日本語", "don't", "x", "running", "runner", "!", "blahblah", "ℵ0", "__label__no", "</s>"]
UNSEEN = ["runs", "cafés", "日本", "theme", "runn", "blah", "zzzz"]
COUNTS = np.array([90, 50, 40, 40, 30, 20, 9, 8, 7, 6, 1, 0])
DIM = 20


@pytest.fixture(params=[Ngrams(buckets=5000), Ngrams(1, 3, 77)], ids=["3 to 6", "1 to 3"])
def made(request: pytest.FixtureRequest) -> tuple[np.ndarray, Subwords]:
    vectors = np.random.default_rng(0).normal(size=(len(WORDS), DIM)).astype(np.float32)
    ngrams = fit(WORDS, vectors, 0.7, request.param)
    return vectors, ngrams


@pytest.fixture
def path(tmp_path: Path, made: tuple[np.ndarray, Subwords]) -> Path:
    write(tmp_path / "model.bin", Vectors(tuple(WORDS), made[0], {}, COUNTS, made[1]))
    return tmp_path / "model.bin"


def write(path: Path, loaded: Vectors) -> None:
    with path.open("wb") as stream:
        write_fasttext(stream, loaded)


def composed(ngrams: Subwords | None, word: str) -> np.ndarray:
    """Our vector of an unseen word; fastText has zeros where we have none."""
    assert ngrams is not None
    found = ngrams.compose(word)
    return np.zeros(ngrams.dim, np.float32) if found is None else found


def test_fasttext_reads_the_same_vectors(path: Path, made: tuple[np.ndarray, Subwords]) -> None:
    fasttext = pytest.importorskip("fasttext", reason="the package fasttext is not installed")
    vectors, ngrams = made
    model = fasttext.load_model(str(path))
    assert model.get_words() == WORDS
    assert model.get_dimension() == DIM
    for word, vector in zip(WORDS, vectors, strict=True):
        np.testing.assert_allclose(model.get_word_vector(word), vector, atol=1e-5)
    for word in UNSEEN:
        np.testing.assert_allclose(model.get_word_vector(word), composed(ngrams, word), atol=1e-5)
        _, rows = model.get_subwords(word)
        assert (rows - len(WORDS)).tolist() == ngrams.ngrams.hashed([word.encode()])[1].tolist()


def test_gensim_reads_the_same_vectors(path: Path, made: tuple[np.ndarray, Subwords]) -> None:
    from gensim.models.fasttext import load_facebook_vectors

    vectors, ngrams = made
    loaded = load_facebook_vectors(str(path))
    assert loaded.index_to_key == WORDS
    for word, vector in zip(WORDS[:-1], vectors, strict=False):  # gensim gives </s> n-grams, fastText none
        np.testing.assert_allclose(loaded[word], vector, atol=1e-5)
    for word in UNSEEN:
        np.testing.assert_allclose(loaded[word], composed(ngrams, word), atol=1e-5)


def test_gensim_reads_it_as_a_model_that_can_be_trained(path: Path) -> None:
    from gensim.models.fasttext import load_facebook_model

    model = load_facebook_model(str(path))
    assert (model.sg, model.hs, model.negative) == (1, 0, 5)
    assert model.syn1neg.shape == (len(WORDS), DIM)
    model.build_vocab([["the", "new"] * 20], update=True)
    model.train([["the", "new"] * 20], total_examples=1, epochs=1)
    assert np.isfinite(model.wv["new"]).all()


def test_what_is_written_is_read_back(path: Path, made: tuple[np.ndarray, Subwords]) -> None:
    vectors, ngrams = made
    model = read_fasttext(path)
    assert model.words == tuple(WORDS)
    assert model.counts is not None
    assert model.counts.tolist() == [*COUNTS[:-1], 1]
    np.testing.assert_allclose(model.vectors, vectors, atol=1e-5)
    assert model.subwords is not None
    assert model.subwords.ngrams == ngrams.ngrams
    np.testing.assert_array_equal(model.subwords.buckets, ngrams.buckets)
    for word in UNSEEN:
        np.testing.assert_allclose(composed(model.subwords, word), composed(ngrams, word), atol=1e-6)


def test_a_model_of_gensim_is_read(tmp_path: Path) -> None:
    from gensim.models.fasttext import FastText, save_facebook_model

    texts = [["the", "café", "sells", "coffee"], ["running", "to", "the", "cafés"]] * 5
    model = FastText(texts, vector_size=8, bucket=300, min_n=2, max_n=4, min_count=1, workers=1, seed=1)
    save_facebook_model(model, str(tmp_path / "model.bin"))
    found = read_fasttext(tmp_path / "model.bin")
    assert list(found.words) == model.wv.index_to_key
    assert found.subwords is not None
    assert found.subwords.ngrams == Ngrams(2, 4, 300)
    for word, vector in zip(found.words, found.vectors, strict=True):
        np.testing.assert_array_equal(vector, model.wv[word])
    np.testing.assert_allclose(composed(found.subwords, "runs"), model.wv["runs"], atol=1e-7)


def test_a_model_of_fasttext_is_read(tmp_path: Path) -> None:
    fasttext = pytest.importorskip("fasttext", reason="the package fasttext is not installed")
    (tmp_path / "text").write_text("the café sells coffee\nrunning to the cafés\n" * 20, encoding="utf-8")
    # Each of the first ten threads sets a tenth of the rows; with fewer, the rest is what was in memory.
    options = {"minCount": 1, "dim": 6, "bucket": 200, "thread": 12, "epoch": 1, "verbose": 0}
    for name, more in {"ngrams": {}, "words": {"minn": 0, "maxn": 0}, "cbow": {"model": "cbow"}}.items():
        model = fasttext.train_unsupervised(str(tmp_path / "text"), **options, **more)
        model.save_model(str(tmp_path / name))
        found = read_fasttext(tmp_path / name)
        assert list(found.words) == model.get_words()
        for word, vector in zip(found.words, found.vectors, strict=True):
            np.testing.assert_allclose(vector, model.get_word_vector(word), atol=1e-6)
        assert (found.subwords is None) == (name == "words")
        if found.subwords is not None:
            np.testing.assert_allclose(composed(found.subwords, "runs"), model.get_word_vector("runs"), atol=1e-6)


def test_equal_vectors_make_equal_files(tmp_path: Path, path: Path, made: tuple[np.ndarray, Subwords]) -> None:
    write(tmp_path / "again", Vectors(tuple(WORDS), made[0], {}, COUNTS, made[1]))
    assert (tmp_path / "again").read_bytes() == path.read_bytes()


def test_buckets_without_a_vector_take_no_space(tmp_path: Path) -> None:
    vectors = np.eye(len(WORDS), 256, dtype=np.float32)
    write(tmp_path / "large", Vectors(tuple(WORDS), vectors, {}, None, fit(WORDS, vectors, 0.5)))
    found = (tmp_path / "large").stat()
    assert found.st_size > 2_000_000 * 256 * 4
    if found.st_blocks * 512 == found.st_size:
        pytest.skip("this file system has no holes")
    assert found.st_blocks * 512 < 8_000_000


@pytest.mark.parametrize("word", ["", "a\0b"])
def test_words_that_cannot_be_written_are_refused(tmp_path: Path, made: tuple[np.ndarray, Subwords], word: str) -> None:
    with pytest.raises(OutputError, match="cannot hold the word"):
        write(tmp_path / "out", Vectors((word,), made[0][:1], {}, None, made[1]))


def test_vectors_without_ngrams_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="glovewire subwords"):
        write(tmp_path / "out", Vectors(("a",), np.ones((1, 2), np.float32), {}))


SIZES = 4 * 14 + 8
"""Where the sizes of the vocabulary stand; after them, its first word is `the`."""
WORDS_AT = SIZES + 3 * 4 + 2 * 8
MATRIX_AT = WORDS_AT + sum(len(word.encode()) + 10 for word in WORDS)
DAMAGES = {
    "another magic": (0, struct.pack("<i", 7)),
    "a later version": (4, struct.pack("<i", 13)),
    "no dimensions": (8, struct.pack("<i", 0)),
    "other dimensions": (8, struct.pack("<i", DIM + 1)),
    "a classifier": (36, struct.pack("<i", 3)),
    "no buckets": (40, struct.pack("<i", 0)),
    "more buckets": (40, struct.pack("<i", 2**31 - 1)),
    "long n-grams": (48, struct.pack("<i", 2**30)),
    "n-grams of negative length": (44, struct.pack("<i", -5)),
    "fewer words": (SIZES, struct.pack("<2i", 3, 3)),
    "negative words": (SIZES, struct.pack("<2i", -1, -1)),
    "very many words": (SIZES, struct.pack("<2i", 2**31 - 1, 2**31 - 1)),
    "labels": (SIZES, struct.pack("<3i", len(WORDS), len(WORDS) - 1, 1)),
    "pruned": (SIZES + 20, struct.pack("<q", 4)),
    "an empty word": (WORDS_AT, b"\0"),
    "a word twice": (WORDS_AT + 4 + 9 + 6 + 9, b"the\0"),
    "quantised": (MATRIX_AT, b"\1"),
    "negative rows": (MATRIX_AT + 1, struct.pack("<q", -(2**62))),
    "very many rows": (MATRIX_AT + 1, struct.pack("<q", 2**62)),
    "NaN": (MATRIX_AT + 17 + 8, b"\xff\xff\xff\xff"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_refused(path: Path, name: str) -> None:
    at, new = DAMAGES[name]
    data = bytearray(path.read_bytes())
    data[at : at + len(new)] = new
    path.write_bytes(data)
    with pytest.raises(MalformedFile, match=r"model\.bin"):
        read_fasttext(path)


def test_a_model_cut_anywhere_is_refused(path: Path, made: tuple[np.ndarray, Subwords]) -> None:
    data = path.read_bytes()
    matrix_end = MATRIX_AT + 17 + 4 * DIM * (len(WORDS) + made[1].ngrams.buckets)
    for end in [*range(0, MATRIX_AT + 17, 13), matrix_end - 1]:
        path.write_bytes(data[:end])
        with pytest.raises(MalformedFile, match=r"model\.bin"):
            read_fasttext(path)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "missing"):
        with pytest.raises(MalformedFile, match="cannot be read"):
            read_fasttext(place)


def test_bytes_that_are_no_text_are_shown(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data.replace(b"running\0", b"r\xffnning\0", 1))
    assert read_fasttext(path).words[5] == "r\\xffnning"
