"""A pull is deferred while too much is on its way to its peer; a peer that never reads does not hold up others."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from processes import until
from shards import MINIBATCH, in_memory, pull, served, shard

from glovewire.common.endings import Ending
from glovewire.common.protocol import messages as m
from glovewire.common.protocol import wire
from glovewire.common.transport import sockets
from glovewire.common.transport.client import RequestClient
from glovewire.server import limits as outbox
from glovewire.server.daemon import Daemon
from glovewire.server.limits import Outbox, Tracker

BIG = outbox.PEER_BYTES


class Frame:
    """On its way until `done` is set."""

    done = False


def sent(box: Outbox, peer: bytes, nbytes: int, now: float = 0.0) -> Frame:
    frame = Frame()
    box.sent(peer, [(frame, nbytes)], now)
    return frame


def test_who_has_much_on_its_way_waits_until_it_has_left() -> None:
    box = Outbox({b"a"})
    assert box.has_room(b"a", 0.0)
    frame = sent(box, b"a", BIG)
    assert not box.has_room(b"a", 0.0)
    assert box.has_room(b"b", 0.0)
    for number in (1, 2, 1):
        box.defer(b"a", number, pull())
    assert box.has_deferred
    assert box.ready(0.0) == []
    frame.done = True
    assert [number for _, number, _, _ in box.ready(0.0)] == [1]
    assert [number for _, number, _, _ in box.ready(0.0)] == [2]
    assert not box.has_deferred


def test_all_together_are_bounded_but_those_who_never_read_do_not_count() -> None:
    workers = [b"%d" % n for n in range(outbox.TOTAL_BYTES // BIG)]
    box = Outbox({b"new", *workers})
    for worker in workers:
        sent(box, worker, BIG)
    assert not box.has_room(b"new", 0.5)
    assert box.has_room(b"new", 0.5 + outbox.STUCK_S)
    assert not box.has_room(b"0", 0.5 + outbox.STUCK_S)
    assert not box.is_full(b"0")
    sent(box, b"0", 4 * BIG)
    assert box.is_full(b"0")


def test_those_who_are_no_workers_share_a_bound_whether_they_read_or_not() -> None:
    """Seen to fail: what was for peers that had stopped reading counted for nothing, and forty held a gigabyte."""
    workers = {b"w"}
    box = Outbox(workers)
    frames = [sent(box, b"%d" % n, 1 << 20) for n in range(outbox.OTHERS_BYTES >> 20)]
    late = 10 * outbox.STUCK_S
    assert not box.has_room(b"new", late)
    assert box.is_full(b"new")
    assert box.has_room(b"w", late)
    assert not box.is_full(b"w")
    frames[0].done = True
    box.ready(late)
    assert box.has_room(b"new", late)
    workers.clear()
    sent(box, b"1", 1 << 20)
    assert not box.has_room(b"w", late)


def test_pulls_that_are_put_off_are_bounded() -> None:
    box = Outbox({b"a"})
    frame = sent(box, b"a", BIG)
    for number in range(10 * outbox.MAX_DEFERRED):
        box.defer(b"a", number, pull())
    frame.done = True
    ready = 0
    while box.ready(0.0):
        ready += 1
    assert ready == outbox.MAX_DEFERRED


class WatchedOutbox(Outbox):
    """Remembers the most bytes that were ever on their way to one peer."""

    def __init__(self, workers: set[bytes]) -> None:
        super().__init__(workers)
        self.most = 0
        self.frames: dict[bytes, list[tuple[Tracker, int]]] = {}

    def sent(self, peer: bytes, frames: Sequence[tuple[Tracker, int]], now: float) -> None:
        super().sent(peer, frames, now)
        queued = self.frames.setdefault(peer, [])
        queued.extend(frames)
        self.most = max(self.most, sum(nbytes for tracker, nbytes in queued if not tracker.done))


def test_pulls_that_are_put_off_hold_few_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger's could hold 2 GB: 32 pulls of 64 MiB of row numbers."""
    monkeypatch.setattr(outbox, "DEFERRED_BYTES", 80)
    monkeypatch.setattr(outbox, "TOTAL_DEFERRED_BYTES", 200)
    box = Outbox({b"a", b"b"})
    frames = [sent(box, peer, BIG) for peer in (b"a", b"b")]
    for number in (1, 2, 3):
        box.defer(b"a", number, pull(rows=[0] * 5))
    box.defer(b"b", 1, pull(rows=[0] * 15))
    box.defer(b"b", 2, pull(rows=[0]))
    box.defer(b"b", 3, pull())
    for frame in frames:
        frame.done = True
    found = [(peer, number) for _ in range(5) for peer, number, *_ in box.ready(0.0)]
    assert found == [(b"a", 1), (b"b", 1), (b"a", 2), (b"b", 3)]
    box.defer(b"b", 4, pull(rows=[0] * 25))
    assert [number for _, number, *_ in box.ready(0.0)] == [4], "the bytes of those answered are free again"


def test_a_worker_that_never_reads_gets_no_more_and_harms_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks for a hundred times as much as may be on its way to it; another worker is served as ever."""
    monkeypatch.setattr(outbox, "PEER_BYTES", 1 << 20)
    dataset = in_memory(tmp_path / "d", size=400)
    (tmp_path / "run").mkdir()
    one = shard(dataset, out=tmp_path / "run", now=time.monotonic(), dim=496, **MINIBATCH)
    monkeypatch.setattr("glovewire.server.daemon.Outbox", WatchedOutbox)
    daemon = Daemon(one.core, tmp_path / "run", "tcp://127.0.0.1:0", "tcp://127.0.0.1:0")
    box, everything = daemon._outbox, pull(0, 400)
    assert isinstance(box, WatchedOutbox)
    with served(daemon), sockets.Context() as context, RequestClient([daemon.address], "w", dataset.checksum) as client:
        deaf = context.dealer(daemon.address)
        for number, message in enumerate([m.Hello("worker", "deaf", 1, dataset.checksum), *[everything] * 200], 1):
            sockets.send(deaf, [b"", *wire.encode(number, message)])
        client.connect()
        until(lambda: box.has_deferred, "a pull is deferred")
        for _ in range(20):
            assert isinstance(client.ask(0, everything), m.Rows)
        assert box.most < 4 << 20
        assert one.state.counters["pulls"] < 200, "the deaf one alone asked for 200"
        client.ask(0, m.Leave(Ending.LEFT))
