"""What a worker sends again, and what it takes for an end: order is kept, and a session that is over is left."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from fake_server import Heard, fake_server, polite, welcome
from processes import until
from shards import push

from glovewire.common.endings import Ending, RunEnd
from glovewire.common.errors import OutOfOrder, UnknownSession
from glovewire.common.protocol import messages as m
from glovewire.common.protocol import wire
from glovewire.common.transport import channel as channel_module
from glovewire.common.transport import client as client_module
from glovewire.common.transport import sockets
from glovewire.common.transport.channel import DECAY, MAX_AMBIGUOUS, RESEND_MAX_S, UNSENT, Channel, PendingRequest
from glovewire.common.transport.client import RequestClient
from glovewire.common.transport.sockets import Context


@pytest.fixture(autouse=True)
def _short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "RESEND_FIRST_S", 0.1)
    monkeypatch.setattr(client_module, "POLL_MS", 10)


def one_row(sequence: int = 1) -> m.Push:
    return push("add", np.ones((1, 4)), 0, 1, sequence=sequence)


def test_a_worker_whose_session_is_over_is_told_so_at_once() -> None:
    """Its hello is refused: it must not ask for ever."""

    def over(heard: Heard) -> m.Message | None:
        if isinstance(heard.message, m.Hello) and not server.messages(m.Push):
            return welcome()
        return m.Refused(UnknownSession.code, "the session of 'w' is over")

    with fake_server() as server, RequestClient([server.address], "w", "data", silence_s=5) as client:
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

    with fake_server() as server, RequestClient([server.address], "w", "data", silence_s=10) as client:
        server.script = lambda heard: loses(heard) or polite(heard)
        client.connect()
        applied: list[m.Message] = []
        for sequence in (1, 2):
            client.send(0, one_row(sequence), applied.append)
        client.flush()
        assert applied == [m.Applied(1, 1, False), m.Applied(2, 1, False)]
        assert [one.message.sequence for one in server.messages(m.Push)][:4] == [1, 2, 1, 2]  # type: ignore[attr-defined]
        assert client.channels[0].pushes == len(server.messages(m.Push))


def test_rows_are_not_asked_for_again_while_they_may_be_on_their_way() -> None:
    rows = PendingRequest(m.Pull("rows", 0, 1, 0), [b""], print, sent=10.0, times=1)
    assert rows.is_due(10.2, round_trip_s=0.0)
    assert not rows.is_due(11.9, round_trip_s=1.0)
    assert rows.is_due(12.1, round_trip_s=1.0)
    assert rows.is_due(10.1 + RESEND_MAX_S, round_trip_s=1000.0)
    assert PendingRequest(m.Heartbeat(), [b""], print, sent=10.0, times=1).is_due(10.2, round_trip_s=1.0)


def test_a_request_may_wait_for_hours() -> None:
    """Seen to fail: after 1,024 retransmissions, an hour and a half, the time to the next one was infinite."""
    assert not PendingRequest(m.Lease(1), [b""], print, sent=10.0, times=5000).is_due(14.0, round_trip_s=0.0)
    assert PendingRequest(m.Lease(1), [b""], print, sent=10.0, times=5000).is_due(15.1, round_trip_s=0.0)


@pytest.fixture
def channel() -> Iterator[Channel]:
    with Context() as context:
        yield Channel(context, "tcp://127.0.0.1:9")


def complete(channel: Channel, *, after_s: float, times: int = 1) -> int:
    """Ask for rows `times` times, and get them so long after the first time."""
    channel.send(m.Pull("rows", 0, 1, 0), print)
    (number,) = channel.pending
    channel.pending[number].times, asked = times, channel.pending[number].first
    channel.complete(number, m.Rows(0, np.ones((1, 4), np.float32)), asked + after_s)
    return number


def test_a_channel_learns_the_round_trip_of_pulls_and_forgets_it(channel: Channel) -> None:
    complete(channel, after_s=3.0)
    assert channel.round_trip_s == pytest.approx(3.0)
    complete(channel, after_s=0.1)
    assert channel.round_trip_s == pytest.approx(DECAY * 3.0)


def test_a_loss_does_not_count_as_slowness_and_a_second_reply_shows_that_nothing_was_lost(channel: Channel) -> None:
    """Or else each loss would make the wait for the next one longer."""
    first, second = (complete(channel, after_s=took_s, times=3) for took_s in (2.0, 4.0))
    assert channel.round_trip_s == 0.0
    for number, round_trip_s in ((first, 2.0), (second, 4.0), (first, 4.0)):
        channel.note_duplicate(number)
        assert channel.round_trip_s == pytest.approx(round_trip_s)
    numbers = [complete(channel, after_s=6.0 + n, times=2) for n in range(MAX_AMBIGUOUS + 1)]
    channel.note_duplicate(numbers[0])  # the oldest is forgotten
    assert channel.round_trip_s == pytest.approx(4.0)
    channel.note_duplicate(numbers[1])
    assert channel.round_trip_s == pytest.approx(7.0)


def test_what_finds_no_room_in_the_queue_waits_in_its_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No server listens yet; once one does, every push arrives, the first of each in the order of the numbers."""
    monkeypatch.setattr(sockets, "QUEUE_MESSAGES", 3)
    monkeypatch.setattr(channel_module, "RESEND_FIRST_S", 60.0)
    with Context() as context:
        channel = Channel(context, f"ipc://{tmp_path}/s")
        for sequence in range(1, 7):
            channel.send(one_row(sequence), print)
        assert [pending.sent != UNSENT for pending in channel.pending.values()] == [True] * 3 + [False] * 3
        assert channel.pushes == 3
        router, _ = context.router(channel.address)
        heard: list[int] = []

        def come() -> bool:
            channel.resend(time.monotonic())
            while sockets.has_message(router):
                request = wire.decode(sockets.receive(router)[2:])
                heard.append(request.message.sequence)  # type: ignore[attr-defined]
            return len(heard) >= 6

        until(come, "all six")
        assert heard == [1, 2, 3, 4, 5, 6]
        assert channel.pushes == 6


