"""Sockets: addresses in words, free ports, ports in use, deadlines, limits, wake-ups."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import zmq
from open_files import none_left

from glovewire.common.addresses import check_address, is_loopback
from glovewire.common.errors import BindError, SystemLimit, UsageError
from glovewire.common.protocol.wire import MAX_FRAMES
from glovewire.common.transport import sockets
from glovewire.common.transport.connections import address_of
from glovewire.common.transport.sockets import Context
from glovewire.common.transport.wakeup import Wakeup

LOCAL = "tcp://127.0.0.1:0"


@pytest.mark.parametrize(
    "address",
    ["tcp://127.0.0.1:0", "tcp://localhost:65535", "tcp://*:5555", "tcp://[::1]:1", "tcp://a.b:7", "ipc:///x"],
)
def test_an_address_is_taken_as_it_is(address: str) -> None:
    assert check_address(address) == address


@pytest.mark.parametrize(
    "address",
    [
        "", "5555", "localhost:5555", "tcp://", "tcp://localhost", "tcp://:5555", "tcp://localhost:", "tcp://localhost:x",
        "tcp://localhost:65536", "tcp://localhost:" + "1" * 5000,
        "tcp://localhost:-1", "tcp://localhost:²", "tcp://localhost:٣", "udp://localhost:1",
        "ipc://", "inproc://x",
    ],
)  # fmt: skip
def test_what_is_no_address_is_named(address: str) -> None:
    with pytest.raises(UsageError, match="is not an address: write tcp://HOST:PORT"):
        check_address(address)


@pytest.mark.parametrize(
    "address",
    ["tcp://127.0.0.1:1", "tcp://127.8.9.1:1", "tcp://localhost:1", "tcp://[::1]:1", "ipc:///tmp/x", "inproc://x"],
)
def test_only_this_machine_reaches_a_loopback_address(address: str) -> None:
    assert is_loopback(address)


@pytest.mark.parametrize(
    "address",
    [
        "tcp://*:1",
        "tcp://0.0.0.0:1",
        "tcp://10.0.0.1:1",
        "tcp://[::]:1",
        "tcp://127.example.org:1",
        "tcp://localhost.org:1",
    ],
)
def test_others_reach_every_other_address(address: str) -> None:
    assert not is_loopback(address)


def test_port_0_becomes_a_real_one() -> None:
    with Context() as context:
        _, address = context.router(LOCAL)
        _, other = context.publisher(LOCAL)
        assert re.fullmatch(r"tcp://127\.0\.0\.1:[1-9]\d*", address)
        assert address != other


def test_localhost_can_be_bound() -> None:
    with Context() as context:
        assert context.router("tcp://localhost:0")[1].startswith("tcp://127.0.0.1:")


def test_a_port_in_use_is_said_to_be_in_use() -> None:
    with Context() as context, Context() as other:
        _, address = context.router(LOCAL)
        for bind in (other.router, other.publisher):
            with pytest.raises(BindError, match=re.escape(f"cannot listen on {address}: the port is in use")):
                bind(address)


def test_a_path_at_which_another_process_listens_is_not_taken(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/s"
    with Context() as context, Context() as other:
        router, _ = context.router(address)
        for bind in (other.router, other.publisher):
            with pytest.raises(BindError, match=re.escape(f"cannot listen on {address}: another process")):
                bind(address)
        sockets.send(other.dealer(address), [b"still here"])
        assert router.poll(10_000)


def test_the_path_of_a_process_that_is_gone_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(str(path))
    with Context() as context:
        router, address = context.router(f"ipc://{path}")
        sockets.send(context.dealer(address), [b"here"])
        assert router.poll(10_000)


def test_a_file_is_not_removed_to_listen_in_its_place(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.write_text("mine")
    with Context() as context, pytest.raises(BindError, match="there is something that is not a socket"):
        context.router(f"ipc://{path}")
    assert path.read_text() == "mine"


def test_an_address_of_another_machine_cannot_be_bound() -> None:
    with Context() as context, pytest.raises(BindError, match=r"cannot listen on tcp://203\.0\.113\.1:0"):
        context.router("tcp://203.0.113.1:0")


def test_a_context_closes_twice() -> None:
    context = Context()
    router, address = context.router(LOCAL)
    context.dealer(address)
    context.close()
    assert router.closed
    context.close()


@pytest.mark.parametrize("size", [0, 1, sockets.BIG_FRAME_BYTES, sockets.BIG_FRAME_BYTES + 1, 1 << 20])
def test_frames_arrive_as_they_were_sent(size: int) -> None:
    with Context() as context:
        router, address = context.router(LOCAL)
        dealer = context.dealer(address)
        payload = bytes(range(256)) * (size // 256) + bytes(size % 256)
        sockets.send(dealer, [b"", memoryview(payload)])
        assert router.poll(10_000)
        peer, *frames = sockets.receive(router)
        assert [bytes(frame) for frame in frames] == [b"", payload]
        sockets.send(router, [bytes(peer), b"", payload])
        assert dealer.poll(10_000)
        assert bytes(sockets.receive(dealer)[1]) == payload


def test_nothing_to_receive_is_said_at_once() -> None:
    with Context() as context:
        router, _ = context.router(LOCAL)
        with pytest.raises(zmq.Again):
            sockets.receive(router)


def test_a_peer_that_is_not_there_is_an_error_and_not_silence() -> None:
    with Context() as context:
        router, _ = context.router(LOCAL)
        with pytest.raises(zmq.ZMQError) as caught:
            sockets.send(router, [b"unknown", b"", b"x"])
        assert caught.value.errno == zmq.EHOSTUNREACH


def test_every_socket_has_its_limits() -> None:
    with Context() as context:
        router, address = context.router(LOCAL)
        publisher, stream = context.publisher(LOCAL)
        dealer, subscriber = context.dealer(address), context.subscriber(stream)
        for one in (router, publisher, dealer, subscriber):
            assert 0 < one.get(zmq.MAXMSGSIZE) <= 64 << 20
            assert 0 < one.get(zmq.HANDSHAKE_IVL) <= 10_000
            assert one.get(zmq.LINGER) == 0
            assert one.get(zmq.ZAP_DOMAIN) == b"glovewire"
        assert all(one.get(zmq.SNDHWM) > 0 for one in (router, publisher, dealer))
        assert all(one.get(zmq.RCVHWM) > 0 for one in (router, dealer, subscriber))


PEER = """
import sys
from glovewire.common.transport import sockets
context = sockets.Context()
dealer = context.dealer(sys.argv[1])
for _ in range(500):
    sockets.send(dealer, [bytes(2000)])
