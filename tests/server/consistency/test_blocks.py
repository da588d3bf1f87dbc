"""May this pull be answered, may this push be applied: exclusive order and no order at all."""

from __future__ import annotations

import numpy as np
import pytest
import shards
from shards import pull

from glovewire.common.errors import BadRequest, LeaseLost
from glovewire.common.model.rounds import Rounds
from glovewire.common.protocol import messages as m
from glovewire.server.consistency.blocks import ExclusiveBlocks
from glovewire.server.consistency.interface import Consistency
from glovewire.server.consistency.minibatch import (
    Admission,
    Asynchronous,
)

BOUNDS = np.array([0, 8, 16, 25])
FAR = np.iinfo(np.int64).max
ORDER = Rounds(3, 9)


def exclusive(start: int = 0, bounds: np.ndarray = BOUNDS) -> ExclusiveBlocks:
    return ExclusiveBlocks(bounds, start, ORDER)


def visits(partition: int) -> list[int]:
    """The rounds that visit a partition."""
    return [round for round in range(ORDER.total) if partition in ORDER.visits(round)]


def push(first: int, last: int, version: int, operation: str = "assign", rows: np.ndarray | None = None) -> m.Push:
    return shards.push(operation, np.zeros((last - first, 1)), first, last, version=version, rows=rows)


def may_pull(mode: Consistency, request: m.Pull) -> bool:
    return mode.may_pull(request, 0)


def carried_out(mode: Consistency, request: m.Push) -> bool:
    """Whether a push is new; it is carried out."""
    fate = mode.admit(request, 0)
    assert [arrived.push for arrived in mode.next_update()] == [request] * (fate is Admission.NEW)
    return fate is Admission.NEW


def test_a_pull_waits_for_its_round() -> None:
    order, (first, second, *_) = exclusive(), visits(1)
    assert may_pull(order, pull(8, 16, first))
    assert not may_pull(order, pull(8, 16, first + 1))
    assert carried_out(order, push(8, 16, first))
    assert may_pull(order, pull(8, 16, second))
    assert may_pull(order, pull(9, 12, second))
    assert may_pull(order, pull(8, 16, second, rows=[9, 12]))
    assert not may_pull(order, pull(8, 16, second + 1))
    assert may_pull(order, pull(0, 25, m.NO_VERSION))
    assert order.version(8) == second
    assert order.version(0) == 0


def test_a_push_is_new_once_and_a_repeat_for_ever() -> None:
    order, (first, second, *_) = exclusive(), visits(1)
    assert carried_out(order, push(8, 16, first))
    assert not carried_out(order, push(8, 16, first))
    assert carried_out(order, push(8, 16, second))
    assert not carried_out(order, push(8, 16, first))
    with pytest.raises(LeaseLost, match="the push comes from version"):
        order.admit(push(8, 16, order.version(8) + 1), 0)


def test_the_last_rows_of_a_partition_end_its_visit() -> None:
    """The others may come in pieces, and of each piece only those that changed."""
    order, (first, second, *_) = exclusive(), visits(1)
    assert carried_out(order, push(8, 10, first))
    assert order.version(8) == first
    assert order.is_past(first), "some rows have been through the round and others have not"
    assert order.reached() == (-1, -1)
    assert carried_out(order, push(10, 16, first, rows=np.array([11])))
    assert order.version(8) == second


def test_a_state_is_that_at_the_start_of_a_round_or_of_several() -> None:
    """A shard without the first partition, which every round changes, does not know how many rounds there were."""
    later = exclusive(bounds=np.clip(BOUNDS, 16, 25))
    first, second, *_ = visits(2)
    assert later.reached() == (0, first)
    assert carried_out(later, push(16, 25, first))
    assert later.reached() == (first + 1, second)
    assert later.is_past(first)
    assert not later.is_past(first + 1)
    assert list(later.visits(2, 0)) == [first]
    assert exclusive(4).reached() == (4, 4)


@pytest.mark.parametrize(
    ("first", "last"), [(7, 9), (0, 25), (-1, 3), (25, 26), (25, 25), (8, 8), (9, 8), (FAR - 1, FAR), (-FAR, 1)]
)
def test_rows_of_several_partitions_of_none_or_not_here_are_refused(first: int, last: int) -> None:
    """Some of these ended the server with an IndexError."""
    order = exclusive()
    with pytest.raises(BadRequest):
        may_pull(order, pull(first, last, 0))
    if first <= last < FAR:
        with pytest.raises(BadRequest):
            order.admit(push(first, min(last, first + 30), 0), 0)


@pytest.mark.parametrize("first", [-1, 25, FAR, -FAR])
def test_rows_that_are_not_here_have_no_version(first: int) -> None:
    assert exclusive(3).version(first) == m.NO_VERSION


def test_a_shard_asks_only_for_its_own_part_of_a_partition() -> None:
    order = exclusive(bounds=np.clip(BOUNDS, 5, 12))
    for partition, (first, last) in enumerate(((5, 8), (8, 12))):
        assert carried_out(order, push(first, last, visits(partition)[0]))
    assert order.rounds.tolist()[:2] == [visits(0)[1], visits(1)[1]]
    with pytest.raises(BadRequest, match="not on this shard"):
        order.admit(push(12, 16, 0), 0)


def test_empty_partitions_are_stepped_over() -> None:
    order = ExclusiveBlocks(np.array([0, 0, 3, 3, 5]), 0, Rounds(4, 1))
    assert [order.partition(0, 3), order.partition(3, 5)] == [1, 3]
    assert order.here() == [1, 3]


def test_exclusive_order_takes_assignments_only() -> None:
    for request in (push(0, 8, 0, "add"), push(0, 8, 0, "gradient")):
        with pytest.raises(BadRequest, match="assigns rows of one partition"):
            exclusive().admit(request, 0)


@pytest.mark.parametrize("rows", [[8], [-1, 3], [3, 3], [4, 2], [FAR]])
def test_row_numbers_lie_in_the_range_of_their_request(rows: list[int]) -> None:
    order = exclusive()
    with pytest.raises(BadRequest, match="in the range of the request"):
        may_pull(order, pull(0, 8, 0, rows=rows))
    with pytest.raises(BadRequest, match="in the range of the request"):
        order.admit(push(0, 8, 0, rows=np.array(rows)), 0)
    assert may_pull(order, pull(0, 0, m.NO_VERSION, rows=rows))


def test_without_an_order_everything_goes_and_versions_count_pushes() -> None:
    mode = Asynchronous()
    assert may_pull(mode, pull(0, 25, 99))
    assert carried_out(mode, push(0, 25, 0, "add"))
    assert mode.version(3) == 1
    with pytest.raises(BadRequest, match="one of add, gradient"):
        mode.admit(push(0, 8, 0, "assign"), 0)
