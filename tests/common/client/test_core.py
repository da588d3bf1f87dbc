"""What a client sends, when, and what it makes of the replies: in virtual time, against scripted shards."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
from conversation import Conversation, failing
from fake_server import Heard, Script, polite, welcome
from shards import push

from glovewire.common.client.core import HEARTBEAT_AFTER_S, HELLO_AGAIN_S, TICK_S
from glovewire.common.endings import Ending
from glovewire.common.errors import (
    DatasetMismatch,
    DeadlineExceeded,
    GlovewireError,
    NotReady,
    OutOfOrder,
    ProtocolError,
    RunOver,
    UnknownSession,
    UsageError,
    VersionMismatch,
)
from glovewire.common.protocol import messages as m
from glovewire.common.protocol import wire

PULL = m.Pull("rows", 0, 1, 0)
ROWS = m.Rows(1, np.ones((1, 4), np.float32))


def one_row(sequence: int = 1) -> m.Push:
    return push("add", np.ones((1, 4)), 0, 1, sequence=sequence)


def or_polite(answers: Callable[[Heard], m.Message | None]) -> Script:
    """`polite`, unless `answers` has something to say."""
    return lambda heard: answers(heard) or polite(heard)


def joined(answers: Callable[[Heard], m.Message | None] = polite, silence_s: float = 30.0) -> Conversation:
    """A worker that has joined one shard."""
    talk = Conversation([or_polite(answers)], silence_s)
    talk.join()
    return talk


def shard_script(number: int, shards: int = 2, **options: object) -> Script:
    return lambda heard: welcome(number, shards, **options) if isinstance(heard.message, m.Hello) else polite(heard)


# ---- requests and repeats


def test_a_request_is_repeated_until_it_is_answered_and_answered_once() -> None:
    talk = joined(
        lambda heard: m.Applied(1, 1, False) if isinstance(heard.message, m.Push) and heard.before == 2 else None
    )
    began = talk.now
    assert talk.ask(one_row()) == m.Applied(1, 1, False)
    assert [one.before for one in talk.messages(m.Push)] == [0, 1, 2]
    assert len({one.number for one in talk.messages(m.Push)}) == 1
    assert talk.now - began == pytest.approx(0.5 + 1.0, abs=0.1)  # twice as long each time


def test_replies_find_their_requests_in_any_order_and_a_second_one_is_ignored() -> None:
    talk = joined(lambda _: None)
    replies: list[tuple[int, m.Message]] = []
    for n in range(3):
        talk.send(m.GetStatus(), lambda reply, n=n: replies.append((n, reply)))  # type: ignore[misc]
    numbers = [one.number for one in talk.messages(m.GetStatus)]
    status = [m.Status(np.full(1, n, np.uint8)) for n in range(3)]
    for n in (1, 2, 0, 1):
        talk.deliver(numbers[n], status[n])
    talk.until(lambda: len(replies) == 3)
    talk.rest(0.4)
    assert [n for n, _ in replies] == [1, 2, 0]
    assert all(list(reply.body) == [n] for n, reply in replies if isinstance(reply, m.Status))


def test_what_came_out_of_order_is_sent_again_in_its_order() -> None:
    """The first push is lost, the second refused for it: both come again, first things first."""

    def loses(heard: Heard) -> m.Message | None:
        if not isinstance(heard.message, m.Push) or (heard.message.sequence == 1 and not heard.before):
            return None
        if heard.message.sequence == 2 and not heard.before:
            return m.Refused(OutOfOrder.code, "push 2 came before push 1")
        return m.Applied(heard.message.sequence, 1, False)

    talk, applied = joined(loses), []
    for sequence in (1, 2):
        talk.send(one_row(sequence), applied.append)
    talk.until(lambda: len(applied) == 2)
    assert applied == [m.Applied(1, 1, False), m.Applied(2, 1, False)]
    assert [one.message.sequence for one in talk.messages(m.Push)] == [1, 2, 1, 2]  # type: ignore[attr-defined]
    assert talk.core.channels[0].pushes == 4


def test_what_is_refused_again_and_again_is_not_sent_again_at_once() -> None:
    """The one before it was refused for good. Seen to fail: 1,300 messages a second, found by the simulation."""
    talk = joined(lambda heard: m.Refused(OutOfOrder.code, "") if isinstance(heard.message, m.Push) else None)
    talk.send(one_row(2))
    talk.rest(10.0)
    assert 3 < len(talk.messages(m.Push)) < 8


def test_rows_that_come_twice_were_slow_and_not_lost() -> None:
    """The server answers when it has been asked three times, and then answers the others, too."""
    talk = joined(lambda heard: ROWS if isinstance(heard.message, m.Pull) and heard.before >= 2 else None)
    assert talk.ask(PULL) is not None
    assert talk.core.channels[0].round_trip_s == 0.0
    talk.deliver(talk.messages(m.Pull)[0].number, ROWS)
    talk.rest(0.1)
    assert talk.core.channels[0].round_trip_s > 1.0


def test_a_push_that_is_in_is_repeated_as_the_pull_that_came_with_it() -> None:
    """Who waits for others must not send its gradient again and again.

    Where the push was repeated, `Applied` comes twice: rows are still awaited.
    """

    def takes(heard: Heard) -> m.Message | None:
        if isinstance(heard.message, m.Push | m.Pull) and heard.before < 2:
            return m.Applied(1, 0, repeated=bool(heard.before))
        return ROWS if isinstance(heard.message, m.Pull) else None

    talk, replies = joined(takes), []
    both = push("add", np.ones((1, 4)), 0, 1, then_pull=True)
    talk.send(both, replies.append)
    talk.until(lambda: len(replies) == 2)
    assert [type(reply) for reply in replies] == [m.Applied, m.Rows]
    number = talk.messages(m.Push)[0].number
    assert [type(each.message) for each in talk.heard[0] if each.number == number] == [m.Push, m.Pull, m.Pull]
    assert talk.messages(m.Pull)[0].message == both.pull


def test_pushes_wait_while_more_would_be_on_their_way_than_the_server_lets_them() -> None:
    """Two rows have room, then one; and one that is larger than the credit goes alone."""

    def slowly(heard: Heard) -> m.Message | None:
        if isinstance(heard.message, m.Hello):
            return dataclasses.replace(welcome(), credit=40)
        if isinstance(heard.message, m.Push):
            return m.Applied(heard.message.sequence, 1, repeated=False, credit=16) if heard.before else None
        return None

    talk, seen = joined(slowly), []
    (channel,) = talk.core.channels
    for sequence, rows in enumerate((1, 1, 1, 1, 10), 1):
        values = np.ones((rows, 4), np.float32)
        talk.until(lambda nbytes=values.nbytes: talk.core.has_credit(nbytes))  # type: ignore[misc]
        talk.send(push("add", values, 0, rows, sequence=sequence))
        seen.append(channel.in_flight)
    talk.until(lambda: not channel.owes_reply)
    assert seen == [16, 32, 16, 16, 160]
    assert channel.in_flight == 0


def test_what_finds_no_room_is_sent_by_the_next_tick_in_its_order() -> None:
    talk = joined(lambda _: None)
    pushes = [talk.core.send(0, one_row(sequence), print, talk.now) for sequence in (1, 2, 3)]
    for request in pushes[1:]:
        talk.core.note_blocked(0, request, talk.now)
    assert talk.core.deadline <= talk.now + TICK_S
    assert [request for _, request in talk.core.tick(talk.now + TICK_S)] == pushes[1:]


# ---- sessions


def test_a_server_that_does_not_know_us_hears_hello_again_and_what_was_pending() -> None:
    """Both pushes arrive twice, with the same numbers and sequences: the server can tell that they are repeats."""

    def forgets(heard: Heard) -> m.Message | None:
        if not isinstance(heard.message, m.Push):
            return None
        if len(talk.messages(m.Hello)) < 2:
            return m.Refused(UnknownSession.code, "say hello first")
        return m.Applied(heard.message.sequence, 1, False)

    talk, applied = Conversation([or_polite(forgets)]), []
    talk.join()
    began = talk.now
    for sequence in (1, 2):
        talk.send(one_row(sequence), applied.append)
    talk.until(lambda: len(applied) == 2)
    assert talk.now - began < 0.3  # at once, not when they are due
    hellos = talk.messages(m.Hello)
    assert len(hellos) == 2
    assert hellos[0].message == hellos[1].message
    assert [one.message.sequence for one in talk.messages(m.Push) if one.before] == [1, 2]  # type: ignore[attr-defined]


def test_a_worker_whose_session_is_over_is_told_so_at_once() -> None:
    """Its hello is refused: it must not ask for ever."""

    def over(heard: Heard) -> m.Message | None:
        if isinstance(heard.message, m.Hello) and not talk.messages(m.Push):
            return welcome()
        return m.Refused(UnknownSession.code, "the session of 'w' is over")

    talk = Conversation([over])
    talk.join()
    talk.send(one_row())
    assert isinstance(error := failing(talk), UnknownSession)
    assert "is over" in str(error)
    assert talk.now < 1.0


def test_a_server_that_was_started_again_has_forgotten_us() -> None:
    def restarted(heard: Heard) -> m.Message | None:
        if isinstance(heard.message, m.Hello) and talk.messages(m.Push):
            return dataclasses.replace(welcome(), run="another")
        return m.Refused(UnknownSession.code, "who?") if isinstance(heard.message, m.Push) else None

    talk = Conversation([or_polite(restarted)])
    talk.join()
    talk.send(one_row())
    assert isinstance(error := failing(talk), UnknownSession)
    assert "has forgotten this worker" in str(error)


def test_who_leaves_and_is_not_known_any_more_has_to_join_again() -> None:
    """Shard 0 has let it go, shard 1 was started again: the number that shard 0 gave it is no use any more.

    Seen to fail: the hello to shard 1 alone was refused for a wrong order of addresses (simulation, seed 10190).
    """
    talk = shards(
        shard_script(0), lambda heard: shard_script(1)(heard) if isinstance(heard.message, m.Hello) else unknown
    )
    unknown = m.Refused(UnknownSession.code, "say hello first")
    for shard, channel in enumerate(talk.core.channels):
        talk.send(m.Leave(Ending.COMPLETE), channel.end_session, shard)
        talk.deliver(max(channel.pending), unknown if shard else m.Left(), shard)
    error = failing(talk)
    assert isinstance(error, UnknownSession)
    assert "tcp://shard-1:1 has forgotten this worker" in str(error)


def test_a_name_that_is_still_taken_is_asked_for_again() -> None:
    talk = Conversation(
        [lambda heard: polite(heard) if len(talk.messages(m.Hello)) > 3 else m.Refused(NotReady.code, "")]
    )
    talk.join()
    assert 1.5 < talk.now < 2.0
    assert talk.core.not_ready is not None


def test_a_shard_that_was_not_ready_and_is_silent_then_hears_one_hello_again_and_again() -> None:
    """Seen to fail: each half second brought one more hello, and all of them were repeated (simulation, seed 169)."""

    def begins(heard: Heard) -> m.Message | None:
        if heard.number == 1:
            return m.Refused(NotReady.code, "")
        return shard_script(1)(heard) if talk.now > 20.0 else None

    talk = Conversation([shard_script(0), begins])
    talk.join()
    hellos = talk.messages(m.Hello, 1)
    assert len({hello.number for hello in hellos}) == 2
    assert 20.0 < talk.now < 20.0 + 2 * HELLO_AGAIN_S
    assert len(hellos) <= talk.now / HELLO_AGAIN_S + 1


@pytest.mark.parametrize("kind", [DatasetMismatch, VersionMismatch, RunOver])
def test_a_hello_that_is_refused_fails_at_once(kind: type[GlovewireError]) -> None:
    talk = Conversation([lambda _: m.Refused(kind.code, "no")])
    talk.core.join("worker", 0.0)
    assert type(failing(talk)) is kind
    assert talk.now < 0.1


def test_a_query_needs_no_session_and_a_refusal_is_its_answer() -> None:
    talk = Conversation([lambda _: m.Refused(UnknownSession.code, "say hello first")])
    assert isinstance(talk.ask(m.GetStatus()), m.Refused)
    talk.rest(10 * HEARTBEAT_AFTER_S)
    assert len(talk.heard[0]) == 1


def test_something_else_at_the_address_is_said_to_be_something_else() -> None:
    talk = joined()
    talk.send(m.GetStatus())
    talk.core.receive(0, [wire.MAGIC + b"\x63", b""], talk.now)
    assert isinstance(error := failing(talk), ProtocolError)
    assert "tcp://shard-0:1 does not answer in this protocol" in str(error)


# ---- shards


def shards(*scripts: Script) -> Conversation:
    talk = Conversation(scripts)
    talk.join()
    return talk


def test_shards_are_given_once_and_in_order() -> None:
    zero, one = shard_script(0), shard_script(1)
    assert shards(zero, one).core.joined
    for wrong in ([one, zero], [zero], [one], [zero, zero], [zero, one, one]):
        with pytest.raises(UsageError, match=r"every shard's address once, in order; .* is shard"):
            shards(*wrong)


def test_shards_of_different_trainings_are_refused() -> None:
    with pytest.raises(UsageError, match="different training options"):
        shards(shard_script(0), shard_script(1, dim=8))


def test_shards_of_two_generations_are_greeted_until_they_are_in_one() -> None:
    def lags(heard: Heard) -> m.Message | None:
        run = "earlier" if heard.number < 3 else "run"
        return dataclasses.replace(welcome(1, 2), run=run) if isinstance(heard.message, m.Hello) else polite(heard)

    talk = shards(shard_script(0), lags)
    assert len(talk.messages(m.Hello, 1)) == 3
    assert 1.0 < talk.now < 1.5


def test_a_run_that_is_over_for_one_shard_only_goes_on_once_that_one_has_noticed() -> None:
    """It is in an earlier generation. Seen to fail: the worker ended as if the run were complete (seed 1822)."""

    def behind(heard: Heard) -> m.Message | None:
        return m.Refused(RunOver.code, "", Ending.COMPLETE) if heard.number < 3 else shard_script(1)(heard)

    talk = shards(shard_script(0), behind)
    assert 1.0 < talk.now < 1.5


def test_a_client_that_has_joined_does_not_say_hello_again() -> None:
    """A hello that shard 0 did not answer would tell it, once the run is over, that this worker still waits to join.

    Seen to fail: shard 0 let the worker go, and the others waited for it (simulation, seed 1385).
    """
    talk = shards(
        lambda heard: shard_script(0)(heard) if heard.number == 1 else None,
        lambda heard: shard_script(1)(heard) if heard.number > 1 else m.Refused(NotReady.code, ""),
    )
    hellos = len(talk.messages(m.Hello))
    assert hellos == 2
    talk.rest(5.0)
    assert len(talk.messages(m.Hello)) == hellos


@pytest.mark.parametrize("is_welcome", [False, True])
def test_who_leaves_before_all_shards_have_welcomed_it_says_hello_no_more(*, is_welcome: bool) -> None:
    """Seen to fail: a worker that was interrupted joined again after its goodbye (simulation, seed 91)."""
    talk = Conversation([shard_script(0), lambda _: m.Refused(NotReady.code, "")])
    talk.core.join("worker", talk.now)
    if is_welcome:
        talk.until(lambda: talk.core.not_ready is not None)
    talk.core.stop_joining()
    talk.rest(5.0)
    assert talk.core.channels[0].welcome.worker >= 0
    assert [each.number for each in talk.messages(m.Hello, 0)] == [1]
    assert {each.number for each in talk.messages(m.Hello, 1)} == ({1} if is_welcome else set())


def test_the_other_shards_are_told_the_number_that_the_first_has_given() -> None:
    first = dataclasses.replace(welcome(0, 2), worker=5, token=77)
    talk = shards(lambda _: first, shard_script(1))
    (hello,) = (one.message for one in talk.messages(m.Hello, 1))
    assert isinstance(hello, m.Hello)
    assert (hello.worker, hello.token) == (5, 77)


# ---- silence


def test_a_server_that_parks_a_request_hears_that_we_live() -> None:
    talk = joined(
        lambda heard: (
            m.Done(Ending.COMPLETE) if isinstance(heard.message, m.Lease) and talk.messages(m.Heartbeat)[1:] else None
        ),
        silence_s=5.0,
    )
    assert talk.ask(m.Lease(1)) == m.Done(Ending.COMPLETE)


def test_who_waits_for_one_server_stays_alive_for_the_others() -> None:
    talk = shards(shard_script(0), shard_script(1))
    talk.send(m.GetStatus(), shard=1)
    talk.rest(3.5 * HEARTBEAT_AFTER_S)
    assert len(talk.messages(m.Heartbeat, 0)) == 3


@pytest.mark.parametrize("is_over", [False, True])
def test_who_still_waits_for_a_shard_when_the_run_is_over_says_hello_again_to_the_others(*, is_over: bool) -> None:
    """Seen to fail: they waited for it, and the shard that it waited for waited for them (simulation, seed 9952)."""

    def first(heard: Heard) -> m.Message | None:
        return m.HeartbeatAck(is_over) if isinstance(heard.message, m.Heartbeat) else shard_script(0)(heard)

    talk = Conversation([first, lambda _: None])
    talk.core.join("worker", talk.now)
    talk.rest(2.5 * HEARTBEAT_AFTER_S)
    assert (len(talk.messages(m.Hello, 0)) > 1) is is_over


def test_a_heartbeat_without_a_reply_is_sent_again_each_second() -> None:
    """Seen to fail: at doubling intervals, so that a shard lost a worker that its replies did not reach."""
    talk = joined()
    talk.scripts = [lambda _: None]
    talk.rest(9.5 * HEARTBEAT_AFTER_S)
    assert len(talk.messages(m.Heartbeat)) >= 9


@pytest.mark.parametrize("is_over", [False, True])
def test_who_joins_a_shard_anew_when_the_run_is_over_says_hello_to_the_others(*, is_over: bool) -> None:
    """Seen to fail: shard 1 waited 10 s for a worker that shard 0, which had lost it, let wait for shard 1's rows."""
    lost: list[Heard] = []

    def first(heard: Heard) -> m.Message | None:
        if isinstance(heard.message, m.Lease):
            lost.append(heard)
            return m.Refused(UnknownSession.code, "")
        return None if lost else shard_script(0)(heard)

    def second(heard: Heard) -> m.Message | None:
        return m.HeartbeatAck(is_over) if isinstance(heard.message, m.Heartbeat) else shard_script(1)(heard)

    talk = shards(first, second)
    talk.send(m.Lease(1))
    talk.rest(2.5 * HEARTBEAT_AFTER_S)
    assert len(talk.messages(m.Hello, 0)) > 1
    assert (len(talk.messages(m.Hello, 1)) > 1) is is_over


