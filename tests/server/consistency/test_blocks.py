"""May this pull be answered, may this push be applied: exclusive order and no order at all."""

from __future__ import annotations

import numpy as np
import pytest
import shards
from shards import pull

from glovewire.common.errors import BadRequest, LeaseLost
from glovewire.common.protocol import messages as m
from glovewire.server.consistency.blocks import ExclusiveBlocks
from glovewire.server.consistency.interface import Consistency
from glovewire.server.consistency.minibatch import (
    Admission,
    Asynchronous,
)

BOUNDS = np.array([0, 8, 16, 25])
FAR = np.iinfo(np.int64).max


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
    order = ExclusiveBlocks(BOUNDS, 0)
    assert may_pull(order, pull(8, 16, 0))
    assert not may_pull(order, pull(8, 16, 1))
    assert carried_out(order, push(8, 16, 0))
    assert may_pull(order, pull(8, 16, 1))
    assert may_pull(order, pull(9, 12, 1))
    assert not may_pull(order, pull(0, 8, 1))
    assert may_pull(order, pull(0, 25, m.NO_VERSION))
    assert order.version(8) == 1
    assert order.version(0) == 0


def test_a_push_is_new_once_and_a_repeat_for_ever() -> None:
    order = ExclusiveBlocks(BOUNDS, 4)
    assert carried_out(order, push(0, 8, 4))
    assert not carried_out(order, push(0, 8, 4))
    assert not carried_out(order, push(0, 8, 1))
    with pytest.raises(LeaseLost, match="at version 5"):
        order.admit(push(0, 8, 6), 0)


@pytest.mark.parametrize(
    ("first", "last"), [(7, 9), (0, 25), (-1, 3), (25, 26), (25, 25), (8, 8), (9, 8), (FAR - 1, FAR), (-FAR, 1)]
)
def test_rows_of_several_partitions_of_none_or_not_here_are_refused(first: int, last: int) -> None:
    """Some of these ended the server with an IndexError."""
    order = ExclusiveBlocks(BOUNDS, 0)
    with pytest.raises(BadRequest):
        may_pull(order, pull(first, last, 0))
    if first <= last < FAR:
        with pytest.raises(BadRequest):
            order.admit(push(first, min(last, first + 30), 0), 0)


@pytest.mark.parametrize("first", [-1, 25, FAR, -FAR])
def test_rows_that_are_not_here_have_no_version(first: int) -> None:
    assert ExclusiveBlocks(BOUNDS, 3).version(first) == m.NO_VERSION


@pytest.mark.parametrize(("first", "last"), [(8, 9), (8, 15), (9, 16)])
def test_a_part_of_a_partition_does_not_end_its_round(first: int, last: int) -> None:
    with pytest.raises(BadRequest, match="every row of a partition"):
        ExclusiveBlocks(BOUNDS, 0).admit(push(first, last, 0), 0)


def test_a_shard_asks_only_for_its_own_part_of_a_partition() -> None:
    order = ExclusiveBlocks(np.clip(BOUNDS, 5, 12), 0)
    for first, last in ((5, 8), (8, 12)):
        assert carried_out(order, push(first, last, 0))
    assert order.rounds.tolist() == [1, 1, 0]
    with pytest.raises(BadRequest, match="not on this shard"):
        order.admit(push(12, 16, 0), 0)


def test_empty_partitions_are_stepped_over() -> None:
    order = ExclusiveBlocks(np.array([0, 0, 3, 3, 5]), 0)
    assert [order.partition(0, 3), order.partition(3, 5)] == [1, 3]


def test_exclusive_order_takes_assignments_of_ranges_only() -> None:
    order = ExclusiveBlocks(BOUNDS, 0)
    for request in (push(0, 8, 0, "add"), push(0, 8, 0, "gradient"), push(0, 8, 0, rows=np.arange(8))):
        with pytest.raises(BadRequest, match="assigns the rows of one partition"):
            order.admit(request, 0)
    with pytest.raises(BadRequest, match="by number have no version"):
        may_pull(order, pull(0, 0, 0, rows=np.arange(3)))
    assert may_pull(order, pull(0, 0, m.NO_VERSION, rows=np.arange(3)))


def test_without_an_order_everything_goes_and_versions_count_pushes() -> None:
    mode = Asynchronous()
    assert may_pull(mode, pull(0, 25, 99))
    assert carried_out(mode, push(0, 25, 0, "add"))
    assert mode.version(3) == 1
    with pytest.raises(BadRequest, match="one of add, gradient"):
        mode.admit(push(0, 8, 0, "assign"), 0)
