"""The client against a scripted server: repeats, hello again, deadlines that name the address, refusals as errors."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import closing

import numpy as np
import pytest
from fake_server import FakeServer, Heard, fake_server, polite, welcome
from processes import until
from shards import push

from glovewire.common.endings import Ending, RunEnd
from glovewire.common.errors import (
    BadRequest,
    DatasetMismatch,
    DeadlineExceeded,
    GlovewireError,
    ProtocolError,
    RunOver,
    UnknownSession,
    UsageError,
    VersionMismatch,
)
from glovewire.common.protocol import messages as m
from glovewire.common.protocol import wire
from glovewire.common.transport import channel as channel_module
from glovewire.common.transport import client as client_module
from glovewire.common.transport.client import QueryClient, RequestClient, expect


@pytest.fixture(autouse=True)
def _short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "RESEND_FIRST_S", 0.1)
    monkeypatch.setattr(channel_module, "RESEND_BIG_S", 0.1)
    monkeypatch.setattr(client_module, "HEARTBEAT_AFTER_S", 0.05)
    monkeypatch.setattr(client_module, "POLL_MS", 10)


def one_row(sequence: int = 1) -> m.Push:
    return push("add", np.ones((1, 4)), 0, 1, sequence=sequence)


def unused_address() -> str:
    """An address where no server listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{free.getsockname()[1]}"


def with_replies(answers: Callable[[Heard], m.Message | None]) -> Callable[[Heard], m.Message | None]:
    """`polite`, unless `answers` has something to say."""
    return lambda heard: answers(heard) or polite(heard)


# ---- requests and repeats


def test_a_request_is_repeated_until_it_is_answered_and_answered_once() -> None:
    def third_time(heard: Heard) -> m.Message | None:
        return m.Applied(1, 1, False) if isinstance(heard.message, m.Push) and heard.before == 2 else None

    with fake_server(with_replies(third_time)) as server, RequestClient([server.address], "w", silence_s=10) as client:
        client.connect()
        assert client.ask(0, one_row()) == m.Applied(1, 1, False)
        pushes = server.messages(m.Push)
        assert [one.before for one in pushes] == [0, 1, 2]
        assert len({one.number for one in pushes}) == 1


def test_replies_find_their_requests_in_any_order() -> None:
    def backwards(heard: Heard) -> m.Message | None:
        if not isinstance(heard.message, m.GetStatus):
            return polite(heard)
        first = server.messages(m.GetStatus)[0].number
        number = np.frombuffer(str(heard.number).encode(), np.uint8)
        return None if heard.number == first and heard.before == 0 else m.Status(number)

    with fake_server() as server, RequestClient([server.address], "w") as client:
        server.script = backwards
        replies: list[tuple[int, bytes]] = []
        for n in range(3):
            client.send(0, m.GetStatus(), lambda reply, n=n: replies.append((n, bytes(reply.body))))  # type: ignore[attr-defined,misc]
        client.flush()
        assert [n for n, _ in replies] == [1, 2, 0]
        assert [text for _, text in sorted(replies)] == [
            str(one).encode() for one in sorted({h.number for h in server.heard})
        ]


def test_a_second_answer_to_a_request_is_ignored() -> None:
    with fake_server(lambda heard: m.HeartbeatAck(False)) as server, RequestClient([server.address], "w") as client:
        answers: list[m.Message] = []
        client.send(0, m.Heartbeat(), answers.append)
        until(lambda: len(server.heard) == 1, "it has arrived")
        client.channels[0].resend(now=float("inf"))
        client.flush()
        assert isinstance(client.ask(0, m.Heartbeat()), m.HeartbeatAck)
        assert len(answers) == 1


def test_a_server_that_parks_a_request_hears_that_we_live() -> None:
    def park(heard: Heard) -> m.Message | None:
        if isinstance(heard.message, m.Lease) and len(server.messages(m.Heartbeat)) >= 2:
            return m.Done(Ending.COMPLETE)
        return None

    with fake_server() as server, RequestClient([server.address], "w", silence_s=5) as client:
        server.script = with_replies(park)
        client.connect()
        assert client.ask(0, m.Lease(1)) == m.Done(Ending.COMPLETE)


# ---- sessions