def test_a_server_that_falls_silent_is_named_and_silence_counts_only_while_a_reply_is_owed() -> None:
    talk = joined(silence_s=3.0)
    talk.rest(60.0)
    talk.scripts = [lambda _: None]
    began = talk.now
    talk.send(m.GetStatus())
    with pytest.raises(DeadlineExceeded, match="tcp://shard-0:1 has not answered for 3 s"):
        talk.until(lambda: False)
    assert talk.now - began == pytest.approx(3.0, abs=0.1)


def test_time_in_which_we_were_stopped_is_no_silence_of_the_servers() -> None:
    talk = joined(lambda heard: None if heard.before < 1 else m.Status(np.ones(1, np.uint8)), silence_s=3.0)
    talk.send(m.GetStatus())
    talk.now += 100.0
    talk.core.note_stall(100.0, talk.now)
    assert isinstance(talk.ask(m.GetStatus()), m.Status)


def test_a_goodbye_drops_what_is_pending() -> None:
    talk = joined(lambda heard: m.Applied(1, 1, False) if isinstance(heard.message, m.Push) else None)
    talk.ask(one_row())
    talk.send(m.Lease(1))
    (channel,) = talk.core.channels
    assert channel.pushes == 1
    talk.send(m.Leave(Ending.LEFT, "", channel.pushes), channel.end_session)
    talk.deliver(max(channel.pending), m.Left())
    talk.until(lambda: not channel.pending)
    talk.rest(10 * HEARTBEAT_AFTER_S)
    assert not talk.messages(m.Heartbeat)
