"""How many blocks a worker has rows on their way for: a function of the way, the block's time and the rows' bytes."""

from __future__ import annotations

import pytest

from glovewire.worker.training.prefetch import AHEAD_BYTES, TASKS, TASKS_AT_MOST, TASKS_OF_MANY_BYTES, PrefetchWindow

FEW_BYTES, MANY_BYTES = 1, AHEAD_BYTES
OFTEN = 100


def tasks(way_s: float, block_s: float, partition_bytes: int = MANY_BYTES, pulled: int = 1) -> int:
    """After many pushes and blocks that took so long."""
    ahead = PrefetchWindow(partition_bytes)
    for _ in range(OFTEN):
        ahead.trained(block_s)
        ahead.pushed(way_s)
    return ahead.tasks(pulled)


@pytest.mark.parametrize(
    ("way_s", "expected"),
    [(0.0, 2), (0.04, 2), (0.09, 3), (0.14, 4), (0.19, 5), (0.24, 6), (0.29, 6), (9.0, 6)],
)
def test_as_many_tasks_as_are_trained_while_rows_come_both_ways(way_s: float, expected: int) -> None:
    """A block takes 0.1 s: of one that another worker pushes, rows are here after two ways."""
    assert tasks(way_s, 0.1) == expected
    assert (TASKS_OF_MANY_BYTES, TASKS_AT_MOST) == (2, 6)


def test_only_the_way_in_blocks_counts() -> None:
    assert tasks(0.19, 0.1) == tasks(0.019, 0.01) > tasks(0.19, 1.0)


def test_where_the_way_is_short_bytes_decide() -> None:
    assert tasks(0.0, 0.1, FEW_BYTES) == tasks(0.0, 0.1, pulled=0) == TASKS
    assert tasks(0.0, 0.1) == TASKS_OF_MANY_BYTES < TASKS


def test_one_slow_push_changes_nothing_and_a_link_that_became_slow_does() -> None:
    ahead = PrefetchWindow(FEW_BYTES)
    assert ahead.tasks(0) == TASKS  # nothing was measured
    for _ in range(OFTEN):
        ahead.trained(0.1)
        ahead.pushed(0.01)
    ahead.pushed(0.5)
    assert ahead.tasks(0) == TASKS
    for _ in range(OFTEN):
        ahead.pushed(0.5)
    assert ahead.tasks(0) == TASKS_AT_MOST
