"""Subwords: n-grams hashed as fastText does, the fit against a dense solution, the same bytes for any threads."""

import hashlib
import itertools
import tracemalloc

import numpy as np
import pytest

from glovewire.common.errors import UsageError
from glovewire.common.model import subwords
from glovewire.common.model.subwords import Ngrams, Subwords, fit

WORDS = [
    "running",
    "runner",
    "runs",
    "walking",
    "walker",
    "walks",
    "x",
    "!",
    "café",
    "cafés",
    "日本語",
    "1984",
    "blahblah",
]


def vectors_of(count: int, dim: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, dim)).astype(np.float32)


def many_words(count: int, seed: int = 0) -> list[str]:
    """Different words of 1 to 12 letters, with syllables that many of them share."""
    rng = np.random.default_rng(seed)
    syllables = ["an", "ing", "ter", "ö", "str", "e", "un", "日", "ed", "o'", "la", "mi"]
    words: dict[str, None] = {}
    while len(words) < count:
        words["".join(syllables[i] for i in rng.integers(len(syllables), size=rng.integers(1, 7)))] = None
    return list(words)


def slow_ngrams(word: str, options: Ngrams) -> list[int]:
    """The same by Python's own strings and integers."""
    text, found = f"<{word}>", []
    for first in range(len(text)):
        for size in range(1, min(options.longest, len(text) - first) + 1):
            part = text[first : first + size]
            if size < options.shortest or (size == 1 and first in (0, len(text) - 1)):
                continue
            value = 2166136261
            for byte in part.encode("utf-8", "surrogatepass"):
                value = (value ^ (byte if byte < 128 else byte | 0xFFFFFF00)) * 16777619 % 2**32
            found.append(value % options.buckets)
    return found


@pytest.mark.parametrize("options", [Ngrams(), Ngrams(1, 2, 97), Ngrams(6, 6, 1), Ngrams(2, 64, 5000)], ids=str)
def test_ngrams_are_those_of_fasttext(options: Ngrams) -> None:
    words = [*WORDS, "", "<", "a>b", "\u0430" * 70, "👩‍👩‍👧", "\udc80"]
    starts, buckets = options.hashed([word.encode("utf-8", "surrogatepass") for word in words])
    found = [buckets[first:end].tolist() for first, end in itertools.pairwise(starts)]
    assert found == [slow_ngrams(word, options) for word in words]


def test_the_hash_is_fnv_with_signed_bytes() -> None:
    """32-bit FNV-1a of "foobar" is published as 0xbf9cf968; beyond ASCII, fastText's signed bytes make a difference."""
    buckets = 1 << 26
    _, found = Ngrams(6, 6, buckets).hashed([b"foobar"])
    assert found[1] == 0xBF9CF968 % buckets
    _, signed = Ngrams(1, 1, buckets).hashed(["é".encode()])
    unsigned = 2166136261
    for byte in "é".encode():
        unsigned = (unsigned ^ byte) * 16777619 % 2**32
    assert signed.tolist() != [unsigned % buckets]


def dense_solution(
    words: list[str], vectors: np.ndarray, options: Ngrams, ridge: float
) -> tuple[np.ndarray, np.ndarray]:
    """The exact ridge regression, and the compositions of `words` in it."""
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    bags = [slow_ngrams(word, options) for word in words]
    buckets = sorted({bucket for bag in bags for bucket in bag})
    place = {bucket: i for i, bucket in enumerate(buckets)}
    matrix = np.zeros((len(words), len(buckets)))
    for row, bag in enumerate(bags):
        for bucket in bag:
            matrix[row, place[bucket]] += 1 / len(bag)
    sizes = np.array([len(bag) for bag in bags])
    weights, mean = sizes / sizes.mean(), unit.mean(axis=0)
    left = matrix.T @ (weights[:, None] * matrix) + ridge * np.eye(len(buckets))
    rows = np.linalg.solve(left, matrix.T @ (weights[:, None] * (unit - mean))) + mean
    return rows, matrix @ rows


def fitted(
    words: list[str], vectors: np.ndarray, factor: float = 0.7, ngrams: Ngrams | None = None, threads: int | None = None
) -> tuple[np.ndarray, Subwords]:
    """The vectors with compositions, and the n-grams; `vectors` keep their values."""
    ours = vectors.astype(np.float32)
    return ours, fit(words, ours, factor, ngrams, threads)


