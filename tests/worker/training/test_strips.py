"""How many strips a worker holds, and how many visits of the one in training it prefetches."""

from __future__ import annotations

import pytest

from glovewire.worker.training.strips import (
    FEWEST_VISITS,
    MOST_STRIPS,
    MOST_VISITS,
    OWN_BYTES,
    VISIT_BYTES,
    PrefetchWindow,
    needs_visit,
)

OFTEN = 100


def window(way_s: float, strip_s: float) -> PrefetchWindow:
    """After many pushes and strips that took so long."""
    made = PrefetchWindow()
    for _ in range(OFTEN):
        made.trained(strip_s)
        made.pushed(way_s)
    return made


def most(of: PrefetchWindow, left: float, nbytes: int = 0) -> int:
    return next(tasks for tasks in range(100) if not of.needs_strip(tasks, nbytes, left))


def test_the_next_strip_is_leased_when_half_of_this_one_is_trained() -> None:
    """Not before: another worker may be idle."""
    short = window(0.0, 0.1)
    assert most(short, left=0.6) == 1
    assert most(short, left=0.5) == 2
    assert most(PrefetchWindow(), left=0.9) == 1  # nothing was measured


@pytest.mark.parametrize(("way_s", "expected"), [(0.04, 2), (0.09, 3), (9.0, MOST_STRIPS)])
def test_as_many_strips_as_are_trained_while_rows_come_both_ways(way_s: float, expected: int) -> None:
    """A strip takes 0.1 s: of one that another worker pushes, rows are here after two ways."""
    assert most(window(way_s, 0.1), left=0.1) == expected


def test_large_partitions_are_prefetched_one_at_a_time() -> None:
    slow = window(9.0, 0.1)
    assert most(slow, 0.1, OWN_BYTES + 1) == 2
    assert most(slow, 0.1, OWN_BYTES) == MOST_STRIPS


def test_visits_are_prefetched_by_bytes_within_limits() -> None:
    assert needs_visit(FEWEST_VISITS - 1, 1 << 40)
    assert not needs_visit(FEWEST_VISITS, VISIT_BYTES)
    assert needs_visit(FEWEST_VISITS, VISIT_BYTES - 1)
    assert not needs_visit(MOST_VISITS, 0)
