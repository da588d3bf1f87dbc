"""Silent connections: they make room for new ones, shut out no one, and leave files to the results."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from processes import until
from shards import MINIBATCH, Shard, add, applied, in_memory, served, shard
from strangers import GREETING, frame, port_of

from glovewire.common.endings import Ending, RunEnd
from glovewire.common.errors import ArtifactError, OutputError
from glovewire.common.protocol import messages as m
from glovewire.common.roles import Role
from glovewire.common.runtime import descriptors
from glovewire.common.storage.artifacts import PARTIAL, writing_artifact
from glovewire.common.transport import sockets
from glovewire.common.transport.client import RequestClient
from glovewire.common.transport.connections import Connection
from glovewire.common.transport.curve_keys import load_client_keys, load_server_keys, make_keys
from glovewire.server import limits
from glovewire.server.daemon import Daemon
from glovewire.server.limits import MIN_CONNECTIONS, Connections

LOCAL = "tcp://127.0.0.1:0"
MOST = 20


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_CONNECTIONS", MOST)


@pytest.fixture
def one(tmp_path: Path) -> Shard:
    (tmp_path / "run").mkdir()
    return shard(in_memory(tmp_path / "d"), out=tmp_path / "run", now=time.monotonic(), **MINIBATCH)


# ---- which connections are cut


def at(descriptor: int, host: str = "") -> Connection:
    return Connection(descriptor, host or f"10.0.0.{descriptor}", 1)


def test_the_oldest_stranger_makes_room_and_members_stay() -> None:
    connections = Connections(MOST)
    for number in range(MOST):
        connections.opened(at(number))
    connections.joined(0, b"w0")
    connections.subscribed(1)
    assert connections.take_surplus(lambda _: True) == []
    for number in range(MOST, MOST + 3):
        connections.opened(at(number))
    assert connections.take_surplus(lambda _: True) == [at(2), at(3), at(4)]
    assert len(connections) == MOST
    connections.opened(at(99))
    assert connections.take_surplus(lambda _: False) == [at(5)], "its session has ended, but others are older"
    assert connections.remove(7) == at(7)
    assert connections.remove(7) is None


def test_when_all_have_sessions_the_newcomer_is_cut() -> None:
    connections = Connections(MOST)
    for number in range(MOST):
        connections.opened(at(number))
        connections.joined(number, b"%d" % number)
    connections.opened(at(99))
    assert connections.take_surplus(lambda _: True) == [at(99)]
    connections.opened(at(99))
    assert connections.take_surplus(lambda peer: peer != b"3") == [at(99)], "moved behind, but it was here before"
    connections.opened(at(99))
    assert connections.take_surplus(lambda _: True) == [at(3)]


def test_one_address_and_subscribers_have_shares() -> None:
    connections = Connections(MOST)
    connections.opened(at(100))
    for number in range(MOST * 3 // 4):
        connections.opened(at(number, "10.1.1.1"))
    assert connections.take_surplus(lambda _: True) == []
    connections.opened(at(50, "10.1.1.1"))
    assert connections.take_surplus(lambda _: True) == [at(0, "10.1.1.1")]
    for number in range(1, MOST // 2 + 2):
        connections.subscribed(number)
    assert connections.take_surplus(lambda _: True) == [at(1, "10.1.1.1")]


def test_a_descriptor_that_is_used_again_is_counted_once() -> None:
    connections = Connections(0)
    for _ in range(3 * MIN_CONNECTIONS):
        connections.opened(at(5))
    assert len(connections) == 1
    connections.joined(-1, b"ipc")
    connections.subscribed(-1)
    assert len(connections) == 1


def test_a_connection_is_not_forgotten_for_one_of_another_socket_that_had_its_descriptor() -> None:
    connections = Connections(MOST)
    before, now = Connection(5, "10.0.0.1", 4000), Connection(5, "10.0.0.1", 4001)
    connections.opened(before)
    connections.opened(now)
    assert not connections.closed(before)
    assert list(connections) == [now]
    assert connections.closed(now)
    assert connections.closed(now), "it may have been cut"


# ---- a daemon


@contextlib.contextmanager
def silent(address: str, count: int) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(socket.create_connection(port_of(address), timeout=20)) for _ in range(count)]


def is_cut(stranger: socket.socket) -> bool:
    """Whether the server has closed the connection; it sends a greeting first."""
    stranger.setblocking(False)
    try:
        while stranger.recv(4096):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


@pytest.mark.parametrize("with_keys", [False, True])
def test_silent_connections_yield_to_workers(one: Shard, tmp_path: Path, with_keys: bool) -> None:
    """Seen to fail without limits: then all connections stay until the handshake's end, here a minute."""
    make_keys(tmp_path / "keys")
    keys = load_server_keys(tmp_path / "keys") if with_keys else None
    mine = load_client_keys(tmp_path / "keys", Role.WORKER) if with_keys else None
    daemon = Daemon(one.core, tmp_path / "run", LOCAL, LOCAL, keys=keys)
    with served(daemon), RequestClient([daemon.address], "w0", one.dataset.checksum, keys=mine) as before:
        before.connect()
        with silent(daemon.address, MOST) as strangers, silent(daemon.stream_address, MOST) as others:
            until(lambda: sum(map(is_cut, strangers + others)) >= MOST, "half of them are cut")
            with RequestClient([daemon.address], "w1", one.dataset.checksum, keys=mine) as late:
                late.connect()
                assert late.ask(0, add(one, 1), timeout_s=20) == applied(1, 1)
                assert before.ask(0, add(one, 1), timeout_s=20) == applied(1, 2)
                with silent(daemon.address, 3 * MOST):
                    assert late.ask(0, add(one, 2), timeout_s=20) == applied(2, 3)
                    until(lambda: one.state.network.cut_off >= 3 * MOST, "strangers are cut off and counted")
                for client in (before, late):
                    client.part(RunEnd(Ending.LEFT))


