"""Who gets in when a server has keys, and what the others are told; every wait is far shorter than its deadline.

Seen to fail: without `socket.set(zmq.CURVE_SERVER, 1)` strangers get in; without `zap.answer()` nobody does; without
`attempts.check()` a client that is turned away waits for its whole deadline.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from processes import until
from shards import ASYNC, Shard, add, applied, in_memory, served, shard, statistics

from glovewire.common.endings import Ending
from glovewire.common.errors import DeadlineExceeded, NotAdmitted
from glovewire.common.protocol import messages as m
from glovewire.common.protocol import wire
from glovewire.common.transport import curve_keys as keys
from glovewire.common.transport.client import RequestClient
from glovewire.monitor.stream.feed import Feed
from glovewire.server.daemon import Daemon

LOCAL = "tcp://127.0.0.1:0"
AT_ONCE_S = 20.0
"""A tenth of it is needed; the client's own deadline is a hundred seconds."""


@pytest.fixture
def one(tmp_path: Path) -> Shard:
    (tmp_path / "run").mkdir()
    return shard(in_memory(tmp_path / "d"), out=tmp_path / "run", now=time.monotonic(), **ASYNC)


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    keys.make_keys(tmp_path / "keys")
    return tmp_path / "keys"


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    keys.make_keys(tmp_path / "others")
    return tmp_path / "others"


@pytest.fixture
def daemon(one: Shard, ours: Path, tmp_path: Path) -> Iterator[Daemon]:
    daemon = Daemon(one.core, tmp_path / "run", LOCAL, LOCAL, keys=keys.load_server_keys(ours))
    with served(daemon):
        yield daemon


@pytest.fixture
def open_daemon(one: Shard, tmp_path: Path) -> Iterator[Daemon]:
    daemon = Daemon(one.core, tmp_path / "run", LOCAL, LOCAL)
    with served(daemon):
        yield daemon


def client(daemon: Daemon, one: Shard, path: Path | None, silence_s: float = 100.0) -> RequestClient:
    mine = None if path is None else keys.load_client_keys(path)
    return RequestClient([daemon.address], "w0", one.dataset.checksum, silence_s, mine)


def turned_away(daemon: Daemon, one: Shard, path: Path | None, words: str) -> None:
    began = time.monotonic()
    with client(daemon, one, path) as stranger, pytest.raises(NotAdmitted, match=words):
        stranger.connect()
    with pytest.raises(NotAdmitted, match=words), Feed(daemon.stream_address, timeout_s=100, keys=path) as feed:
        next(iter(feed))
    assert time.monotonic() - began < AT_ONCE_S


def test_who_has_a_key_works_as_ever(daemon: Daemon, one: Shard, ours: Path) -> None:
    with client(daemon, one, ours) as worker, Feed(daemon.stream_address, timeout_s=60, keys=ours) as feed:
        worker.connect()
        assert worker.ask(0, add(one, 1)) == applied(1, 1)
        assert next(iter(feed)).run == "run"
        worker.ask(0, m.Leave(Ending.LEFT))


def test_a_key_that_is_not_on_the_list(daemon: Daemon, one: Shard, ours: Path, theirs: Path) -> None:
    (theirs / "server.pub").write_bytes((ours / "server.pub").read_bytes())
    turned_away(daemon, one, theirs, r"does not know the key in .*others/worker\.key: .* allowed\.toml")
    assert statistics(one)["counters"]["turned_away"] == 2
    allowed = (ours / "allowed.toml").read_text() + (theirs / "allowed.toml").read_text().replace("worker", "guest")
    (ours / "allowed.toml").write_text(allowed)
    with client(daemon, one, theirs) as guest:  # no restart
        guest.connect()
        guest.ask(0, m.Leave(Ending.LEFT))


def test_no_key(daemon: Daemon, one: Shard) -> None:
    turned_away(daemon, one, None, "asks for keys: say --keys")
    assert not one.state.sessions.by_name


def test_a_server_without_keys(open_daemon: Daemon, one: Shard, ours: Path) -> None:
    turned_away(open_daemon, one, ours, "has no keys to prove who it is")


def test_another_server_than_one_knows(daemon: Daemon, one: Shard, ours: Path, theirs: Path) -> None:
    """This is what somebody in the middle looks like; it may also be a server that is being replaced, so one waits."""
    words = r"not seem to be the server whose key is in .*others/server\.pub"
    with client(daemon, one, theirs, silence_s=3.0) as stranger, pytest.raises(DeadlineExceeded, match=words):
        stranger.connect()
    with (
        pytest.raises(DeadlineExceeded, match=words),
        Feed(daemon.stream_address, timeout_s=3, keys=theirs) as feed,
    ):
        next(iter(feed))
    assert not one.state.sessions.by_name


@pytest.mark.parametrize("words", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n" + bytes(64)], ids=["hangs up", "http"])
def test_something_else_that_listens(words: bytes) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as other,
        RequestClient([f"tcp://127.0.0.1:{other.getsockname()[1]}"], "w0", silence_s=100) as lost,
    ):
        lost.send(0, m.GetStatus(), lambda _: None)
        stranger, _ = other.accept()
        stranger.sendall(words)
        if not words:
            stranger.close()
        until(lambda: (lost.poll(10), lost.channels[0].where)[1].endswith("or not yet)"), "the client has its doubts")
        stranger.close()


@contextlib.contextmanager
def listening_in(address: str) -> Iterator[tuple[str, bytearray]]:
    """A relay to `address` on a thread of its own, for one connection: where it listens, and all that it has seen."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    seen, done = bytearray(), threading.Event()
    with socket.create_server((host, 0)) as listener, socket.create_connection((host, int(port))) as far:

        def relay() -> None:
            near, _ = listener.accept()
            with near:
                while not done.is_set():
                    for one, other in ((near, far), (far, near)):
                        if select.select([one], [], [], 0.005)[0]:
                            data = one.recv(1 << 16)
                            seen.extend(data)
                            other.sendall(data)

        thread = threading.Thread(target=relay, name="relay")
        thread.start()
        try:
            yield f"tcp://{host}:{listener.getsockname()[1]}", seen
        finally:
            done.set()
            thread.join(10)


@pytest.mark.parametrize("protected", [True, False])
def test_a_listener_in_the_middle_reads_nothing(one: Shard, ours: Path, tmp_path: Path, protected: bool) -> None:
    daemon = Daemon(one.core, tmp_path / "run", LOCAL, LOCAL, keys=keys.load_server_keys(ours) if protected else None)
    with served(daemon), listening_in(daemon.address) as (address, seen):
        mine = keys.load_client_keys(ours) if protected else None
        with RequestClient([address], "w0", one.dataset.checksum, keys=mine) as worker:
            worker.connect()
            worker.ask(0, add(one, 1, 1.0))
            worker.ask(0, m.Leave(Ending.LEFT))
    row = np.ones(8, np.float32).tobytes()
    readable = [wire.MAGIC in seen, one.dataset.checksum.encode() in seen, row in seen]
    assert readable == [not protected] * 3
