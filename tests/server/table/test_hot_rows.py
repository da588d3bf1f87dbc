"""Which rows are pushed most, as the core counts them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from shards import MINIBATCH, in_memory, push, shard

from glovewire.common.model.row_layout import RowLayout
from glovewire.server.table.hot_rows import MAX_RANGES, HotRows


def test_the_rows_that_are_pushed_most_come_first(tmp_path: Path) -> None:
    one = shard(in_memory(tmp_path / "d"), **MINIBATCH)
    one.hello("w0")
    width = RowLayout.of(one.state.options).parameters
    for sequence, rows in enumerate(([1, 4], [4, 5], [4, 5]), 1):
        one.ask(b"w0", push("gradient", np.ones((2, width)), rows=rows, sequence=sequence, rate=0.1))
    assert list(one.state.pull_push.hot_rows.hottest(2).items()) == [("4", 3), ("5", 2)]


@pytest.mark.parametrize("rows", [1, 3])
def test_few_rows_and_many_ranges_stay_within_bounds(rows: int) -> None:
    hot_rows = HotRows(100, rows)
    hot_rows.count(push("gradient", np.ones((1, 1)), rows=[100]))
    assert hot_rows.hottest() == {"100": 1}
    for last in range(MAX_RANGES + 10):
        hot_rows.count(push("add", np.ones((1, 1)), 0, last + 1))
    assert len(hot_rows.hottest(2 * MAX_RANGES)) == MAX_RANGES + 1
