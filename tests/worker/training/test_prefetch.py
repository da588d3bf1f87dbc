"""How many blocks a worker prefetches rows for, and which rows it caches: those of the next rounds, and few others."""

from __future__ import annotations

import pytest

from glovewire.worker.training.prefetch import (
    BIG_ROWS_BYTES,
    MAX_TASKS,
    MIN_TASKS,
    MIN_TASKS_OF_BIG_ROWS,
    PartitionCache,
    PrefetchWindow,
)

FEW_BYTES, MANY_BYTES = 1, BIG_ROWS_BYTES
OFTEN = 100
NOTHING: set[tuple[int, int]] = set()


def tasks(way_s: float, block_s: float, partition_bytes: int = MANY_BYTES, pulled: int = 1) -> int:
    """After many pushes and blocks that took so long."""
    window = PrefetchWindow(partition_bytes)
    for _ in range(OFTEN):
        window.trained(block_s)
        window.pushed(way_s)
    return window.tasks(pulled)


@pytest.mark.parametrize(
    ("way_s", "expected"),
    [(0.0, 2), (0.04, 2), (0.09, 3), (0.14, 4), (0.19, 5), (0.24, 6), (0.29, 6), (9.0, 6)],
)
def test_as_many_tasks_as_are_trained_while_rows_come_both_ways(way_s: float, expected: int) -> None:
    """A block takes 0.1 s: of one that another worker pushes, rows are here after two ways."""
    assert tasks(way_s, 0.1) == expected
    assert (MIN_TASKS_OF_BIG_ROWS, MAX_TASKS) == (2, 6)


def test_only_the_way_in_blocks_counts() -> None:
    assert tasks(0.19, 0.1) == tasks(0.019, 0.01) > tasks(0.19, 1.0)


def test_where_the_way_is_short_bytes_decide() -> None:
    assert tasks(0.0, 0.1, FEW_BYTES) == tasks(0.0, 0.1, pulled=0) == MIN_TASKS
    assert tasks(0.0, 0.1) == MIN_TASKS_OF_BIG_ROWS < MIN_TASKS


def test_one_slow_push_changes_nothing_and_a_link_that_became_slow_does() -> None:
    window = PrefetchWindow(FEW_BYTES)
    assert window.tasks(0) == MIN_TASKS  # nothing was measured
    for _ in range(OFTEN):
        window.trained(0.1)
        window.pushed(0.01)
    window.pushed(0.5)
    assert window.tasks(0) == MIN_TASKS
    for _ in range(OFTEN):
        window.pushed(0.5)
    assert window.tasks(0) == MAX_TASKS


def test_a_partition_is_here_for_the_round_that_it_has_come_to_and_no_other() -> None:
    cache: PartitionCache[str] = PartitionCache(4)
    cache.put((3, 7), "rows", NOTHING)
    assert cache.has((3, 7))
    assert not cache.has((3, 6))
    assert not cache.has((3, 8))
    assert not cache.has((2, 7))
    assert cache.take((3, 7)) == "rows"
    assert not cache.has((3, 7))


def test_of_the_rounds_of_a_partition_the_last_one_stays() -> None:
    cache: PartitionCache[str] = PartitionCache(4)
    cache.put((3, 7), "seven", NOTHING)
    cache.put((3, 8), "eight", NOTHING)
    cache.put((3, 5), "five", NOTHING)
    assert [round for round in range(10) if cache.has((3, round))] == [8]
    assert cache.take((3, 8)) == "eight"


def test_what_a_block_needs_stays_however_old_it_is_and_beside_newer_rounds() -> None:
    cache: PartitionCache[int] = PartitionCache(2)
    for partition in range(5):
        cache.put((partition, 1), partition, {(0, 1)})
    assert [partition for partition in range(5) if cache.has((partition, 1))] == [0, 3, 4]
    cache.put((0, 4), 0, {(0, 1)})
    assert cache.has((0, 1))
    assert cache.has((0, 4))
    cache.put((0, 2), 0, {(0, 1), (0, 2)})
    assert cache.has((0, 2)), "a block trained again leads through rounds that were there before"
    assert [cache.take((0, round)) for round in (1, 2, 4)] == [0, 0, 0]
