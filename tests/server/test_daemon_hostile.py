"""Strangers at the port: each costs itself an error reply or its connection, never the service or its memory."""

from __future__ import annotations

import os
import random
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import strangers
import zmq
from processes import until
from shards import MINIBATCH, Shard, add, applied, in_memory, pull, served, shard
from strangers import STRANGERS, frame, is_shut, port_of

from glovewire.common.endings import Ending
from glovewire.common.protocol import messages as m
from glovewire.common.protocol import wire
from glovewire.common.transport import sockets
from glovewire.common.transport.client import RequestClient
from glovewire.server.daemon import Daemon
from glovewire.server.limits import MAX_ERRORS

LOCAL = "tcp://127.0.0.1:0"


@pytest.fixture
def one(tmp_path: Path) -> Shard:
    (tmp_path / "run").mkdir()
    """With a lease so long that a client which is not polled meanwhile is not lost."""
    return shard(in_memory(tmp_path / "d"), out=tmp_path / "run", now=time.monotonic(), lease_s=1e6, **MINIBATCH)


@pytest.fixture
def daemon(one: Shard, tmp_path: Path) -> Iterator[Daemon]:
    """A daemon whose service is checked before and after, to the last counter."""
    daemon = Daemon(one.core, tmp_path / "run", LOCAL, LOCAL)
    with served(daemon), RequestClient([daemon.address], "w0", one.dataset.checksum) as client:
        client.connect()
        assert client.ask(0, add(one, 1)) == applied(1, 1)
        yield daemon
        assert client.ask(0, add(one, 2), timeout_s=20) == applied(2, 2)
        assert isinstance(client.ask(0, pull(0, 2)), m.Rows)
        assert one.state.push_counts.total["applied"] == 2
        client.ask(0, m.Leave(Ending.LEFT))


def connect(daemon: Daemon) -> socket.socket:
    return socket.create_connection(port_of(daemon.address), timeout=60)


def answers(stranger: socket.socket) -> None:
    """Shake hands, and require an answer to a question."""
    strangers.shake_hands(stranger)
    stats = [bytes(part) for part in wire.encode(7, m.GetStatus())]
    stranger.sendall(b"".join(frame(part, more=part is not stats[-1]) for part in (b"", *stats)))
    assert b"Status" in stranger.recv(65536)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("words", STRANGERS.values(), ids=STRANGERS.keys())
def test_a_stranger_that_speaks_another_protocol_loses_its_connection(daemon: Daemon, words: bytes) -> None:
    with connect(daemon) as stranger:
        stranger.sendall(words)
        assert is_shut(stranger, 8.0)


def test_sixty_strangers_one_after_the_other_are_nothing(daemon: Daemon) -> None:
    strangers.visited(daemon.address, 60, random.Random(5))
    silent = [connect(daemon) for _ in range(20)]  # these say nothing at all
    for stranger in silent:
        stranger.close()


def test_a_frame_of_2_gb_is_refused_by_its_header(daemon: Daemon) -> None:
    """The connection ends before anything is stored: MAXMSGSIZE, which this test has been seen to need."""
    with connect(daemon) as stranger:
        answers(stranger)
        before = resident_bytes()
        stranger.sendall(frame(b"", more=True) + struct.pack(">BQ", 2, 2 << 30))
        with suppress(ConnectionError):
            for _ in range(64):
                stranger.sendall(bytes(1 << 20))
        assert is_shut(stranger)
        assert resident_bytes() - before < 32 << 20


@pytest.mark.parametrize("declared", [wire.MAX_FRAME_BYTES + 1, (1 << 63) - 1, (1 << 64) - 1])
def test_any_frame_over_the_limit_is(daemon: Daemon, declared: int) -> None:
    with connect(daemon) as stranger:
        answers(stranger)
        stranger.sendall(struct.pack(">BQ", 2, declared))
        assert is_shut(stranger)


@pytest.fixture
def dealer(daemon: Daemon) -> Iterator[zmq.Socket[bytes]]:
    with sockets.Context() as context:
        yield context.dealer(daemon.address)


def refused(dealer: zmq.Socket[bytes], frames: list[bytes]) -> str:
    """The code of the refusal that answers these frames."""
    dealer.send_multipart(frames)
    assert dealer.poll(10_000)
    empty, *reply = sockets.receive(dealer)
    assert bytes(empty) == b""
    answer = wire.decode(reply)
    assert answer.number == 0
    assert isinstance(answer.message, m.Refused)
    return answer.message.code


def test_what_is_no_message_is_answered_in_words(dealer: zmq.Socket[bytes]) -> None:
    good = [bytes(frame) for frame in wire.encode(1, m.Heartbeat())]
    assert refused(dealer, [b"hello"]) == "protocol"
    assert refused(dealer, [b""]) == "limit"
    assert refused(dealer, [b"", b"junk", b"junk"]) == "protocol"
    assert refused(dealer, [b"", wire.MAGIC + b"\xff", good[1]]) == "version-mismatch"
    assert refused(dealer, [b"", *good, *[b""] * 20]) == "limit"
    assert refused(dealer, [b"", good[0], bytes(5000)]) == "limit"
    assert refused(dealer, [b"", good[0], b"\x91" * 4000]) == "protocol"
    assert refused(dealer, [b"", good[0], good[1], b"an array too many"]) == "protocol"


def junk(stranger: socket.socket, count: int) -> None:
    """So many messages that are none."""
    stranger.sendall(count * b"".join(frame(part, more=part != b"c") for part in (b"", b"a", b"b", b"c")))


def test_who_sends_too_much_nonsense_loses_its_connection(daemon: Daemon, one: Shard) -> None:
    """Seen to fail without `_shut_down`: then it is only not answered any more. Others notice nothing."""
    with connect(daemon) as stranger, connect(daemon) as bystander:
        answers(stranger)
        answers(bystander)
        junk(stranger, MAX_ERRORS)
        until(lambda: one.state.counters["refused"] == MAX_ERRORS, "every one is answered")
        assert one.state.network.cut_off == 0
        junk(stranger, 500)
        assert is_shut(stranger, 8.0)
        with connect(daemon) as again:  # it may come back, and begins anew
            answers(again)
        junk(bystander, 1)
        assert b"protocol" in bystander.recv(65536)
    assert one.state.network.cut_off == 1
    assert one.state.counters["refused"] == MAX_ERRORS + 1


def test_an_endless_row_of_frames_is_refused(dealer: zmq.Socket[bytes]) -> None:
    good = [bytes(frame) for frame in wire.encode(1, m.Heartbeat())]
    dealer.send_multipart([b"", *good, *[b"x"] * 20_000])
    assert dealer.poll(20_000)
    answer = wire.decode(sockets.receive(dealer)[1:]).message
    assert isinstance(answer, m.Refused)
    assert (answer.code, answer.text) == ("limit", "too many frames: a message has 2 to 8")


def test_ten_thousand_bad_messages_of_every_kind_apply_nothing(daemon: Daemon, one: Shard) -> None:
    before = resident_bytes()
    assert strangers.refused(daemon.address, add(one, 2), 10_000, random.Random(3)) == 10_000
    assert one.state.counters["refused"] == 10_000
    assert one.state.network.cut_off == 0
    assert resident_bytes() - before < 50 << 20
