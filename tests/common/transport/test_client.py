"""The client against a scripted server: repeats, hello again, deadlines that name the address, refusals as errors."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from fake_server import Heard, fake_server, polite, welcome
from processes import until
from shards import push

from glovewire.common.client import channel as channel_module
from glovewire.common.client import core as core_module
from glovewire.common.client.channel import UNSENT
from glovewire.common.client.pending import expect
from glovewire.common.endings import Ending, RunEnd
from glovewire.common.errors import (
    BadRequest,
    DatasetMismatch,
    DeadlineExceeded,
    GlovewireError,
    Interrupted,
    ProtocolError,
    RunOver,
    UsageError,
    VersionMismatch,
)
from glovewire.common.protocol import messages as m
from glovewire.common.protocol import wire
from glovewire.common.transport import client as client_module
from glovewire.common.transport import sockets
from glovewire.common.transport.client import RequestClient
from glovewire.common.transport.sockets import Context


@pytest.fixture(autouse=True)
def _short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "RESEND_FIRST_S", 0.1)
    monkeypatch.setattr(channel_module, "RESEND_BIG_S", 0.1)
    monkeypatch.setattr(core_module, "HEARTBEAT_AFTER_S", 0.05)
    monkeypatch.setattr(client_module, "POLL_MS", 10)


def one_row(sequence: int = 1) -> m.Push:
    return push("add", np.ones((1, 4)), 0, 1, sequence=sequence)


@pytest.fixture
def unanswered() -> Iterator[str]:
    """An address where no server listens, kept from others that want a port."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"tcp://127.0.0.1:{bound.getsockname()[1]}"


def with_replies(answers: Callable[[Heard], m.Message | None]) -> Callable[[Heard], m.Message | None]:
    """`polite`, unless `answers` has something to say."""
    return lambda heard: answers(heard) or polite(heard)


def test_processes_of_one_name_differ_in_their_incarnation() -> None:
    with fake_server() as server:
        for _ in range(2):
            with RequestClient([server.address], "w") as client:
                client.connect()
        hellos = [heard.message for heard in server.messages(m.Hello)]
        assert len({hello.incarnation for hello in hellos if isinstance(hello, m.Hello)}) == 2


# ---- deadlines


def test_a_server_that_is_not_there_is_named_at_the_deadline(unanswered: str) -> None:
    with RequestClient([unanswered], "w") as client:
        began = time.monotonic()
        with pytest.raises(DeadlineExceeded, match=f"no server answers at {unanswered}"):
            client.connect(timeout_s=0.2)
        assert 0.15 < time.monotonic() - began < 25


def test_of_several_servers_only_the_silent_one_is_named(unanswered: str) -> None:
    with fake_server() as server, RequestClient([server.address, unanswered], "w") as client:
        with pytest.raises(DeadlineExceeded) as caught:
            client.connect(timeout_s=2.0)
        assert unanswered in str(caught.value)
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


def test_who_is_interrupted_while_it_joins_says_goodbye_and_waits_for_no_answer() -> None:
    """Seen to fail: the server kept the session for the time of a lease, and the others waited as long."""
    with fake_server(lambda _: None) as server, RequestClient([server.address], "w0") as client:
        client.failed = Interrupted("told to stop")
        with pytest.raises(Interrupted):
            client.connect()
        client.failed = None
        client.part(RunEnd(Ending.INTERRUPTED), within_s=300.0)
        until(lambda: server.messages(m.Leave), "it has said goodbye")
        assert [type(heard.message) for heard in server.heard] == [m.Hello, m.Leave]


def test_an_answer_that_takes_too_long_is_given_up() -> None:
    with (
        fake_server() as server,
        RequestClient([server.address], "w") as client,
        pytest.raises(DeadlineExceeded, match=server.address),
    ):
        client.ask(0, m.GetStatus(), timeout_s=0.2)


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


# ---- addresses and bytes


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


def test_a_reply_of_another_kind_than_expected_is_an_error() -> None:
    with pytest.raises(ProtocolError, match="not now"):
        expect(m.Refused("busy", "not now"), m.HeartbeatAck)
    with pytest.raises(ProtocolError, match="HeartbeatAck does not answer"):
        expect(m.HeartbeatAck(False), m.Status)


def test_what_finds_no_room_in_the_queue_waits_in_its_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No server listens yet; once one does, every push arrives, the first of each in the order of the numbers."""
    monkeypatch.setattr(sockets, "QUEUE_MESSAGES", 3)
    monkeypatch.setattr(channel_module, "RESEND_FIRST_S", 60.0)
    with RequestClient([f"ipc://{tmp_path}/s"], "w") as client, Context() as context:
        (channel,) = client.channels
        for sequence in range(1, 7):
            client.send(0, one_row(sequence), print)
        assert [request.sent != UNSENT for request in channel.pending.values()] == [True] * 3 + [False] * 3
        assert channel.pushes == 3
        router, _ = context.router(channel.address)
        heard: list[int] = []

        def come() -> bool:
            client.poll(10)
            while sockets.has_message(router):
                request = wire.decode(sockets.receive(router)[2:])
                heard.append(request.message.sequence)  # type: ignore[attr-defined]
            return len(heard) >= 6

        until(come, "all six")
        assert heard == [1, 2, 3, 4, 5, 6]
        assert channel.pushes == 6


def test_who_has_said_goodbye_waits_for_nothing_else() -> None:
    """The first server is gone when the second one answers; a sign of life to it stays without an answer."""

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