def unit_of(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def vector_of(ngrams: Subwords) -> np.ndarray:
    """The vectors of all n-grams, in the order of their buckets, before they are scaled."""
    return ngrams.rows[ngrams.places].astype(np.float32)


@pytest.mark.parametrize("dim", [1, 16, 37])
def test_many_steps_reach_the_exact_solution(dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subwords, "RIDGE", 0.1)
    monkeypatch.setattr(subwords, "STEPS", 200)
    words, options = many_words(150), Ngrams(buckets=3000)
    vectors = vectors_of(len(words), dim) + 0.3
    rows, composed = dense_solution(words, vectors, options, 0.1)
    found, ngrams = fitted(words, vectors, 0.5, options)
    np.testing.assert_allclose(vector_of(ngrams), rows, atol=2e-3)  # in half precision
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    np.testing.assert_allclose(found, lengths * (vectors / lengths + 0.5 * composed) / 1.5, atol=2e-5 * lengths.max())
    assert ngrams.scale == pytest.approx(lengths.mean(), rel=1e-6)
    for word, expected in zip(words, composed, strict=True):
        np.testing.assert_allclose(ngrams.compose(word), lengths.mean() * expected, atol=5e-3)


def test_few_steps_come_near_and_more_come_nearer(monkeypatch: pytest.MonkeyPatch) -> None:
    words, options = many_words(300), Ngrams(buckets=5000)
    vectors = unit_of(vectors_of(len(words), 8))
    _, composed = dense_solution(words, vectors, options, 0.02)
    errors = []
    for steps in (1, 4, 40):
        monkeypatch.setattr(subwords, "STEPS", steps)
        errors.append(np.abs(2 * fitted(words, vectors, 1.0, options)[0] - vectors - composed).max())
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-3


def test_the_bytes_do_not_depend_on_threads() -> None:
    words = many_words(2000)
    vectors = vectors_of(len(words), 100)
    digests = set()
    for threads in (1, 2, 5, 1):
        found, ngrams = fitted(words, vectors, threads=threads)
        parts = (found, ngrams.rows, ngrams.buckets, ngrams.places)
        digests.add(hashlib.sha256(b"".join(part.tobytes() for part in parts)).digest())
    assert len(digests) == 1


def test_threads_share_their_tables() -> None:
    words = many_words(20_000)
    vectors = vectors_of(len(words), 128)
    fitted(words[:9], vectors[:9])  # compiles
    peaks = []
    tracemalloc.start()
    try:
        for threads in (1, 8):
            tracemalloc.reset_peak()
            fitted(words, vectors, threads=threads)
            peaks.append(tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0]


def test_weight_zero_changes_no_vector() -> None:
    vectors = vectors_of(len(WORDS), 20)
    found, ngrams = fitted(WORDS, vectors, 0.0)
    np.testing.assert_allclose(found, vectors, rtol=1e-6)
    np.testing.assert_array_equal(ngrams.rows, fitted(WORDS, vectors, 0.9)[1].rows)


def test_ngrams_of_the_same_words_share_a_row() -> None:
    words = many_words(300)
    ngrams = fitted(words, vectors_of(len(words), 8))[1]
    bags: dict[int, list[int]] = {}
    for number, word in enumerate(words):
        for bucket in slow_ngrams(word, ngrams.ngrams):
            bags.setdefault(bucket, []).append(number)
    assert ngrams.buckets.tolist() == sorted(bags)
    rows: dict[tuple[int, ...], int] = {}
    for bucket, place in zip(ngrams.buckets.tolist(), ngrams.places.tolist(), strict=True):
        assert rows.setdefault(tuple(bags[bucket]), place) == place
    assert sorted(rows.values()) == list(range(len(ngrams.rows)))


def test_an_unseen_word_comes_near_words_of_its_form() -> None:
    """Vectors have one part for the stem and one for the ending; an unseen combination gets both."""
    stems, endings = ["walk", "jump", "paint", "climb", "mark", "turn"], ["ing", "ed", "er", "s"]
    parts = vectors_of(len(stems) + len(endings), 64, seed=3)
    words = [stem + ending for stem in stems for ending in endings]
    vectors = np.array([parts[i] + parts[len(stems) + j] for i in range(len(stems)) for j in range(len(endings))])
    held = words.index("painting")
    known = [word for word in words if word != words[held]]
    composed = fitted(known, np.delete(vectors, held, axis=0))[1].compose(words[held])
    assert composed is not None
    assert int(np.argmax(unit_of(vectors) @ composed)) == held


def test_what_shares_no_ngram_has_no_composition() -> None:
    _, ngrams = fitted(WORDS, vectors_of(len(WORDS), 4))
    for word in ("zzzz", "", "\udcff", "語"):
        assert ngrams.compose(word) is None
    counts, sums = ngrams.sums([b"zzzz", b"", "日本語".encode(), b"runnings"])
    assert counts.tolist() == [10, 0, 6, 26]
    assert sums.any(axis=1).tolist() == [False, False, True, True]
    np.testing.assert_allclose(ngrams.compose("日本語"), sums[2] / 6)
    assert [part.shape for part in ngrams.sums([])] == [(0,), (0, 4)]


@pytest.mark.parametrize(("words", "lowercase"), [(["run", "runs"], True), (["run", "Runs"], False)])
def test_an_unseen_word_is_lower_cased_if_the_known_words_are(words: list[str], lowercase: bool) -> None:
    _, ngrams = fitted(words, vectors_of(2, 4))
    lower, upper = ngrams.compose("runner"), ngrams.compose("RUNner")
    assert lower is not None
    if lowercase:
        np.testing.assert_array_equal(upper, lower)
    else:
        assert upper is None or not np.array_equal(upper, lower)


def test_vectors_that_say_nothing_are_left_out() -> None:
    words = many_words(60)
    vectors = vectors_of(len(words), 12)
    vectors[5], vectors[6, 3], vectors[7, 0] = 0, np.nan, -np.inf
    good = np.delete(np.arange(len(words)), [5, 6, 7])
    found, ngrams = fitted(words, vectors)
    alone, expected = fitted([words[i] for i in good], vectors[good])
    np.testing.assert_array_equal(found[[5, 6, 7]], vectors[[5, 6, 7]])
    np.testing.assert_allclose(found[good], alone, atol=1e-6)
    known = np.searchsorted(ngrams.buckets, expected.buckets)
    np.testing.assert_allclose(vector_of(ngrams)[known], vector_of(expected), atol=2e-3)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_lengths_do_not_matter(scale: float) -> None:
    vectors = vectors_of(len(WORDS), 6)
    found, ngrams = fitted(WORDS, vectors * np.float32(scale))
    expected, rows = fitted(WORDS, vectors)
    np.testing.assert_allclose(vector_of(ngrams), vector_of(rows), atol=2e-3)
    np.testing.assert_allclose(found / scale, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("words", "vectors"),
    [
        ([], np.empty((0, 5), np.float32)),
        (["a", "b"], np.zeros((2, 5), np.float32)),
        (["a", "b"], np.full((2, 5), np.nan, np.float32)),
        (["a"], np.ones((1, 5), np.float32)),
        (["a", "b"], np.ones((2, 5), np.float32)),
    ],
    ids=["no words", "zeros", "NaN", "one word", "equal vectors"],
)
def test_little_to_fit(words: list[str], vectors: np.ndarray) -> None:
    found, ngrams = fitted(words, vectors)
    assert ngrams.dim == 5
    assert np.isfinite(ngrams.rows).all()
    np.testing.assert_allclose(found, vectors, rtol=1e-5)


def test_words_without_ngrams_keep_their_vectors() -> None:
    words = ["a", "b", "longer", "longest"]
    vectors = vectors_of(4, 3)
    found, ngrams = fitted(words, vectors, 0.9, Ngrams(4, 6, 1000))
    assert ngrams.compose("a") is None
    np.testing.assert_array_equal(found[:2], vectors[:2])


def test_one_bucket_for_all() -> None:
    _, ngrams = fitted(WORDS, vectors_of(len(WORDS), 3), 0.7, Ngrams(buckets=1))
    np.testing.assert_array_equal(ngrams.buckets, [0])
    np.testing.assert_allclose(ngrams.compose("anything"), ngrams.rows[0].astype(np.float32) * ngrams.scale, rtol=1e-3)


@pytest.mark.parametrize("options", [(0, 3, 10), (4, 3, 10), (3, 65, 10), (3, 6, 0), (3, 6, 1 << 31)])
def test_impossible_ngrams_are_refused(options: tuple[int, int, int]) -> None:
    with pytest.raises(UsageError, match="use 1 to"):
        Ngrams(*options)


@pytest.mark.parametrize("factor", [-1.0, float("nan"), float("inf")])
def test_impossible_weights_are_refused(factor: float) -> None:
    with pytest.raises(UsageError, match="at least 0"):
        fit(["a"], np.ones((1, 4), np.float32), factor)


def test_vectors_that_do_not_fit_the_words_are_refused() -> None:
    with pytest.raises(UsageError, match="do not fit 3 words"):
        fit(["a", "b", "c"], np.ones((2, 4), np.float32), 0.5)
