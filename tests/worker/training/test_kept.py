"""Rows that stay with the worker that trained them: only as the next round needs them, and not too many."""

from __future__ import annotations

from glovewire.worker.training.prefetch import PartitionCache

NOBODY: set[tuple[int, int]] = set()


def test_a_partition_is_here_for_the_round_that_it_has_come_to_and_no_other() -> None:
    kept: PartitionCache[str] = PartitionCache(4)
    kept.put((3, 7), "rows", NOBODY)
    assert kept.has((3, 7))
    assert not kept.has((3, 6))
    assert not kept.has((3, 8))
    assert not kept.has((2, 7))
    assert kept.take((3, 7)) == "rows"
    assert not kept.has((3, 7))


def test_of_the_rounds_of_a_partition_the_last_one_stays() -> None:
    kept: PartitionCache[str] = PartitionCache(4)
    kept.put((3, 7), "seven", NOBODY)
    kept.put((3, 8), "eight", NOBODY)
    kept.put((3, 5), "five", NOBODY)
    assert [round for round in range(10) if kept.has((3, round))] == [8]
    assert kept.take((3, 8)) == "eight"


def test_what_a_block_needs_stays_however_old_it_is_and_beside_newer_rounds() -> None:
    kept: PartitionCache[int] = PartitionCache(2)
    for partition in range(5):
        kept.put((partition, 1), partition, {(0, 1)})
    assert [partition for partition in range(5) if kept.has((partition, 1))] == [0, 3, 4]
    kept.put((0, 4), 0, {(0, 1)})
    assert kept.has((0, 1))
    assert kept.has((0, 4))
    kept.put((0, 2), 0, {(0, 1), (0, 2)})
    assert kept.has((0, 2)), "a block trained again leads through rounds that were there before"
    assert [kept.take((0, round)) for round in (1, 2, 4)] == [0, 0, 0]
