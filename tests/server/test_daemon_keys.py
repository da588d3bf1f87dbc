"""Who gets in when a server has keys, and what the others are told; every wait is far shorter than its deadline.

Seen to fail: without `socket.set(zmq.CURVE_SERVER, 1)` strangers get in; without `zap.answer()` no client does; without
`attempts.check()` a client that is turned away waits for its whole deadline; without the `User-Id` that `ZapHandler`
gives, without `Connections.take_of` and without `Core.revoke` those tests fail that are about a role or a revoked key.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from processes import until
from shards import MINIBATCH, Shard, add, applied, in_memory, pull, served, shard, statistics

from glovewire.common.endings import Ending
from glovewire.common.errors import DeadlineExceeded, NotAdmitted, NotPermitted
from glovewire.common.protocol import messages as m
from glovewire.common.protocol import wire
from glovewire.common.roles import Client, Role
from glovewire.common.transport import curve_keys as keys
from glovewire.common.transport.client import RequestClient
from glovewire.monitor.stream.feed import Feed
from glovewire.monitor.web.neighbours import ServerLookup
from glovewire.server.daemon import Daemon

LOCAL = "tcp://127.0.0.1:0"
AT_ONCE_S = 20.0
"""A tenth of it is needed; the client's own deadline is a hundred seconds."""


@pytest.fixture
def one(tmp_path: Path) -> Shard:
    (tmp_path / "run").mkdir()
    return shard(in_memory(tmp_path / "d"), out=tmp_path / "run", now=time.monotonic(), **MINIBATCH)


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
    mine = None if path is None else keys.load_client_keys(path, Role.WORKER)
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
    turned_away(daemon, one, theirs, r"does not know the key in .*others/\w+\.key: .* allowed\.toml")
    assert statistics(one)["counters"]["turned_away"] == 2
    line = next(line for line in (theirs / "allowed.toml").read_text().splitlines() if line.startswith("worker"))
    with (ours / "allowed.toml").open("a") as file:
        file.write(line.replace("worker", "guest", 1) + "\n")
    (theirs / "worker.key").rename(theirs / "guest.key")  # its name is that of its file
    (theirs / "admin.key").unlink()
    (theirs / "monitor.key").unlink()
    with client(daemon, one, theirs) as guest:  # no restart
        guest.connect()
        guest.ask(0, m.Leave(Ending.LEFT))


def test_no_key(daemon: Daemon, one: Shard) -> None:
    turned_away(daemon, one, None, "asks for keys: say --keys")
    assert not one.state.sessions.by_name


def test_a_server_without_keys(open_daemon: Daemon, one: Shard, ours: Path) -> None:
    turned_away(open_daemon, one, ours, "has no keys to prove who it is")


def test_another_server_than_one_knows(daemon: Daemon, one: Shard, ours: Path, theirs: Path) -> None:
    """This is what a man in the middle looks like; it may also be a server that is being replaced, so one waits."""
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
        until(lambda: (lost.poll(10), lost.where(0))[1].endswith("or not yet)"), "the client has its doubts")
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
        mine = keys.load_client_keys(ours, Role.WORKER) if protected else None
        with RequestClient([address], "w0", one.dataset.checksum, keys=mine) as worker:
            worker.connect()
            worker.ask(0, add(one, 1, 1.0))
            worker.ask(0, m.Leave(Ending.LEFT))
    row = np.ones(8, np.float32).tobytes()
    readable = [wire.MAGIC in seen, one.dataset.checksum.encode() in seen, row in seen]
    assert readable == [not protected] * 3


# ---- roles and revoked keys


def revoke(folder: Path, name: str) -> None:
    """Remove a client from the allow-list."""
    path = folder / "allowed.toml"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if not line.startswith(f"{name} ")))


def query(daemon: Daemon, folder: Path, role: Role) -> RequestClient:
    return RequestClient([daemon.address], "someone", keys=keys.load_client_keys(folder, role))


def test_a_key_is_for_a_role(daemon: Daemon, one: Shard, ours: Path) -> None:
    with query(daemon, ours, Role.MONITOR) as monitor, query(daemon, ours, Role.WORKER) as worker:
        for client in (monitor, worker):
            assert isinstance(client.ask(0, m.GetStatus()), m.Status)
            with pytest.raises(NotPermitted, match="may not end the run: use a key for the role admin"):
                client.ask(0, m.Finish(Ending.ASKED))
        monitor.connect("observer")
        assert isinstance(monitor.ask(0, pull(0, 2)), m.Rows)
        with pytest.raises(NotPermitted, match="the key 'monitor' is for the role monitor, which may not push rows"):
            monitor.ask(0, add(one, 1))
    with query(daemon, ours, Role.MONITOR) as monitor, pytest.raises(NotPermitted, match="may not join as a worker"):
        monitor.connect()
    assert not one.state.sessions.workers
    with query(daemon, ours, Role.ADMIN) as admin:
        assert admin.ask(0, m.Finish(Ending.ASKED)) == m.Finishing(0)


