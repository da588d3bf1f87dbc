"""What a worker sends again, and what it takes for an end: order is kept, and a session that is over is left."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from fake_server import Heard, fake_server, polite, until, welcome
from shards import push

from common import messages as m
from common.errors import OutOfOrder, UnknownSession
from worker import client as clients
from worker import link as links
from worker.client import Conversation


@pytest.fixture(autouse=True)
def _short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "RESEND_FIRST_S", 0.1)
    monkeypatch.setattr(clients, "ANY_DELAY_MS", 10)


def one_row(sequence: int = 1) -> m.Push:
    return push("add", np.ones((1, 4)), 0, 1, sequence=sequence)


def test_a_worker_whose_session_is_over_is_told_so_at_once() -> None:
    """Its hello is refused: it must not ask for ever."""

    def over(heard: Heard) -> m.Message | None:
        if isinstance(heard.message, m.Hello) and not server.messages(m.Push):
            return welcome()
        return m.Refused(UnknownSession.code, "the session of 'w' is over")

    with fake_server() as server, Conversation([server.address], "w", "data", silence_s=5) as client:
        server.script = over
        client.connect()
        client.send(0, one_row(), lambda reply: None)
        with pytest.raises(UnknownSession, match="is over"):
            client.flush()


def test_what_came_out_of_order_is_sent_again_in_its_order() -> None:
    """The first push is lost, the second refused for it: both come again, first things first."""

    def loses(heard: Heard) -> m.Message | None:
        if not isinstance(heard.message, m.Push) or (heard.message.sequence == 1 and not heard.before):
            return None
        if heard.message.sequence == 2 and not heard.before:
            return m.Refused(OutOfOrder.code, "push 2 came before push 1")
        return m.Applied(heard.message.sequence, 1, False)

    with fake_server() as server, Conversation([server.address], "w", "data", silence_s=10) as client:
        server.script = lambda heard: loses(heard) or polite(heard)
        client.connect()
        applied: list[m.Message] = []
        for sequence in (1, 2):
            client.send(0, one_row(sequence), applied.append)
        client.flush()
        assert applied == [m.Applied(1, 1, False), m.Applied(2, 1, False)]
        assert [one.message.sequence for one in server.messages(m.Push)][:4] == [1, 2, 1, 2]  # type: ignore[attr-defined]
        assert client.links[0].pushes == len(server.messages(m.Push))


def test_rows_are_not_asked_for_again_while_they_may_be_on_their_way() -> None:
    rows = links.Pending(m.Pull("rows", 0, 1, 0, 0), [b""], print, sent=10.0, times=1)
    assert rows.due(10.2, usual_s=0.0)
    assert not rows.due(11.9, usual_s=1.0)
    assert rows.due(12.1, usual_s=1.0)
    assert rows.due(10.1 + links.RESEND_MOST_S, usual_s=1000.0)
    assert links.Pending(m.Beat(), [b""], print, sent=10.0, times=1).due(10.2, usual_s=1.0)


def test_a_link_learns_how_long_rows_take_and_forgets_it() -> None:
    def late(heard: Heard) -> m.Message | None:
        if not isinstance(heard.message, m.Pull):
            return polite(heard)
        return m.Rows(0, np.ones((1, 4), np.float32)) if heard.message.first or heard.before == 2 else None

    with fake_server(late) as server, Conversation([server.address], "w", "data") as client:
        client.connect()
        client.send(0, m.Pull("rows", 0, 1, 0, 0), lambda reply: None)
        client.flush()
        slow = client.links[0].usual_s
        assert slow > 2 * links.RESEND_FIRST_S
        for _ in range(9):
            client.send(0, m.Pull("rows", 1, 2, 0, 0), lambda reply: None)
            client.flush()
        assert client.links[0].usual_s < slow


def test_who_waits_for_one_server_stays_alive_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "BEAT_AFTER_S", 0.05)

    def shard(number: int) -> Callable[[Heard], m.Message | None]:
        return lambda heard: welcome(number, 2) if isinstance(heard.message, m.Hello) else polite(heard)

    with (
        fake_server(shard(0)) as idle,
        fake_server(shard(1)) as stopped,
        Conversation([idle.address, stopped.address], "w") as client,
    ):
        client.connect()
        client.send(1, m.Stats(), lambda reply: None)
        until(lambda: client.poll(10) is None and bool(idle.messages(m.Beat)))


def test_a_push_that_is_in_is_repeated_as_the_pull_that_came_with_it() -> None:
    """Who waits for others must not send its gradient again and again. A goodbye does not wait for the rows."""
    rows = m.Rows(1, np.ones((1, 4), np.float32))

    def takes(heard: Heard) -> m.Message | None:
        if isinstance(heard.message, m.Push):
            return m.Applied(1, 0, False)
        return rows if isinstance(heard.message, m.Pull) and heard.before == 2 else polite(heard)

    both = push("add", np.ones((1, 4)), 0, 1, then_pull=True)
    with fake_server(takes) as server, Conversation([server.address], "w", "data", silence_s=10) as client:
        client.connect()
        replies: list[m.Message] = []
        client.send(0, both, replies.append)
        client.flush()
        assert [type(reply) for reply in replies] == [m.Applied, m.Rows]
        assert [type(each.message) for each in server.heard if each.number == server.messages(m.Push)[0].number] == [
            m.Push, m.Pull, m.Pull,
        ]  # fmt: skip
        assert server.messages(m.Pull)[0].message == both.pull