def test_queries_are_answered_among_silent_connections(one: Shard, tmp_path: Path) -> None:
    daemon = Daemon(one.core, tmp_path / "run", LOCAL, LOCAL)
    with served(daemon), silent(daemon.address, 3 * MOST), RequestClient([daemon.address], "eye") as client:
        assert isinstance(client.ask(0, m.GetStatus(), timeout_s=20), m.Status)


# ---- files


def shortage() -> ArtifactError:
    error = ArtifactError("cannot be read")
    error.__cause__ = OSError(errno.EMFILE, "Too many open files")
    return error


def test_what_fails_for_lack_of_files_is_tried_again() -> None:
    errors = [shortage(), OSError(errno.ENFILE, "")]

    def action() -> str:
        if errors:
            raise errors.pop()
        return "written"

    assert descriptors.patiently(action) == "written"


def test_patience_has_an_end_that_names_the_remedy() -> None:
    def action() -> None:
        raise shortage()

    with pytest.raises(OutputError, match=r"cannot be read; too many files are open.*ulimit -n"):
        descriptors.patiently(action, 0.1)


def test_other_errors_are_not_tried_again() -> None:
    tried = []

    def action() -> None:
        tried.append(1)
        raise OutputError("the disk is full")

    with pytest.raises(OutputError, match="full"):
        descriptors.patiently(action)
    assert tried == [1]


def test_the_soft_limit_becomes_the_hard_one() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard - 1, hard))
        descriptors.raise_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
        assert 0 < descriptors.left() < hard
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_work_aside_bounds_connections_meanwhile(one: Shard, tmp_path: Path) -> None:
    """The final write: nothing is answered, but silent connections take no more files than before."""
    daemon = Daemon(one.core, tmp_path / "run", LOCAL, LOCAL)
    try:
        with silent(daemon.address, 3 * MOST) as strangers:
            counted = daemon.aside(lambda: until(lambda: sum(map(is_cut, strangers)) >= 2 * MOST, "most are cut"))
        assert counted
        with pytest.raises(OutputError, match="full"):
            daemon.aside(lambda: (_ for _ in ()).throw(OutputError("the disk is full")))
    finally:
        daemon.close()


def test_no_connection_comes_in_while_results_are_written(one: Shard, tmp_path: Path) -> None:
    """At `ulimit -n 256` a flood took the descriptors of the vectors faster than connections could be cut."""

    def try_to_connect() -> str:
        for address in (daemon.address, daemon.stream_address):
            with pytest.raises(TimeoutError):
                socket.create_connection(port_of(address), timeout=0.2)
        return "written"

    daemon = Daemon(one.core, tmp_path / "run", LOCAL, LOCAL)
    assert daemon.aside(try_to_connect) == "written"
    with served(daemon), RequestClient([daemon.address], "eye") as client:
        client.connect("observer")
        assert isinstance(client.ask(0, m.GetStatus(), timeout_s=20), m.Status)
        client.part(RunEnd(Ending.LEFT))


def test_a_scratch_folder_that_cannot_be_removed_for_lack_of_files_is_no_other_error(tmp_path: Path) -> None:
    """The second attempt ended with "File exists"."""
    scratch = tmp_path / f".cut.{os.getpid()}{PARTIAL}"
    (scratch / "deep").mkdir(parents=True)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        with pytest.raises(OutputError) as caught, writing_artifact(tmp_path / "cut", "checkpoint", 1, {}):
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert descriptors.is_shortage(caught.value)


# ---- subscriptions


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()


@pytest.mark.parametrize("length", [60_000, 900])
def test_a_subscription_to_no_topic_ends_the_connection_and_its_memory(one: Shard, tmp_path: Path, length: int) -> None:
    """400 topics of 60 kB took 1.2 GB."""
    daemon = Daemon(one.core, tmp_path / "run", LOCAL, LOCAL)
    with served(daemon), sockets.Context() as mine:
        honest = mine.subscriber(daemon.stream_address)
        assert honest.poll(20_000)
        before = resident_bytes()
        with socket.create_connection(port_of(daemon.stream_address), timeout=20) as greedy:
            ready = b"\x05READY\x0bSocket-Type\x00\x00\x00\x03SUB"
            greedy.sendall(GREETING + bytes([4, len(ready)]) + ready)
            with contextlib.suppress(OSError):
                for number in range((20 << 20) // length):
                    greedy.sendall(frame(b"\1%d" % number + bytes(length), more=False))
            until(lambda: is_cut(greedy), "it is cut")
        assert resident_bytes() - before < 64 << 20
        while honest.poll(0):
            honest.recv_multipart()
        assert honest.poll(20_000), "others get the stream"


def test_any_prefix_of_a_topic_may_be_subscribed_to(one: Shard, tmp_path: Path) -> None:
    daemon = Daemon(one.core, tmp_path / "run", LOCAL, LOCAL)
    with served(daemon), zmq.Context() as context:
        for prefix in ("", "serv"):
            with context.socket(zmq.SUB) as some:
                some.subscribe(prefix)
                some.connect(daemon.stream_address)
                assert some.poll(20_000)
                assert some.recv_multipart()[0].startswith(prefix.encode())
                some.subscribe("event")
                some.unsubscribe("event")
                assert some.poll(20_000)
    assert one.state.network.cut_off == 0
