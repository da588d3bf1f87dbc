"""What goes out when: rows speak for the push that asked for them, and what cannot wait does not."""

from __future__ import annotations

import numpy as np
import pytest
from shards import applied, push

from common import messages as m
from server.replies import Outgoing, Replies

PEER, OTHER = b"w0", b"w1"
ROWS = m.Rows(1, np.zeros((1, 4), np.float32))
FINISHING = m.Refused("finishing", "complete")
IN = applied(1, 1)
ASKS = push("add", np.ones((1, 4)), 0, 1, then_pull=True)


def held(reply: m.Message = IN, request: m.Message = ASKS) -> Replies:
    """Replies after one to the push of PEER, under number 7."""
    replies = Replies()
    replies.answer(request, Outgoing(PEER, 7, reply))
    return replies


def kinds(replies: Replies) -> list[type[m.Message]]:
    return [type(each.message) for each in replies.take()]


def test_rows_that_come_soon_are_the_only_answer() -> None:
    replies = held()
    assert kinds(replies) == []
    replies.send(Outgoing(PEER, 7, ROWS))
    replies.let_go()
    assert kinds(replies) == [m.Rows]


def test_who_would_wait_longer_is_told_once_that_the_push_is_in() -> None:
    replies = held()
    replies.let_go()
    assert kinds(replies) == [m.Applied]
    replies.let_go()
    replies.send(Outgoing(PEER, 7, ROWS))
    assert kinds(replies) == [m.Rows]


def test_what_refuses_the_rows_comes_behind_the_word_that_the_push_is_in() -> None:
    """A client takes the first answer for what became of its push."""
    replies = held()
    replies.send(Outgoing(PEER, 7, FINISHING))
    assert kinds(replies) == [m.Applied, m.Refused]


@pytest.mark.parametrize(("peer", "number"), [(OTHER, 7), (PEER, 8)])
def test_rows_for_another_request_say_nothing_of_this_one(peer: bytes, number: int) -> None:
    replies = held()
    replies.send(Outgoing(peer, number, ROWS))
    assert kinds(replies) == [m.Rows]
    replies.let_go()
    assert kinds(replies) == [m.Applied]


def test_what_no_rows_can_say_does_not_wait() -> None:
    """That a gradient came too late, that it is refused, and that a push is in which asked for no rows."""
    late, plain = applied(1, 1, late=True), push("add", np.ones((1, 4)), 0, 1)
    for reply, request in ((late, ASKS), (FINISHING, ASKS), (IN, plain)):
        assert kinds(held(reply, request)) == [type(reply)]
