"""Rows in pages: what comes out is what one array would hold, and nobody who was given a page sees it change."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shards import assign, code, in_memory, pull, push, shard
from strategies import quick

from glovewire.common.protocol import messages as m
from glovewire.server.table.table import Pages, Table

ROWS, WIDTH = 11, 3
BOUNDS = [0, 4, 4, 9, ROWS]
PLACES = [(0, 4), (4, 9), (9, ROWS)]


def counted() -> np.ndarray:
    return np.arange(ROWS * WIDTH, dtype=np.float32).reshape(ROWS, WIDTH)


@quick(100)
@given(
    bounds=st.sampled_from([[], BOUNDS]),
    steps=st.lists(st.tuples(st.sampled_from(["replace", "join"]), st.sampled_from(PLACES)), max_size=8),
    low=st.integers(0, ROWS), high=st.integers(0, ROWS), some=st.lists(st.integers(0, ROWS - 1)),
)  # fmt: skip
def test_pages_hold_what_one_array_would(
    bounds: list[int], steps: list[tuple[str, tuple[int, int]]], low: int, high: int, some: list[int]
) -> None:
    pages, model = Pages(counted(), bounds), counted()
    for number, (step, (first, last)) in enumerate(steps):
        if step == "join":
            np.testing.assert_array_equal(pages.join(), model)
            assert not pages.divided
            continue
        rows = np.full((last - first, WIDTH), -1.0 - number, np.float32)
        np.testing.assert_array_equal(pages.replace(first, rows), model[first:last])
        model[first:last] = rows
    low, high = sorted((low, high))
    np.testing.assert_array_equal(pages.whole(), model)
    np.testing.assert_array_equal(pages.between(low, high), model[low:high])
    np.testing.assert_array_equal(pages.gather(np.array(some, np.int64)), model[some])
    assert pages.shape == model.shape
    assert pages.dtype == model.dtype


def test_a_page_takes_what_comes_as_it_is_and_leaves_what_was_given_away_alone() -> None:
    pages = Pages(counted(), BOUNDS)
    given_away, new = pages.between(5, 8), np.zeros((5, WIDTH), np.float32)
    before = pages.replace(4, new)
    assert np.shares_memory(pages.between(4, 9), new)
    assert np.shares_memory(given_away, before)
    np.testing.assert_array_equal(given_away, counted()[5:8])


@pytest.mark.parametrize("rows", [counted(), counted()[:, :]], ids=["its own", "somebody else's"])
def test_the_array_that_is_divided_is_used_up_if_it_can_be(rows: np.ndarray) -> None:
    left = ROWS if rows.base is not None else 0
    pages = Pages(rows, BOUNDS)
    assert len(rows) == left
    np.testing.assert_array_equal(pages.whole(), counted())


def test_rows_that_were_pulled_stay_as_they_were(tmp_path_factory: pytest.TempPathFactory) -> None:
    """They are not copied for their way out: a push that arrives meanwhile must not reach them."""
    one = shard(in_memory(tmp_path_factory.mktemp("data") / "d"))
    one.hello("a")
    first, last = one.dataset.layout.bounds[:2].tolist()
    reply = one.ask(b"a", pull(first, last))
    assert isinstance(reply, m.Rows)
    before = reply.values.copy()
    assert code(one.ask(b"a", assign(one, 1, 0, 0, 7.0))) == ""
    np.testing.assert_array_equal(reply.values, before)
    assert (one.state.table.values[first:last] == 7).all()


@pytest.mark.parametrize(
    ("operation", "fields", "becomes"),
    [
        ("assign", {"first": 3, "last": 6}, 1.0),
        ("assign", {"rows": [3, 5]}, 1.0),
        ("add", {"first": 3, "last": 6}, None),
        ("add", {"rows": [3, 5]}, None),
    ],
)
def test_a_table_in_pages_takes_any_other_change_too(
    operation: str, fields: dict[str, Any], becomes: float | None
) -> None:
    """In exclusive order none comes; if one did, it must not end in a copy."""
    table = Table("rows", 0, counted(), WIDTH, lambda *_: None, bounds=BOUNDS)
    rows = np.array(fields["rows"]) if "rows" in fields else np.arange(3, 6)
    given_away = table.between(4, 6)
    before = given_away.copy()
    table.apply(push(operation, np.ones((len(rows), WIDTH)), **fields))
    expected = counted()
    expected[rows] = becomes if becomes is not None else expected[rows] + 1
    np.testing.assert_array_equal(table.values, expected)
    np.testing.assert_array_equal(given_away, before)