def test_a_server_that_does_not_know_us_hears_hello_again_and_what_was_pending() -> None:
    """Both pushes arrive twice, with the same numbers and sequences: the server can tell that they are repeats."""

    def forgets(heard: Heard) -> m.Message | None:
        if not isinstance(heard.message, m.Push):
            return None
        if len(server.messages(m.Hello)) < 2:
            return m.Refused(UnknownSession.code, "say hello first")
        return m.Applied(heard.message.sequence, 1, False)

    with fake_server() as server, RequestClient([server.address], "w", "data", silence_s=10) as client:
        server.script = with_replies(forgets)
        client.connect()
        applied: list[m.Message] = []
        for sequence in (1, 2):
            client.send(0, one_row(sequence), applied.append)
        client.flush()
        assert applied == [m.Applied(1, 1, False), m.Applied(2, 1, False)]
        hellos = server.messages(m.Hello)
        assert len(hellos) == 2
        assert hellos[0].message == hellos[1].message
        again = [one for one in server.messages(m.Push) if one.before]
        assert [one.message.sequence for one in again][:2] == [1, 2]  # type: ignore[attr-defined]


def test_processes_of_one_name_differ_in_their_incarnation() -> None:
    with fake_server() as server:
        for _ in range(2):
            with RequestClient([server.address], "w") as client:
                client.connect()
        hellos = [heard.message for heard in server.messages(m.Hello)]
        assert len({hello.incarnation for hello in hellos if isinstance(hello, m.Hello)}) == 2


# ---- deadlines


def test_a_server_that_is_not_there_is_named_at_the_deadline() -> None:
    address = unused_address()
    with RequestClient([address], "w") as client:
        began = time.monotonic()
        with pytest.raises(DeadlineExceeded, match=f"no server answers at {address}"):
            client.connect(timeout_s=0.2)
        assert 0.15 < time.monotonic() - began < 25


def test_of_several_servers_only_the_silent_one_is_named() -> None:
    missing = unused_address()
    with fake_server() as server, RequestClient([server.address, missing], "w") as client:
        with pytest.raises(DeadlineExceeded) as caught:
            client.connect(timeout_s=2.0)
        assert missing in str(caught.value)
        assert server.address not in str(caught.value)


def test_a_server_that_falls_silent_is_named() -> None:
    with fake_server() as server, RequestClient([server.address], "w", silence_s=1.0) as client:
        client.connect()
        server.script = lambda heard: None
        with pytest.raises(DeadlineExceeded, match=server.address):
            client.ask(0, m.GetStatus())
        with pytest.raises(DeadlineExceeded, match=server.address):
            client.flush()


def test_parting_from_a_server_that_is_gone_takes_no_longer_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "PARTING_S", 0.2)
    with fake_server() as server, RequestClient([server.address], "w", silence_s=30) as client:
        client.connect()
        server.script = lambda heard: None
        client.send(0, one_row(), lambda reply: None)
        began = time.monotonic()
        client.part(RunEnd(Ending.LEFT))
        assert 0.15 < time.monotonic() - began < 25
        until(lambda: bool(server.messages(m.Leave)), "the goodbye has arrived")


def test_an_answer_that_takes_too_long_is_given_up() -> None:
    with (
        fake_server() as server,
        RequestClient([server.address], "w") as client,
        pytest.raises(DeadlineExceeded, match=server.address),
    ):
        client.ask(0, m.GetStatus(), timeout_s=0.2)


def test_silence_counts_only_while_a_reply_is_owed() -> None:
    with fake_server() as server, RequestClient([server.address], "w", silence_s=1.0) as client:
        client.connect()
        until(lambda: time.monotonic() - client.channels[0].heard > 1.1, "more than the silence that it bears")
        client.poll(0)
        assert client.ask(0, m.Heartbeat()) == m.HeartbeatAck(False)


# ---- refusals


@pytest.mark.parametrize("kind", [BadRequest, RunOver, DatasetMismatch, GlovewireError])
def test_a_refusal_is_raised_as_the_error_that_it_names(kind: type[GlovewireError]) -> None:
    def refuse(heard: Heard) -> m.Message | None:
        return m.Refused(kind.code, "because") if isinstance(heard.message, m.GetStatus) else None

    with fake_server(with_replies(refuse)) as server, RequestClient([server.address], "w") as client:
        client.connect()
        with pytest.raises(kind, match="because") as caught:
            client.ask(0, m.GetStatus())
        assert type(caught.value) is kind
        assert client.ask(0, m.Heartbeat()) == m.HeartbeatAck(False)


@pytest.mark.parametrize("kind", [DatasetMismatch, VersionMismatch, RunOver])
def test_a_hello_that_is_refused_is_said_at_once(kind: type[GlovewireError]) -> None:
    with fake_server(lambda _: m.Refused(kind.code, "no")) as server, RequestClient([server.address], "w") as client:
        began = time.monotonic()
        with pytest.raises(kind, match="no"):
            client.connect(timeout_s=100)
        assert time.monotonic() - began < 90