def test_a_monitor_s_key_is_enough_for_the_neighbours_of_the_dashboard(daemon: Daemon, one: Shard, ours: Path) -> None:
    lookup = ServerLookup(lambda: [daemon.address], keys.load_client_keys(ours, Role.MONITOR))
    with contextlib.closing(lookup):
        lookup.refresh(0.0)
        until(lambda: (lookup.step(), lookup.progress is None)[1], "the rows have come, or an error")
        assert lookup.error == ""
        assert lookup.vectors is not None


def test_a_worker_is_called_as_its_key(daemon: Daemon, one: Shard, ours: Path) -> None:
    keys.add_clients(ours, [Client("anna", Role.WORKER)])
    with client(daemon, one, ours / "anna.key") as worker:
        worker.connect()
        assert list(one.state.sessions.by_name) == ["anna.w0"]
        worker.ask(0, m.Leave(Ending.LEFT))


def cut_off(act: Callable[[], object], name: str) -> None:
    """Act again and again until the client is told that its key is unknown."""
    with pytest.raises(NotAdmitted, match=rf"does not know the key in .*/{name}\.key"):
        until(lambda: act() is act, f"{name} is cut off")


def test_a_revoked_key_loses_session_connection_and_stream(daemon: Daemon, one: Shard, ours: Path) -> None:
    """Without a restart; those of others stay. A client that says nothing more is cut off, too."""
    keys.add_clients(ours, [Client("anna", Role.WORKER), Client("eve", Role.MONITOR)])
    eve, monitor = ours / "eve.key", ours / "monitor.key"
    with (
        client(daemon, one, ours / "anna.key") as anna,
        client(daemon, one, ours) as worker,
        Feed(daemon.stream_address, timeout_s=100, keys=eve) as hers,
        Feed(daemon.stream_address, timeout_s=100, keys=monitor) as others,
    ):
        anna.connect()
        worker.connect()
        for feed in (hers, others):
            next(iter(feed))
        for name in ("anna", "eve"):
            revoke(ours, name)
        until(lambda: list(one.state.sessions.by_name) == ["worker.w0"], "her session is over")
        cut_off(lambda: anna.poll(10), "anna")
        cut_off(lambda: hers.poll(0.01), "eve")
        assert worker.ask(0, add(one, 1)) == applied(1, 1)
        while others.poll():
            pass
        until(lambda: bool(others.poll(0.01)), "the stream continues for the others")
        worker.ask(0, m.Leave(Ending.LEFT))


def test_a_revoked_key_that_had_no_session_is_cut_off_when_it_asks(daemon: Daemon, one: Shard, ours: Path) -> None:
    with query(daemon, ours, Role.MONITOR) as monitor:
        monitor.ask(0, m.GetStatus())
        revoke(ours, "monitor")
        cut_off(lambda: monitor.ask(0, m.GetStatus()), "monitor")


def test_what_happens_is_logged_with_key_and_address(
    daemon: Daemon, one: Shard, ours: Path, theirs: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    (theirs / "server.pub").write_bytes((ours / "server.pub").read_bytes())
    with client(daemon, one, theirs) as stranger, pytest.raises(NotAdmitted):
        stranger.connect()
    with client(daemon, one, ours) as worker:
        worker.connect()
        with pytest.raises(NotPermitted):
            worker.ask(0, m.Finish(Ending.ASKED))
        worker.ask(0, m.Leave(Ending.LEFT))
    with query(daemon, ours, Role.ADMIN) as admin:
        admin.ask(0, m.Finish(Ending.ASKED))
    lines = [line for line in caplog.messages if line.startswith("event=audit_")]
    public = keys.load_client_keys(theirs, Role.WORKER).pair.public.decode()
    assert lines[0].startswith("event=audit_turned_away where=127.0.0.1 public=")
    assert public in lines[0].replace("\\'", "'")
    assert lines[1] == "event=audit_joined where=127.0.0.1 key=worker name=worker.w0 as=worker"
    assert lines[2].startswith("event=audit_refused where=127.0.0.1 key=worker request=Finish code=not-permitted why=")
    assert lines[3] == "event=audit_finish where=127.0.0.1 key=admin ending=asked"
