"""When samples leave: ten a second of a topic, whatever happens, numbered; periodic ones when their time has come."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from monitor_fakes import loss
from shards import MINIBATCH, in_memory, shard

from glovewire.common.endings import Ending
from glovewire.common.protocol import messages as m
from glovewire.common.protocol import wire
from glovewire.common.protocol.messages import Event, WorkerSample
from glovewire.server.sessions import Session, Sessions
from glovewire.server.telemetry.publisher import MAX_QUEUED, PER_SECOND, SERVER_EVERY_S, Publisher, WorkerTurns


def server_sample() -> m.Message:
    return Event(0.0, "server", "", "")


def publisher(shard: int = 1) -> Publisher:
    """One that has just taken its periodic samples."""
    made = Publisher("run", shard, 0.0)
    made.take_due(0.0, server_sample, [], everything=True)
    return made


def sent(of: Publisher, now: float, *, everything: bool = False) -> list[wire.Numbered]:
    published = of.take_due(now, loss, [], everything=everything)
    found = [wire.decode_sample(each.frames) for each in published]
    assert [each.sample for each in published] == [each.message for each in found]
    return found


def event(subject: str) -> Event:
    return Event(0.0, "joined", subject, "")


def test_fifty_that_join_at_once_are_told_one_after_the_other_in_order() -> None:
    one = publisher()
    one.add([*(event(f"w{n}") for n in range(50)), m.QualitySample(0.0, 1, "test", 1.0)])
    times: dict[str, float] = {}
    for tick in range(200, 800):
        for sample in sent(one, tick / 100):
            times[getattr(sample.message, "subject", sample.message.topic)] = tick / 100
    assert times.pop("quality") == 2.0, "another topic does not wait"
    assert times.pop("loss") > 0
    assert list(times) == [f"w{n}" for n in range(50)]
    assert max(Counter(int(t) for t in times.values()).values()) == PER_SECOND


def test_at_the_end_everything_is_published_and_the_queue_has_a_bound() -> None:
    one = publisher()
    one.add(event(f"w{n}") for n in range(MAX_QUEUED + 5))
    found = sent(one, 0.0, everything=True)
    assert [sample.number for sample in found] == list(range(2, MAX_QUEUED + 2))
    assert found[0].message == event("w5")


def test_the_server_is_sampled_twice_a_second() -> None:
    one = publisher()
    times = [tick / 100 for tick in range(500) if sent(one, tick / 100)]
    assert times == [pytest.approx(n * SERVER_EVERY_S) for n in range(1, 10)]


@pytest.mark.parametrize(("shard", "expected"), [(0, {"w0", "w1"}), (1, set())])
def test_shard_0_alone_publishes_workers_and_their_events(shard: int, expected: set[str]) -> None:
    one = publisher(shard)
    workers = [Session(f"w{n}", 1, "worker", n, b"", 0.0, 0.0) for n in range(2)]
    one.worker_event(0.1, "joined", workers[0], "")
    found = [each.sample for each in one.take_due(0.2, loss, workers)]
    assert {sample.worker for sample in found if isinstance(sample, WorkerSample)} == expected
    assert any(isinstance(sample, Event) for sample in found) == bool(expected)


@pytest.mark.parametrize("count", [2, 50])
def test_each_worker_has_its_turn_and_changed_states_go_first(count: int) -> None:
    sessions = Sessions()
    for n in range(count):
        sessions.open(m.Hello("worker", f"w{n}", 1, ""), f"w{n}".encode(), 0.0)
    turns, told = WorkerTurns(), []
    for tick in range(100):
        now = tick / 10
        for n in range(count):
            if n or tick < 50:
                sessions.of(f"w{n}".encode(), now)
        told += [session.name for session in turns.take(sessions.workers, now, PER_SECOND // 10)]
    assert len(told) <= 100
    counts = Counter(told)
    assert len(counts) == count
    assert max(counts.values()) - min(counts.values()) <= 1
    for n in range(1, count):
        sessions.of(f"w{n}".encode(), 16.0)
    late, _ = sessions.watch(16.0, 40.0)  # w0 was last heard at 4.9 s: a quarter of its lease ago
    assert [session.name for session in late] == ["w0"]
    assert [(s.name, s.state) for s in turns.take(sessions.workers, 16.0, 1)] == [("w0", "late")]


def test_a_worker_that_goes_is_said_to_have_gone(tmp_path: Path) -> None:
    one = shard(in_memory(tmp_path / "d"), lease_s=3.0)
    one.hello("w0")
    one.hello("w1")
    one.ask(b"w1", m.Leave(Ending.COMPLETE))
    one.tick(3.1)
    states = [(s.worker, s.state) for s in one.samples if isinstance(s, WorkerSample)]
    assert states[0] == ("w1", "left")
    assert states[-1] == ("w0", "lost")
    assert one.events("left") == ["w1"]


def test_what_is_queued_comes_before_the_end(tmp_path: Path) -> None:
    one = shard(in_memory(tmp_path / "d"), **MINIBATCH)
    for n in range(30):
        one.hello(f"w{n}")
    one.tick(0.1)
    assert len(one.events("joined")) == PER_SECOND
    one.carry_out(one.core.announce(one.now, "finished", "complete"))
    assert [s.subject for s in one.samples if isinstance(s, Event)] == [*(f"w{n}" for n in range(30)), "shard 0"]
