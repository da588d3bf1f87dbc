"""The arrangement of the words as rows: every word once, partitions that are small enough, frequent words first."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import quick

from glovewire.common.storage.dataset import MAX_PARTITION_ROWS, MAX_PARTITIONS
from glovewire.preprocess.counts import arrangement
from glovewire.preprocess.counts.arrangement import COMMON, MOST_ROWS, WORK_POWER, arrange, default_partitions


def zipf(words: int) -> np.ndarray:
    """Frequencies as those of a text, in an order that says nothing about them; a third of the words are common."""
    counts = 20 * words // np.arange(1, words + 1)
    return np.random.default_rng(9).permutation(counts).astype(np.int64)


def check(counts: np.ndarray, partitions: int, most_rows: int) -> tuple[tuple[int, ...], np.ndarray]:
    """Arrange words; check what holds of all arrangements."""
    bounds, rows = arrange(counts, partitions, 1)
    sizes = np.diff(bounds)
    assert bounds[0] == 0
    assert bounds[-1] == len(counts)
    assert sizes.min() >= 1, "no partition is empty, and bounds ascend"
    assert sizes.max() <= most_rows
    assert len(sizes) >= partitions
    assert len(sizes) == partitions or len(counts) > most_rows
    assert rows.dtype == np.int32
    assert np.array_equal(np.sort(rows), np.arange(len(counts))), "every word has one row"
    if partitions > 1:
        rare = rows[np.count_nonzero(counts >= COMMON) :]
        assert (np.diff(counts[rare]) <= 0).all(), "rare words follow in order"
    return bounds, rows


@quick(300)
@given(st.lists(st.integers(0, 10**15) | st.integers(0, 3 * COMMON), min_size=1, max_size=60), st.data())
def test_every_word_has_a_row_and_no_partition_is_empty_or_too_large(found: list[int], data: st.DataObject) -> None:
    counts = np.array(found, np.int64)
    partitions = data.draw(st.integers(1, len(found)))
    most = data.draw(st.sampled_from([1, 3, 10, MOST_ROWS]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrangement, "MOST_ROWS", most)
        bounds, rows = check(counts, partitions, most)
        again = arrange(counts, partitions, 1)
    assert again[0] == bounds
    assert np.array_equal(again[1], rows)


@pytest.mark.parametrize("words", [1, 2, 3, 7, 8, 9])
@pytest.mark.parametrize("frequency", [1, COMMON])
def test_few_words_get_a_partition_each(words: int, frequency: int) -> None:
    counts = np.full(words, frequency)
    partitions = default_partitions(counts)
    assert partitions == min(words, 6)
    bounds, _ = check(counts, partitions, MOST_ROWS)
    assert np.diff(bounds).max() <= -(-words // partitions) + 1


@pytest.mark.parametrize("words", [2_000, 32_000, 400_000])
def test_partitions_take_part_in_about_as_much_work_and_frequent_ones_come_first(words: int) -> None:
    counts = zipf(words)
    bounds, rows = check(counts, default_partitions(counts), MOST_ROWS)
    work = np.array([(counts[rows[first:last]] ** WORK_POWER).sum() for first, last in pairwise(bounds)])
    assert work.max() < 2 * work.mean()
    means = [counts[rows[first:last]].mean() for first, last in pairwise(bounds)]
    assert max(means[-2:]) < min(means[:2])


def test_common_words_are_dealt_to_their_partitions_at_random_and_rare_ones_follow_in_order() -> None:
    """Words of one frequency would follow each other in long runs otherwise, and their biases swing."""
    counts = zipf(32_000)
    bounds, rows = arrange(counts, 8, 1)
    common = int(np.count_nonzero(counts >= COMMON))
    last = bounds.index(common)
    assert last > 1
    assert (counts[rows[:common]] >= COMMON).all()
    medians = [np.median(counts[rows[first:end]]) for first, end in pairwise(bounds[: last + 1])]
    assert max(medians) < 1.2 * min(medians), "each of them has words of every frequency"
    assert (np.diff(counts[rows[common:]]) <= 0).all()


def test_the_order_is_a_function_of_the_seed() -> None:
    counts = zipf(500)
    first, other = arrange(counts, 8, 1), arrange(counts, 8, 2)
    assert first[0] == other[0]
    assert not np.array_equal(first[1], other[1])


@pytest.mark.parametrize(("tokens", "partitions"), [(10**6, 6), (74 * 10**6, 8), (10**9, 16), (10**10, 16)])
def test_more_text_gets_more_partitions(tokens: int, partitions: int) -> None:
    assert default_partitions(np.full(32_000, tokens // 32_000)) == partitions


@pytest.mark.parametrize("words", [1, 8, 100_000, 2_000_000, 4_000_000])
def test_defaults_fit_any_vocabulary(words: int) -> None:
    assert 1 <= default_partitions(zipf(words)) <= min(words, MAX_PARTITIONS)
    bounds, _ = check(zipf(words), default_partitions(zipf(words)), MAX_PARTITION_ROWS)
    assert len(bounds) - 1 < 100