def test_the_client_tells_the_channel_of_rows_that_come_twice() -> None:
    """The server is slow: it answers the first question when it has been asked three times, and then the others."""

    def slow(heard: Heard) -> m.Message | None:
        if not isinstance(heard.message, m.Pull):
            return polite(heard)
        return m.Rows(0, np.ones((1, 4), np.float32)) if heard.before >= 2 else None

    with fake_server(slow) as server, RequestClient([server.address], "w", "data") as client:
        client.connect()
        client.ask(0, m.Pull("rows", 0, 1, 0))
        (channel,) = client.channels
        assert channel.round_trip_s == 0.0
        again = [b"", *wire.encode(server.messages(m.Pull)[0].number, m.Pull("rows", 0, 1, 0))]
        sockets.send(channel.socket, again)
        until(
            lambda: client.poll(10) is None and channel.round_trip_s > 2 * channel_module.RESEND_FIRST_S,
            "the round trip is known",
        )


def test_who_has_said_goodbye_waits_for_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first server is gone when the second one answers; a sign of life to it stays without an answer."""
    monkeypatch.setattr(client_module, "HEARTBEAT_AFTER_S", 0.05)

    def shard(number: int) -> Callable[[Heard], m.Message | None]:
        def script(heard: Heard) -> m.Message | None:
            if isinstance(heard.message, m.Leave):
                return m.Left() if number == 0 or heard.before == 2 else None
            return welcome(number, 2) if isinstance(heard.message, m.Hello) else None

        return script

    with (
        fake_server(shard(0)) as gone,
        fake_server(shard(1)) as slow,
        RequestClient([gone.address, slow.address], "w") as client,
    ):
        client.connect()
        client.part(RunEnd(Ending.LEFT))
        assert len(slow.messages(m.Leave)) >= 3
        assert not any(channel.pending for channel in client.channels)


def test_who_waits_for_one_server_stays_alive_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "HEARTBEAT_AFTER_S", 0.05)

    def shard(number: int) -> Callable[[Heard], m.Message | None]:
        return lambda heard: welcome(number, 2) if isinstance(heard.message, m.Hello) else polite(heard)

    with (
        fake_server(shard(0)) as idle,
        fake_server(shard(1)) as stopped,
        RequestClient([idle.address, stopped.address], "w") as client,
    ):
        client.connect()
        client.send(1, m.GetStatus(), lambda reply: None)
        until(lambda: client.poll(10) is None and bool(idle.messages(m.Heartbeat)), "a sign of life")


def test_a_push_that_is_in_is_repeated_as_the_pull_that_came_with_it() -> None:
    """Who waits for others must not send its gradient again and again. A goodbye does not wait for the rows.

    Where the push was repeated, `Applied` comes twice: rows are still awaited.
    """
    rows = m.Rows(1, np.ones((1, 4), np.float32))

    def takes(heard: Heard) -> m.Message | None:
        if isinstance(heard.message, m.Push | m.Pull) and heard.before < 2:
            return m.Applied(1, 0, repeated=bool(heard.before))
        return rows if isinstance(heard.message, m.Pull) else polite(heard)

    both = push("add", np.ones((1, 4)), 0, 1, then_pull=True)
    with fake_server(takes) as server, RequestClient([server.address], "w", "data", silence_s=10) as client:
        client.connect()
        replies: list[m.Message] = []
        client.send(0, both, replies.append)
        until(lambda: client.poll(10) is None and len(replies) == 2, "the rows are here")
        assert [type(reply) for reply in replies] == [m.Applied, m.Rows]
        assert [type(each.message) for each in server.heard if each.number == server.messages(m.Push)[0].number] == [
            m.Push, m.Pull, m.Pull,
        ]  # fmt: skip
        assert server.messages(m.Pull)[0].message == both.pull


def test_pushes_wait_at_home_while_more_would_be_on_their_way_than_the_server_lets_them() -> None:
    """Two rows have room, then one; and one that is larger than the credit goes alone."""

    def slowly(heard: Heard) -> m.Message | None:
        if isinstance(heard.message, m.Hello):
            return dataclasses.replace(welcome(), credit=40)
        if isinstance(heard.message, m.Push):
            return m.Applied(heard.message.sequence, 1, repeated=False, credit=16) if heard.before else None
        return polite(heard)

    with fake_server(slowly) as server, RequestClient([server.address], "w", "data", silence_s=10) as client:
        client.connect()
        seen = []
        for sequence, rows in enumerate((1, 1, 1, 1, 10), 1):
            values = np.ones((rows, 4), np.float32)
            client.wait_for_credit(values.nbytes)
            client.send(0, push("add", values, 0, rows, sequence=sequence), lambda reply: None)
            seen.append(client.channels[0].in_flight)
        client.flush()
        assert seen == [16, 32, 16, 16, 160]
        assert client.channels[0].in_flight == 0
