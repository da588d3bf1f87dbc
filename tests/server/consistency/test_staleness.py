"""Staleness in bins by powers of two, and which rows are pushed most; both as the core counts them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from shards import ASYNC, MINIBATCH, add, in_memory, push, shard, statistics

from glovewire.common.model.row_layout import RowLayout
from glovewire.server.consistency.staleness import BINS, Histogram, label
from glovewire.server.table.hot_rows import MAX_RANGES, Heat


def test_bins_are_powers_of_two_and_the_last_holds_the_rest() -> None:
    histogram = Histogram()
    for tau in (-3, 0, 1, 2, 3, 4, 7, 8, 4095, 4096, 10**12):
        histogram.count(tau)
    fields = histogram.as_fields()
    assert {bin: n for bin, n in fields.items() if n} == {
        "0": 2, "1": 1, "2-3": 2, "4-7": 2, "8-15": 1, "2048-4095": 1, "4096+": 2
    }  # fmt: skip
    assert list(fields) == [label(bin) for bin in range(BINS)]
    assert histogram.pushes == 11
    assert Histogram().as_fields() == {}


def test_a_push_is_as_stale_as_its_rows_have_grown_since(tmp_path: Path) -> None:
    one = shard(in_memory(tmp_path / "d"), **ASYNC)
    for name in ("w0", "w1"):
        one.hello(name)
    one.ask(b"w0", push("add", np.ones((2, one.state.table.values.shape[1])), 0, 2, version=0))
    one.ask(b"w1", push("add", np.ones((2, one.state.table.values.shape[1])), 0, 2, version=0))
    one.ask(b"w0", add(one, 2))  # without a version nobody can tell
    assert one.state.pull_push.staleness.as_fields() == {"0": 1, "1": 1}
    assert statistics(one)["staleness"] == {"0": 1, "1": 1}
    assert statistics(one)["hot_rows"] == {"0-1": 3}


def test_the_rows_that_are_pushed_most_come_first(tmp_path: Path) -> None:
    one = shard(in_memory(tmp_path / "d"), **MINIBATCH)
    one.hello("w0")
    width = RowLayout.of(one.state.options).parameters
    for sequence, rows in enumerate(([1, 4], [4, 5], [4, 5]), 1):
        one.ask(b"w0", push("gradient", np.ones((2, width)), rows=rows, sequence=sequence, rate=0.1))
    assert list(one.state.pull_push.hot_rows.hottest(2).items()) == [("4", 3), ("5", 2)]


@pytest.mark.parametrize("rows", [1, 3])
def test_few_rows_and_many_ranges_stay_within_bounds(rows: int) -> None:
    heat = Heat(100, rows)
    heat.count(push("gradient", np.ones((1, 1)), rows=[100]))
    assert heat.hottest() == {"100": 1}
    for last in range(MAX_RANGES + 10):
        heat.count(push("add", np.ones((1, 1)), 0, last + 1))
    assert len(heat._by_range) == MAX_RANGES