context.close(last_words_ms=60_000)
"""
BUSY_SERVER = """
import subprocess, sys
from glovewire.common.transport import sockets
with sockets.Context() as context:
    router, address = context.router("tcp://127.0.0.1:0")
    subprocess.run([sys.executable, "-c", sys.argv[1], address], check=True)
    print("alone", flush=True)
    sys.stdin.read()
    print(len(sockets.receive(router)))
"""
LIBRARY_S = 5.0
"""More than enough for what the library may still do about a dead peer."""


def test_a_peer_that_dies_before_it_was_read_does_not_take_the_server_with_it() -> None:
    """With heartbeats of libzmq 4.3.5 it does: the next one finds a connection that is half closed, and aborts."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", BUSY_SERVER, PEER], stdin=pipe, stdout=pipe, text=True) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "alone\n"
        with pytest.raises(subprocess.TimeoutExpired):
            server.wait(LIBRARY_S)
        assert server.communicate() == ("2\n", None)
    assert server.returncode == 0


def test_a_server_that_is_busy_takes_little_of_who_sends_without_end() -> None:
    """What it does not read stays with the sender, but for two messages and what the system buffers."""
    with sockets.Context() as context:
        router, address = context.router("tcp://127.0.0.1:0")
        dealer = context.dealer(address)
        dealer.set(zmq.SNDHWM, 1)
        sent = 0
        while sent < 200 and dealer.poll(1000, zmq.POLLOUT):
            sockets.send(dealer, [bytes(1 << 20)])
            sent += 1
        assert 0 < sent < 100
        assert router.poll(20_000)


def test_a_wakeup_is_heard_once_however_often_it_is_set() -> None:
    wakeup = Wakeup()
    poller = zmq.Poller()
    poller.register(wakeup.reader, zmq.POLLIN)
    assert poller.poll(0) == []
    for _ in range(10_000):
        wakeup.set()
    assert poller.poll(10_000)
    while poller.poll(0):
        wakeup.clear()
    wakeup.clear()
    wakeup.close()
    wakeup.set()
    wakeup.close()


def test_an_absent_server_is_no_error_yet() -> None:
    with socket.socket() as taken, Context() as context:
        taken.bind(("127.0.0.1", 0))
        dealer = context.dealer(f"tcp://127.0.0.1:{taken.getsockname()[1]}")
        sockets.send(dealer, [b"", b"hello"])


def test_frames_beyond_those_of_any_message_are_thrown_away() -> None:
    with Context() as context:
        router, address = context.router(LOCAL)
        dealer = context.dealer(address)
        dealer.send_multipart([b"x"] * 5000)
        dealer.send_multipart([b"", b"next"])
        assert router.poll(10_000)
        router.recv()
        assert len(sockets.receive(router)) == sockets.KEPT_FRAMES > MAX_FRAMES + 1
        assert router.poll(10_000)
        router.recv()
        assert sockets.receive(router) == [b"", b"next"]


def test_the_rest_of_a_message_is_dropped_but_for_its_sender() -> None:
    with Context() as context:
        router, address = context.router(LOCAL)
        dealer = context.dealer(address)
        for last in (b"x", b"y"):
            dealer.send_multipart([b"", b"hello", last])
            assert router.poll(10_000)
            router.recv()
            frame = sockets.discard_message(router)
            assert (frame.bytes, address_of(frame)) == (last, "127.0.0.1")


@pytest.mark.parametrize("first", [False, True], ids=["its monitor", "the first one"])
def test_a_socket_that_cannot_be_made_for_lack_of_files_is_one_clear_error(
    monkeypatch: pytest.MonkeyPatch, *, first: bool
) -> None:
    """Seen to fail: a zmq.ZMQError ended the thread that copies from other shards."""
    with Context() as context, contextlib.ExitStack() as held:
        if first:
            held.enter_context(none_left())
        else:
            make = context._make
            monkeypatch.setattr(context, "_make", lambda kind: (make(kind), held.enter_context(none_left()))[0])
        with pytest.raises(SystemLimit, match=r"too many open files: raise the limit \(ulimit -n\)"):
            context.dealer("tcp://127.0.0.1:9")
