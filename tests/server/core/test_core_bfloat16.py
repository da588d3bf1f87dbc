"""Rows that travel as bfloat16: what workers pull and add, and what a strip that is trained again finds."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from shards import ASYNC, Shard, code, leased, pull, push, shard, span

from glovewire.common.array_types import Rows
from glovewire.common.model.bfloat16 import BFLOAT16, from_bfloat16, to_bfloat16
from glovewire.common.protocol import messages as m
from glovewire.common.storage.dataset import Dataset


@pytest.fixture
def one(dataset: Dataset) -> Shard:
    """A shard in exclusive order with two workers and random rows."""
    one = shard(dataset, bfloat16=True)
    for name in ("w", "v"):
        one.hello(name)
    draw = np.random.default_rng(7)
    one.state.table.values[:] = draw.normal(size=one.state.table.values.shape)
    return one


def differences(of: Shard, rows: int, seed: int = 0) -> Rows:
    """Differences that bfloat16 holds exactly."""
    draw = np.random.default_rng(seed)
    return from_bfloat16(to_bfloat16(draw.normal(size=(rows, of.state.table.values.shape[1])).astype(np.float32)))


def add(values: Rows, first: int, last: int, *, sequence: int = 1, worker: int = 0, **fields: object) -> m.Push:
    """A push of differences to rows of the first partition in round 0, under a lease of its own."""
    plain = push("add", values, first, last, sequence=sequence, version=0, **fields)
    return leased(dataclasses.replace(plain, values=to_bfloat16(values)), worker=worker, lease=worker + 1)


def halves(of: Shard, peer: bytes, first: int, last: int, version: int, **fields: object) -> np.ndarray:
    """Rows as a worker pulls them."""
    reply = of.ask(peer, pull(first, last, version, bfloat16=True, **fields))
    assert isinstance(reply, m.Rows)
    assert reply.values.dtype == BFLOAT16
    return reply.values


def test_differences_are_added_to_rows_that_stay_float32(one: Shard) -> None:
    first, last = span(one, 0)
    before, change = one.state.table.values[first:last].copy(), differences(one, last - first)
    np.testing.assert_array_equal(halves(one, b"w", first, last, 0), to_bfloat16(before))
    assert isinstance(one.ask(b"w", add(change, first, last)), m.Applied)
    np.testing.assert_array_equal(one.state.table.values[first:last], before + change)
    some = [first + 1, last - 1]
    np.testing.assert_array_equal(halves(one, b"w", first, last, 1), to_bfloat16(before + change))
    np.testing.assert_array_equal(halves(one, b"v", first, last, 0), to_bfloat16(before))
    np.testing.assert_array_equal(halves(one, b"v", first, last, 0, rows=some), to_bfloat16(before[[1, -1]]))
    repeat = one.ask(b"v", add(change, first, last, worker=1))
    assert isinstance(repeat, m.Applied)
    assert repeat.repeated
    np.testing.assert_array_equal(one.state.table.values[first:last], before + change)
    exact = one.ask(b"w", pull(first, last))
    assert isinstance(exact, m.Rows)
    np.testing.assert_array_equal(exact.values, before + change)


@pytest.mark.parametrize("named", [False, True])
def test_what_a_lost_worker_added_is_taken_back(one: Shard, named: bool) -> None:
    """It added to some rows of a partition, and the next holder of the strip to all of them, in other pieces."""
    first, last = span(one, 0)
    before, change = one.state.table.values[first:last].copy(), differences(one, last - first)
    cut = first + 5
    some = {"rows": [first + 1, first + 3]} if named else {}
    lost = differences(one, 2 if named else cut - first, seed=1)
    assert isinstance(one.ask(b"w", add(lost, first, cut, **some)), m.Applied)
    assert not np.array_equal(one.state.table.values[first:last], before)
    np.testing.assert_array_equal(halves(one, b"v", first, last, 0), to_bfloat16(before))
    middle = first + 2
    assert isinstance(one.ask(b"v", add(change[: middle - first], first, middle, worker=1)), m.Applied)
    rest = add(change[middle - first :], middle, last, sequence=2, worker=1)
    assert isinstance(one.ask(b"v", rest), m.Applied)
    np.testing.assert_array_equal(one.state.table.values[first:last], before + change)
    np.testing.assert_array_equal(halves(one, b"v", first, last, 0), to_bfloat16(before))


def test_a_training_has_one_form_of_rows(one: Shard, dataset: Dataset) -> None:
    """Otherwise a strip that is trained twice would bring two results."""
    first, last = span(one, 0)
    before, change = one.state.table.values.copy(), differences(one, last - first)
    wide = dataclasses.replace(add(change, first, last), values=change)
    for wrong in (wide, dataclasses.replace(wide, operation="assign"), pull(first, last, 0)):
        assert code(one.ask(b"w", wrong)) == "bad-request"
    np.testing.assert_array_equal(one.state.table.values, before)
    other = shard(dataset)
    other.hello("w")
    for wrong in (add(change, first, last), wide, pull(first, last, 0, bfloat16=True)):
        assert code(other.ask(b"w", wrong)) == "bad-request"


def test_in_asynchronous_order_each_may_choose(dataset: Dataset) -> None:
    one = shard(dataset, **ASYNC)
    one.hello("w")
    first, last = span(one, 0)
    before, change = one.state.table.values[first:last].copy(), differences(one, last - first)
    np.testing.assert_array_equal(halves(one, b"w", first, last, m.NO_VERSION), to_bfloat16(before))
    assert isinstance(one.ask(b"w", add(change, first, last)), m.Applied)
    np.testing.assert_array_equal(one.state.table.values[first:last], before + change)


def test_what_is_not_finite_changes_nothing(one: Shard) -> None:
    first, last = span(one, 0)
    before, change = one.state.table.values.copy(), differences(one, last - first)
    for strange in (0x7F80, 0xFF80, 0x7FC1):
        bad = add(change, first, last)
        bad.values[2, 3] = strange
        assert code(one.ask(b"w", bad)) == "not-finite"
    np.testing.assert_array_equal(one.state.table.values, before)
