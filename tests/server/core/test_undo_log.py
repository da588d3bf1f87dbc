"""Before-images: rows read as they were in any round that is incomplete, in whichever pieces they were pushed."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shards import pull, push
from strategies import quick

from glovewire.common.errors import NotReady
from glovewire.server.core.undo_log import UndoLog

ROWS, FIRST, ROUNDS = 7, 20, 4
SOME = st.sets(st.integers(0, ROWS - 1)).map(sorted)
PIECES = st.lists(st.tuples(st.integers(0, ROWS - 1), st.integers(1, ROWS), st.none() | SOME), max_size=5)


@quick(200)
@given(st.lists(PIECES, min_size=ROUNDS, max_size=ROUNDS), st.integers(0, ROUNDS), st.none() | SOME)
def test_rows_are_read_as_they_were_whatever_was_pushed_since(
    pushes: list[list[tuple[int, int, list[int] | None]]], dropped: int, wanted: list[int] | None
) -> None:
    """Workers that are lost push some rows of a visit; the next one pushes them again, in other pieces."""
    log, values, draw = UndoLog(), np.zeros((ROWS, 2), np.float32), np.random.default_rng(3)
    at_start = []
    for round, pieces in enumerate(pushes):
        at_start.append(values.copy())
        for first, size, some in [(0, ROWS, []), *pieces]:
            span = range(first, min(first + size, ROWS))
            rows = list(span) if some is None else [row for row in some if row in span]
            numbers = None if some is None else [FIRST + row for row in rows]
            low, high = FIRST + span.start, FIRST + span.stop
            message = push("assign", draw.normal(size=(len(rows), 2)), low, high, version=round, rows=numbers)
            log.keep(0, message, values[rows])
            values[rows] = message.values
    log.drop_before(dropped)
    request = pull(FIRST, FIRST + ROWS, rows=None if wanted is None else [FIRST + row for row in wanted])
    read = slice(None) if wanted is None else wanted
    for round in range(dropped, ROUNDS):
        found = log.restore(request, 0, list(range(round, ROUNDS)), values[read].copy())
        np.testing.assert_array_equal(found, at_start[round][read])


def test_a_round_keeps_each_row_once() -> None:
    """Otherwise workers that push and leave, again and again, each in other pieces, would fill the memory."""
    log = UndoLog()
    for cut in range(1, ROWS):
        for first, last in ((0, cut), (cut, ROWS)):
            log.keep(0, push("assign", np.ones((last - first, 2)), first, last, version=0), np.ones((last - first, 2)))
    assert sum(len(image.values) for image in log._kept[0][0]) == ROWS
    assert len(log) == 1


def test_what_is_not_kept_cannot_be_undone() -> None:
    """The last of the rounds may not have changed a row yet; an earlier one has."""
    log, now = UndoLog(), np.ones((3, 2), np.float32)
    assert (log.restore(pull(0, 3), 0, [5], now) == 1).all()
    with pytest.raises(NotReady, match=r"rows 0\.\.3 are past version"):
        log.restore(pull(0, 3), 0, [4, 5], now)
    with pytest.raises(NotReady, match=r"are past version"):
        log.restore(pull(0, 3), 0, itertools.count(-(1 << 63)), now)  # seen to fail: all were listed first
