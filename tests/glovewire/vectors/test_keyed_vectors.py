"""KeyedVectors answers as gensim's does on the same vectors."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from gensim.models import KeyedVectors as Peer
from gensim.models.fasttext import FastText

import glovewire
from glovewire.common.errors import UnknownWord, UsageError
from glovewire.common.model.subwords import fit

WORDS = [f"w{number}" for number in range(200)] + ["Paris", "paris", "PARIS", "Rome", "café"]


@pytest.fixture(scope="module")
def wv() -> glovewire.KeyedVectors:
    table = np.random.default_rng(5).normal(size=(len(WORDS), 24)) + 0.5
    return glovewire.KeyedVectors(WORDS, table)


@pytest.fixture(scope="module")
def peer(wv: glovewire.KeyedVectors) -> Peer:
    made = Peer(24)
    made.add_vectors(WORDS, wv.vectors)
    return made


def same(ours: list[tuple[str, float]], theirs: list[tuple[str, float]]) -> None:
    assert [word for word, _ in ours] == [word for word, _ in theirs]
    np.testing.assert_allclose([cosine for _, cosine in ours], [cosine for _, cosine in theirs], atol=1e-5)


def test_the_nearest_words_are_gensims(wv: glovewire.KeyedVectors, peer: Peer) -> None:
    vector = wv["w3"] * 2 + wv["w4"]
    for positive, negative in (
        ("w7", None),
        (["w7", "w8"], ["w9"]),
        ([("w7", 0.3), ("w8", 2.0)], [("w9", -0.5)]),
        ([vector, "w1"], [wv["w2"]]),
        (5, None),
        (vector, None),
    ):
        same(wv.most_similar(positive, negative, topn=7), peer.most_similar(positive, negative, topn=7))
    same(wv.similar_by_word("Rome", restrict_vocab=50), peer.similar_by_word("Rome", restrict_vocab=50))
    same(wv.similar_by_vector(vector, topn=3), peer.similar_by_vector(vector, topn=3))
    np.testing.assert_allclose(wv.most_similar("w7", topn=None), peer.most_similar("w7", topn=None), atol=1e-5)
    assert wv.most_similar("w7", topn=0) == []


def test_similarities_are_gensims(wv: glovewire.KeyedVectors, peer: Peer) -> None:
    some = ["w1", "w2", "w30", "café"]
    for method, arguments in (
        ("similarity", ("w1", "w2")),
        ("distance", ("w1", "w2")),
        ("n_similarity", (some[:2], some[2:])),
        ("distances", ("w1",)),
        ("distances", ("w1", some)),
        ("rank", ("w1", "w2")),
        ("get_mean_vector", (some,)),
        ("get_mean_vector", (some, [1, 2, -3, 0.5])),
        ("get_normed_vectors", ()),
    ):
        np.testing.assert_allclose(getattr(wv, method)(*arguments), getattr(peer, method)(*arguments), atol=1e-5)
    assert wv.doesnt_match(some) == peer.doesnt_match(some)
    assert wv.closer_than("w1", "w2") == peer.closer_than("w1", "w2")
    np.testing.assert_array_equal(wv[["w1", "w2"]], peer[["w1", "w2"]])
    np.testing.assert_array_equal(wv[3], peer[3])


@pytest.mark.parametrize("options", [{}, {"case_insensitive": False}, {"restrict_vocab": 150}, {"dummy4unknown": True}])
def test_scores_are_gensims(
    wv: glovewire.KeyedVectors, peer: Peer, tmp_path: Path, options: dict[str, int | bool]
) -> None:
    draw = np.random.default_rng(1)
    names = [*WORDS, "W5", "rome", "unknown"]
    pairs, questions = tmp_path / "pairs.tsv", tmp_path / "questions.txt"
    drawn = [[names[place] for place in draw.integers(len(names), size=4)] for _ in range(300)]
    drawn += [["Paris", "paris", "Rome", "w1"], ["w1", "w2", "w1", "w2"]]
    distinct = [(a, b) for a, b, *_ in drawn if a.upper() != b.upper()]  # the cosines of others differ by rounding
    pairs.write_text("".join(f"{a}\t{b}\t{draw.normal():.3f}\n" for a, b in distinct))
    asked = [(a, b, c, wv.most_similar([b, c], [a])[0][0]) for a, b, c, _ in drawn if {a, b, c} <= set(WORDS)]
    lines = [" ".join(question) for question in (*drawn, *asked)]
    questions.write_text("\n".join([": one", *lines[::2], ": gram two", *lines[1::2]]) + "\n")

    ours, theirs = (each.evaluate_word_pairs(str(pairs), **options) for each in (wv, peer))
    for mine, other in zip(ours[:2], theirs[:2], strict=True):
        assert mine.statistic == pytest.approx(other[0], abs=1e-5)
        assert mine.pvalue == pytest.approx(other[1], abs=1e-5)
    assert ours[2] == pytest.approx(theirs[2])

    accuracy, sections = wv.evaluate_word_analogies(str(questions), **options)
    expected, expected_sections = peer.evaluate_word_analogies(str(questions), **options)
    assert accuracy == pytest.approx(expected)
    assert 0.1 < accuracy < 0.9
    assert sections == [{**each, "section": each["section"]} for each in expected_sections]


@pytest.mark.parametrize("covered", [0, 1])
def test_fewer_than_two_pairs_have_no_correlation(wv: glovewire.KeyedVectors, tmp_path: Path, covered: int) -> None:
    pairs = tmp_path / "pairs.txt"
    pairs.write_text("w1 w2 5\n" * covered + "w1 unknown 3\n")
    with pytest.raises(UsageError, match=r"fewer than two pairs of .*pairs.txt .* restrict_vocab"):
        wv.evaluate_word_pairs(pairs)


def test_a_word_that_is_not_known_is_a_key_error_with_a_suggestion(wv: glovewire.KeyedVectors) -> None:
    assert "w3" in wv
    assert "W3" not in wv  # for some words are known in capitals
    assert 3 not in wv
    with pytest.raises(KeyError) as raised:
        wv["cafe"]
    assert isinstance(raised.value, UnknownWord)
    assert str(raised.value) == "'cafe' is not among the 205 words of the vocabulary; did you mean 'café'?"
    with pytest.raises(UnknownWord, match="no row 205"):
        wv[205]
    assert wv.get_index("unknown", 7) == 7
    assert wv.get_mean_vector(["w1", "unknown"]).tolist() == wv.get_vector("w1", norm=True).tolist()
    with pytest.raises(UnknownWord):
        wv.most_similar(["w1", "unknown"])
    with pytest.raises(UsageError, match="do not fit 2 words"):
        glovewire.KeyedVectors(["a", "b"], np.eye(3))
    with pytest.raises(UsageError, match="occurs twice"):
        glovewire.KeyedVectors(["a", "a"], np.eye(2))


@pytest.mark.parametrize("number", [np.nan, np.inf, 1e300])
def test_vectors_that_are_not_finite_are_refused(number: float) -> None:
    with pytest.raises(UsageError, match="NaN, infinity or a number too large for float32"):
        glovewire.KeyedVectors(["a", "b"], [[1, 2], [3, -number]])


@pytest.mark.parametrize("counts", [[1], [1, 2, 3], [[1, 2]]])
def test_counts_that_do_not_fit_the_words_are_refused(counts: list[int]) -> None:
    with pytest.raises(UsageError, match=r"counts of shape .* do not fit 2 words"):
        glovewire.KeyedVectors(["a", "b"], np.eye(2), counts=counts)


def test_a_key_is_a_word_a_row_or_a_vector_of_the_right_dimension(wv: glovewire.KeyedVectors) -> None:
    for look_up in (wv.get_vector, wv.get_index, lambda key: wv.most_similar([key])):
        with pytest.raises(UsageError, match=r"0\.5 is neither a word nor a row"):
            look_up(0.5)
    for vector in (np.ones(23), np.ones((1, 24)), np.array(1)):
        for look_up in (wv.similar_by_vector, wv.get_vector, lambda key: wv.similarity("w1", key)):
            with pytest.raises(UsageError, match=r"shape .* instead of \(24,\)"):
                look_up(vector)


def test_a_word_and_its_weight_are_one_item(wv: glovewire.KeyedVectors) -> None:
    assert wv.most_similar(("w7", 0.5), ("w8", np.float32(2))) == wv.most_similar([("w7", 0.5)], [("w8", 2.0)])
    assert wv.most_similar(("w7", 8)) == wv.most_similar(["w7", "w8"])  # as for gensim


def test_words_without_capitals_are_found_in_any_case() -> None:
    wv = glovewire.KeyedVectors(["king", "queen"], np.eye(2))
    assert "King" in wv
    assert wv.most_similar("KING")[0][0] == "queen"


def test_an_unseen_word_is_composed_as_by_fasttext(tmp_path: Path) -> None:
    from gensim.models.fasttext import save_facebook_model

    texts = [["the", "café", "sells", "coffee"], ["running", "to", "the", "cafés"]] * 5
    model = FastText(texts, vector_size=8, bucket=300, min_n=2, max_n=4, min_count=1, workers=1, seed=1)
    save_facebook_model(model, str(tmp_path / "model.bin"))
    wv = glovewire.load(tmp_path / "model.bin")
    assert "runs" in wv
    assert not wv.has_index_for("runs")
    np.testing.assert_allclose(wv["runs"], model.wv["runs"], atol=1e-7)
    same(wv.most_similar("runs", topn=3), model.wv.most_similar("runs", topn=3))
    assert wv.get_vecattr("the", "count") == 10
    assert "n-grams" in repr(wv)


def test_all_is_kept_by_a_run_and_counts_go_to_gensim(tmp_path: Path) -> None:
    words, table = ["rare", "frequent", "common"], np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    wv = glovewire.KeyedVectors(words, table, counts=[1, 9, 5], subwords=fit(words, table, 0.5))
    kept = glovewire.load(wv.save(tmp_path / "kept"))
    assert kept.index_to_key == ["frequent", "common", "rare"]
    np.testing.assert_array_equal(kept[words], wv[words])
    np.testing.assert_array_equal(kept["rarest"], wv["rarest"])
    peer = kept.to_gensim()
    assert peer.get_vecattr("frequent", "count") == 9
    np.testing.assert_array_equal(peer.vectors, kept.vectors)


def test_a_zero_vector_is_like_nothing() -> None:
    wv = glovewire.KeyedVectors(["zero", "one", "two"], [[0, 0], [1, 0], [1, 1]])
    assert wv.similarity("zero", "one") == 0.0
    assert wv.most_similar("one")[-1] == ("zero", 0.0)


def test_four_hundred_thousand_words_are_searched_at_once() -> None:
    """60 ms of wall time on an idle machine; here, processor time, with room for a busy one."""
    rows = np.random.default_rng(0).standard_normal((400_000, 50), dtype=np.float32)
    wv = glovewire.KeyedVectors(map(str, range(400_000)), rows)
    wv.most_similar("5")
    began = time.thread_time()
    for word in ("1", "2", "3"):
        wv.most_similar(word)
    assert time.thread_time() - began < 0.3