def test_something_else_at_the_address_is_said_to_be_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake server answers with another version's greeting."""
    encode = wire.encode

    def of_tomorrow(number: int, message: m.Message) -> list[wire.Frame]:
        return (
            [wire.MAGIC + b"\x63", *encode(number, message)[1:]]
            if isinstance(message, m.Welcome)
            else encode(number, message)
        )

    monkeypatch.setattr(wire, "encode", of_tomorrow)
    with fake_server() as server, RequestClient([server.address], "w") as client:
        with pytest.raises(ProtocolError, match="protocol version 99") as caught:
            client.connect()
        assert server.address in str(caught.value)


# ---- shards


def shard_script(number: int, shards: int, **options: object) -> Callable[[Heard], m.Message | None]:
    return lambda heard: welcome(number, shards, **options) if isinstance(heard.message, m.Hello) else polite(heard)


def connected(servers: list[FakeServer]) -> m.Welcome:
    with RequestClient([server.address for server in servers], "w") as client:
        return client.connect()


def test_shards_are_given_once_and_in_order() -> None:
    with fake_server(shard_script(0, 2)) as zero, fake_server(shard_script(1, 2)) as one:
        assert connected([zero, one]).shard == 0
        for wrong in ([one, zero], [zero], [one], [zero, zero], [zero, one, one]):
            with pytest.raises(UsageError, match="every shard's address once, in order") as caught:
                connected(wrong)
            assert "is shard" in str(caught.value)


def test_shards_of_different_trainings_are_refused() -> None:
    with fake_server(shard_script(0, 2)) as zero, fake_server(shard_script(1, 2, dim=8)) as one:
        servers = [zero, one]
        with pytest.raises(UsageError, match="different training options"):
            connected(servers)


def test_addresses_are_checked_before_anything_is_opened() -> None:
    with pytest.raises(UsageError, match="no server address"):
        RequestClient([], "w")
    with pytest.raises(UsageError, match="is not an address"):
        RequestClient(["tcp://127.0.0.1:1", "nowhere"], "w")


def test_what_is_asked_is_counted_and_closing_twice_is_fine() -> None:
    with fake_server() as server, RequestClient([server.address], "w") as client:
        client.connect()
        before = client.bytes_sent
        client.ask(0, m.Heartbeat())
        assert client.bytes_sent - before == wire.bytes_of(wire.encode(1, m.Heartbeat()))
        client.close()
        client.close()


# ---- queries without a session


def answer(client: QueryClient) -> m.Message:
    """The reply to the open query."""
    replies: list[m.Message] = []

    def arrived() -> bool:
        replies.extend(filter(None, [client.answer()]))
        return bool(replies)

    until(arrived, "the reply")
    return replies[0]


def test_a_query_is_sent_again_until_it_is_answered() -> None:
    def third_time(heard: Heard) -> m.Message | None:
        return m.HeartbeatAck(False) if heard.before == 2 else None

    with fake_server(third_time) as server, closing(QueryClient(server.address)) as client:
        assert client.answer() is None
        assert client.waits_s() == 0.0
        client.ask(m.Heartbeat())
        assert client.waits_s() > 0.0
        assert answer(client) == m.HeartbeatAck(False)
        assert client.asked is None
        assert client.answer() is None
        assert [one.before for one in server.heard] == [0, 1, 2]


def test_the_reply_to_an_earlier_query_is_dropped() -> None:
    """The server answers the first query once the second has been asked."""
    asked_again = threading.Event()

    def late(heard: Heard) -> m.Message | None:
        assert asked_again.wait(10)
        return m.Status(np.full(1, heard.number, np.uint8))

    with fake_server(late) as server, closing(QueryClient(server.address)) as client:
        client.ask(m.GetStatus())
        client.ask(m.GetStatus())
        asked_again.set()
        reply = answer(client)
        assert isinstance(reply, m.Status)
        assert list(reply.body) == [2]


def test_a_refused_query_is_a_reply_and_another_kind_than_expected_an_error() -> None:
    with fake_server(lambda _: m.Refused("busy", "not now")) as server, closing(QueryClient(server.address)) as client:
        client.ask(m.Heartbeat())
        reply = answer(client)
        with pytest.raises(ProtocolError, match="not now"):
            expect(reply, m.HeartbeatAck)
    with pytest.raises(ProtocolError, match="HeartbeatAck does not answer"):
        expect(m.HeartbeatAck(False), m.Status)
    with pytest.raises(UsageError, match="is not an address"):
        QueryClient("nowhere")
