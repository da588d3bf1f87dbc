"""When a request is sent again, and what a channel learns about its server's speed."""

from __future__ import annotations

import numpy as np
import pytest

from glovewire.common.client.channel import DECAY, MAX_AMBIGUOUS, RESEND_MAX_S, UNSENT, Channel, Request
from glovewire.common.protocol import messages as m


def sent_at_10(message: m.Message, times: int = 1) -> Request:
    return Request(message, [b""], print, sent=10.0, times=times)


def test_rows_are_not_asked_for_again_while_they_may_be_on_their_way() -> None:
    rows = sent_at_10(m.Pull("rows", 0, 1, 0))
    assert rows.due_at(round_trip_s=0.0) == 10.5
    assert rows.due_at(round_trip_s=1.0) == 12.0
    assert rows.due_at(round_trip_s=1000.0) == 10.0 + RESEND_MAX_S
    assert sent_at_10(m.Heartbeat()).due_at(round_trip_s=1.0) == 10.5


def test_a_request_may_wait_for_hours() -> None:
    """Seen to fail: after 1,024 retransmissions, an hour and a half, the time to the next one was infinite."""
    assert sent_at_10(m.Lease(1), times=5000).due_at(round_trip_s=0.0) == 15.0


@pytest.fixture
def channel() -> Channel:
    return Channel("tcp://127.0.0.1:9", 0.0)


def complete(channel: Channel, *, after_s: float, times: int = 1) -> int:
    """Ask for rows `times` times, and get them so long after the first time."""
    request = channel.send(m.Pull("rows", 0, 1, 0), print, 100.0)
    (number,) = channel.pending
    request.times = times
    channel.complete(number, m.Rows(0, np.ones((1, 4), np.float32)), 100.0 + after_s)
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


def test_what_finds_no_room_waits_and_nothing_overtakes_it(channel: Channel) -> None:
    pushes = [channel.send(m.Push("rows", n, "add", 0, 0, 0, 0, 0.0, np.ones((0, 4))), print, 1.0) for n in (1, 2)]
    assert channel.pushes == 2
    channel.note_blocked(pushes[1])
    assert channel.pushes == 1
    assert channel.send(m.Heartbeat(), print, 1.1).sent == UNSENT
    assert [type(request.message) for request in channel.due(1.1)] == [m.Push, m.Heartbeat]
    assert channel.pushes == 2
    assert list(channel.due(1.2)) == []
