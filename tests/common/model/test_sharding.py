"""Which server owns which rows: nothing is lost, nothing is owned twice, whatever does not divide."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from strategies import quick

from glovewire.common.model.sharding import Sharding, ShardRange

SHARDINGS = st.builds(Sharding, st.integers(0, 500), st.integers(1, 12))


@quick()
@given(SHARDINGS)
def test_shards_cover_all_rows_in_order_and_differ_by_one_at_most(sharding: Sharding) -> None:
    bounds = [sharding.bound(shard) for shard in range(sharding.shards + 1)]
    sizes = np.diff(bounds)
    assert bounds[0] == 0
    assert bounds[-1] == sharding.rows
    assert sizes.min() >= 0
    assert sizes.max() - sizes.min() <= 1


@quick(100)
@given(SHARDINGS, st.data())
def test_a_range_is_split_without_loss(sharding: Sharding, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, sharding.rows))
    last = data.draw(st.integers(first, sharding.rows))
    parts = sharding.split(first, last)
    assert [row for part in parts for row in range(part.first, part.last)] == list(range(first, last))
    assert [part.shard for part in parts] == sorted({part.shard for part in parts})
    for part in parts:
        assert sharding.bound(part.shard) <= part.first < part.last <= sharding.bound(part.shard + 1)


@quick(100)
@given(SHARDINGS, st.data())
def test_rows_by_number_are_split_without_loss(sharding: Sharding, data: st.DataObject) -> None:
    chosen = data.draw(st.sets(st.integers(0, max(sharding.rows - 1, 0)), max_size=min(40, sharding.rows)))
    rows = np.array(sorted(chosen), np.int64)
    parts = sharding.split_rows(rows)
    assert np.concatenate([rows[span] for _, span in parts] or [rows]).tolist() == rows.tolist()
    for shard, span in parts:
        assert (rows[span] >= sharding.bound(shard)).all()
        assert (rows[span] < sharding.bound(shard + 1)).all()


@quick(200)
@given(SHARDINGS, st.integers(-1, 9), st.data())
def test_pieces_of_a_range_cover_it_and_none_has_too_many_of_the_rows(
    sharding: Sharding, most: int, data: st.DataObject
) -> None:
    """Also pieces that have none of the rows: a push says with them that its range is complete."""
    first = data.draw(st.integers(0, sharding.rows))
    last = data.draw(st.integers(first, sharding.rows))
    chosen = st.sets(st.integers(first, last - 1)) if first < last else st.just(set())
    rows = data.draw(st.none() | chosen.map(lambda some: np.array(sorted(some), np.int64)))
    pieces = list(sharding.split_small(first, last, most, rows))
    assert [row for part, _ in pieces for row in range(part.first, part.last)] == list(range(first, last))
    numbers = np.arange(first, last) if rows is None else rows
    assert [row for _, span in pieces for row in numbers[span]] == numbers.tolist()
    for part, span in pieces:
        assert sharding.bound(part.shard) <= part.first < part.last <= sharding.bound(part.shard + 1)
        assert span.stop - span.start <= max(most, 1)
        assert all(part.first <= row < part.last for row in numbers[span])


def test_three_shards_of_ten_rows() -> None:
    sharding = Sharding(10, 3)
    assert sharding.split(2, 7) == [ShardRange(0, 2, 3), ShardRange(1, 3, 6), ShardRange(2, 6, 7)]
    assert sharding.split(3, 3) == []
    assert sharding.split(3, 6) == [ShardRange(1, 3, 6)]


def test_more_shards_than_rows_leave_some_empty() -> None:
    parts = Sharding(2, 5).split(0, 2)
    assert [(part.first, part.last) for part in parts] == [(0, 1), (1, 2)]
