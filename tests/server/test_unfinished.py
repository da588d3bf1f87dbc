"""Messages that never end cost their senders the connection, and the server little memory."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import strangers
import zmq
from processes import until
from shards import ASYNC, MINIBATCH, Shard, code, in_memory, push, served, shard
from strangers import is_shut, send_until_shut, shaken

from glovewire.common.endings import Ending, RunEnd
from glovewire.common.protocol import messages as m
from glovewire.common.protocol import wire
from glovewire.common.protocol.wire import MAX_FRAME_BYTES
from glovewire.common.roles import Client, Role
from glovewire.common.transport.client import RequestClient
from glovewire.common.transport.connections import received_bytes
from glovewire.common.transport.curve_keys import load_client_keys, load_server_keys, make_keys
from glovewire.server.daemon import Daemon
from glovewire.server.limits import STRANGER_BYTES, STRANGERS_BYTES, WORKER_FRAMES, Unfinished
from glovewire.server.service import largest_frame

LOCAL = "tcp://127.0.0.1:0"
MIB = 1 << 20
FRAME = 10 * MIB


def heard(of: Unfinished, *peers: int) -> None:
    for peer in peers:
        of.heard(b"%d" % peer, peer)


def test_what_was_sent_since_the_last_message_counts() -> None:
    unfinished, bytes_of = Unfinished(int, FRAME, set()), {1: 10 * MIB, 2: STRANGER_BYTES}
    heard(unfinished, 1)
    assert unfinished.surplus(bytes_of, bytes_of.__getitem__) == []
    bytes_of = {1: 10 * MIB + STRANGER_BYTES, 2: STRANGER_BYTES + 1}
    assert unfinished.surplus(bytes_of, bytes_of.__getitem__) == [2]
    unfinished.closed(2)
    assert unfinished.surplus([1], bytes_of.__getitem__) == []
    bytes_of[1] += 1
    assert unfinished.surplus([1], bytes_of.__getitem__) == [1]


def test_a_worker_may_send_as_many_large_frames_as_are_kept_of_it() -> None:
    unfinished, bytes_of = Unfinished(int, FRAME, {b"1"}), {1: 0}
    heard(unfinished, 1)
    assert unfinished.surplus([1], bytes_of.__getitem__) == []
    bytes_of[1] = WORKER_FRAMES * FRAME
    assert unfinished.surplus([1], bytes_of.__getitem__) == []
    bytes_of[1] += 1
    assert unfinished.surplus([1], bytes_of.__getitem__) == [1]
    unfinished.closed(1)
    bytes_of[1] = STRANGER_BYTES + 1
    assert unfinished.surplus([1], bytes_of.__getitem__) == [1], "its descriptor is no worker's any more"


def test_all_that_are_no_workers_share_a_bound_and_the_largest_go_first() -> None:
    bytes_of = {number: MIB + number for number in range(100)}
    unfinished = Unfinished(int, FRAME, set())
    found = unfinished.surplus(bytes_of, bytes_of.__getitem__)
    assert found == list(range(99, 99 - len(found), -1))
    assert unfinished.pending <= STRANGERS_BYTES < unfinished.pending + 2 * MIB


@pytest.fixture
def one(tmp_path: Path) -> Shard:
    (tmp_path / "run").mkdir()
    return shard(in_memory(tmp_path / "d"), out=tmp_path / "run", now=time.monotonic(), **ASYNC)


@pytest.fixture
def daemon(one: Shard, tmp_path: Path) -> Iterator[Daemon]:
    daemon = Daemon(one.core, tmp_path / "run", LOCAL, LOCAL)
    with served(daemon):
        yield daemon


@pytest.mark.parametrize("endless", [False, True], ids=["a frame that stops", "frames without end"])
def test_a_message_that_does_not_end_is_cut(daemon: Daemon, one: Shard, *, endless: bool) -> None:
    """Seen to fail: the server held all 60 MiB of the one, and all that came of the other."""
    piece = strangers.frame(bytes(MIB), more=True) if endless else bytes(MIB)
    with shaken(daemon.address) as stranger:
        begins = b"" if endless else struct.pack(">BQ", 2, MAX_FRAME_BYTES)
        send_until_shut(stranger, begins, *[piece] * (200 if endless else 60))
        assert is_shut(stranger)
    until(lambda: one.state.network.cut_off == 1, "it is counted")


@pytest.mark.parametrize("options", [{}, MINIBATCH], ids=["blocks", "minibatch"])
def test_no_frame_is_larger_than_the_largest_push(tmp_path: Path, options: dict[str, Any]) -> None:
    one = shard(in_memory(tmp_path / "d", size=3000, share=0.0005), dim=256, **options)
    page = 1000 if not options else 3000
    assert largest_frame(one.state) == page * one.state.table.values.shape[1] * 4 > MIB
    (tmp_path / "run").mkdir()
    daemon = Daemon(one.core, tmp_path / "run", LOCAL, LOCAL, largest_frame=MIB)
    with served(daemon), shaken(daemon.address) as stranger:
        stranger.sendall(struct.pack(">BQ", 2, MIB + 1))
        assert is_shut(stranger)


@pytest.mark.parametrize("with_keys", [False, True])
def test_a_worker_is_not_cut_for_the_largest_push(one: Shard, tmp_path: Path, *, with_keys: bool) -> None:
    """Seen to fail with keys: CURVE makes a frame larger, and the worker was disconnected again and again."""
    make_keys(tmp_path / "keys", [Client("w0", Role.WORKER)])
    keys = load_server_keys(tmp_path / "keys") if with_keys else None
    mine = load_client_keys(tmp_path / "keys" / "w0.key", Role.WORKER) if with_keys else None
    daemon = Daemon(one.core, tmp_path / "run", LOCAL, LOCAL, keys=keys, largest_frame=10 * MIB)
    with served(daemon), RequestClient([daemon.address], "w0", one.dataset.checksum, keys=mine) as client:
        client.connect()
        replies: list[object] = []
        values = np.zeros((2560, 1024), np.float32)
        assert values.nbytes == 10 * MIB
        client.send(0, push("add", values, 0, len(values)), replies.append)
        until(lambda: (client.poll(20), replies)[1], "an answer", 30.0)
        assert code(replies[0]) == "bad-request"  # type: ignore[arg-type]
        client.part(RunEnd(Ending.LEFT))
    assert one.state.network.cut_off == 0


class LatePoller(zmq.Poller):
    """Tells a server of connections only once a message has come over one."""

    is_told = False

    def poll(self, timeout: float | None = None) -> list[tuple[Any, int]]:
        """See zmq.Poller."""
        ready = super().poll(timeout)
        if self.is_told:
            return ready
        messages = [each for each in ready if getattr(each[0], "type", None) == zmq.ROUTER]
        self.is_told = bool(messages)
        return messages


def test_a_worker_is_one_though_its_connection_is_noticed_after_its_first_message(
    one: Shard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen to fail: it was taken for a stranger, which may not send as much, and gets few bytes at a time."""
    looks: list[int] = []

    def watched(descriptor: int) -> int:
        looks.append(received_bytes(descriptor))
        return looks[-1]

    monkeypatch.setattr("glovewire.server.daemon.zmq.Poller", LatePoller)
    monkeypatch.setattr("glovewire.server.daemon.received_bytes", watched)
    large = push("add", np.zeros((2688, 1024), np.float32), 0, 2688)
    daemon = Daemon(one.core, tmp_path / "run", LOCAL, LOCAL, largest_frame=11 * MIB)
    with served(daemon), shaken(daemon.address) as worker:
        worker.sendall(message(1, m.Hello("worker", "w0", 1, one.dataset.checksum)))
        assert isinstance(answer(worker), m.Welcome)
        text = message(2, large)
        assert len(text) - MIB // 2 > STRANGER_BYTES + MIB
        worker.sendall(text[: -MIB // 2])
        until(lambda: [each for each in looks[-2:] if each > STRANGER_BYTES + MIB // 2][1:], "it is looked at twice")
        worker.sendall(text[-MIB // 2 :])
        assert code(answer(worker)) == "bad-request"
    assert one.state.network.cut_off == 0


def message(number: int, content: m.Message) -> bytes:
    """Return a message as it is sent over a connection."""
    *frames, last = [bytes(each) for each in wire.encode(number, content)]
    parts = [strangers.frame(each, more=True) for each in (b"", *frames)]
    return b"".join([*parts, strangers.frame(last, more=False)])


def answer(plain: Any) -> m.Message:
    """Receive one message from a plain connection."""
    frames, more = [], True
    while more:
        flags = strangers.exactly(plain, 1)[0]
        size = strangers.exactly(plain, 8 if flags & 2 else 1)
        frames.append(strangers.exactly(plain, int.from_bytes(size, "big")))
        more = bool(flags & 1)
    return wire.decode(frames[1:]).message


def test_whoever_is_refused_as_a_worker_may_send_no_more_than_others(one: Shard, tmp_path: Path) -> None:
    """Seen to fail: an observer that asked to be a worker, and was refused, had the limits of a worker."""
    daemon = Daemon(one.core, tmp_path / "run", LOCAL, LOCAL, largest_frame=40 * MIB)
    with served(daemon), shaken(daemon.address) as plain:
        for number, role in enumerate(("observer", "worker")):
            plain.sendall(message(number, m.Hello(role, "eye", 1, "of another dataset")))
            reply = answer(plain)
            assert isinstance(reply, m.Welcome if role == "observer" else m.Refused), reply
        send_until_shut(plain, *[strangers.frame(bytes(MIB), more=True)] * 200)
        until(lambda: one.state.network.cut_off == 1, "it is cut")
