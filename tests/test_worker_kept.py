"""Rows that stay with the worker that trained them: only as the next round needs them, and not too many."""

from __future__ import annotations

from worker.kept import Kept


def test_a_partition_is_here_for_the_round_that_it_has_come_to_and_no_other() -> None:
    kept: Kept[str] = Kept(4)
    kept.put(3, 7, "rows", set())
    assert kept.has(3, 7)
    assert not kept.has(3, 6)
    assert not kept.has(3, 8)
    assert not kept.has(2, 7)
    assert kept.take(3) == "rows"
    assert not kept.has(3, 7)


def test_a_block_that_is_trained_again_does_not_take_the_place_of_newer_rows() -> None:
    kept: Kept[str] = Kept(4)
    kept.put(3, 7, "new", set())
    kept.put(3, 5, "old", set())
    assert kept.has(3, 7)
    assert kept.take(3) == "new"
    kept.put(3, 7, "first", set())
    kept.put(3, 8, "next", set())
    assert kept.take(3) == "next"


def test_the_newest_stay_and_what_a_block_needs_stays_however_old_it_is() -> None:
    kept: Kept[int] = Kept(2)
    for partition in range(5):
        kept.put(partition, 1, partition, {0})
    assert [partition for partition in range(5) if kept.has(partition, 1)] == [0, 3, 4]
    kept.put(3, 2, 3, set())
    kept.put(1, 2, 1, set())
    assert [(p, r) for p in range(5) for r in (1, 2) if kept.has(p, r)] == [(1, 2), (3, 2)]
