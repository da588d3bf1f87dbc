"""What goes out when: rows speak for the push that asked for them, and what cannot wait does not."""

from __future__ import annotations

import numpy as np
import pytest
from shards import applied

from glovewire.common.protocol import messages as m
from glovewire.server.core.waiting import Outgoing, Replies

PEER, OTHER = b"w0", b"w1"
ROWS = m.Rows(1, np.zeros((1, 4), np.float32))
FINISHING = m.Refused("finishing", "complete")
IN = applied(1, 1)


def held() -> Replies:
    """Replies after the push of PEER, under number 7, whose rows are still to come."""
    replies = Replies()
    replies.hold(Outgoing(PEER, 7, IN))
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
