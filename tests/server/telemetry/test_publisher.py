"""The stream: ten samples a second of a topic, whatever happens; numbered; and all of it still there for latecomers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from monitor_fakes import loss
from shards import ASYNC, code, in_memory, shard

from glovewire.common.endings import Ending
from glovewire.common.errors import ProtocolError
from glovewire.common.protocol import messages as m
from glovewire.common.protocol import wire
from glovewire.common.protocol.messages import Event, LossSample, Message, WorkerSample
from glovewire.server.telemetry.history import PAGE_BYTES, Past
from glovewire.server.telemetry.publisher import MAX_WAITING, PER_SECOND, Stream
from glovewire.server.telemetry.status import Roll


def sent(stream: Stream, now: float, *, everything: bool = False) -> list[wire.Numbered]:
    return [wire.decode_sample(frames) for frames in stream.due(now, everything=everything)]


def event(subject: str) -> Event:
    return Event(0.0, "joined", subject, "")


def samples_of(past: m.History) -> list[wire.Numbered]:
    return [wire.decode_header(header) for header in wire.split_headers(past.samples)]


# ---- ten a second


def test_fifty_that_join_at_once_are_told_one_after_the_other_in_order() -> None:
    stream = Stream("run")
    for n in range(50):
        stream.say(event(f"w{n}"))
    stream.say(loss())
    times: dict[str, float] = {}
    for tick in range(600):
        for sample in sent(stream, tick / 100):
            times[getattr(sample.message, "subject", "loss")] = tick / 100
    assert times.pop("loss") == 0.0, "another topic does not wait"
    assert list(times) == [f"w{n}" for n in range(50)]
    assert max(Counter(int(t) for t in times.values()).values()) == PER_SECOND


def test_at_the_end_everything_is_said_and_the_queue_has_a_bound() -> None:
    stream = Stream("run")
    for n in range(MAX_WAITING + 5):
        stream.say(event(f"w{n}"))
    found = sent(stream, 0.0, everything=True)
    assert [sample.number for sample in found] == list(range(1, MAX_WAITING + 1))
    assert stream.dropped == 5


@pytest.mark.parametrize("workers", [2, 50])
def test_each_worker_has_its_turn_and_news_of_a_state_go_first(tmp_path: Path, workers: int) -> None:
    one = shard(in_memory(tmp_path / "d"), lease_s=40.0, **ASYNC)
    for n in range(workers):
        one.hello(f"w{n}")
    roll, told = Roll(), []
    for tick in range(100):
        one.now = tick / 10
        for n in range(workers):
            if n or tick < 50:
                one.state.sessions.of(f"w{n}".encode(), one.now)
        said = roll.call(one.core, one.now, PER_SECOND // 10)
        told += [(tick, sample.worker, sample.state) for sample in said]
    assert len(told) <= 100
    counts = Counter(name for _, name, _ in told)
    assert len(counts) == workers
    assert max(counts.values()) - min(counts.values()) <= 1
    one.now = 16.0  # w0 was last heard at 4.9 s: a quarter of its lease ago
    for n in range(1, workers):
        one.state.sessions.of(f"w{n}".encode(), one.now)
    late, _ = one.state.sessions.watch(one.now, 40.0)
    assert [session.name for session in late] == ["w0"]
    assert [(s.worker, s.state) for s in roll.call(one.core, one.now, 1)] == [("w0", "late")]


def test_a_worker_that_goes_is_said_to_have_gone(tmp_path: Path) -> None:
    one = shard(in_memory(tmp_path / "d"), lease_s=3.0)
    one.hello("w0")
    one.hello("w1")
    one.ask(b"w1", m.Leave(Ending.COMPLETE))
    one.tick(3.1)
    states = [(s.worker, s.state) for s in one.core.samples(one.now) if isinstance(s, WorkerSample)]
    assert states == [("w1", "left"), ("w0", "lost")]


# ---- the past


def filled(count: int, kept: int, workers: int = 3) -> tuple[Past, list[Message]]:
    past, said = Past(kept), []
    for n in range(1, count + 1):
        name = f"w{n % (workers + 1)}" if n % (workers + 1) else "all"
        sample: Message = loss(n / 10, name, 10 * n * n, 1 / n) if n % 10 else event(str(n))
        said.append(sample)
        past.keep(n, sample, wire.encode_sample("run", n, sample)[-1])
    return past, said


def test_a_latecomer_gets_every_sample_of_a_run_that_is_not_long() -> None:
    past, said = filled(300, 4096)
    answer = past.answer("run", 0)
    found = samples_of(answer)
    assert [sample.number for sample in found] == list(range(1, 301))
    assert [sample.message for sample in found] == said
    assert (answer.last, answer.newest, set(answer.counts.tolist())) == (300, 300, {1})
    assert [sample.number for sample in samples_of(past.answer("run", 290))] == list(range(291, 301))
    assert len(past.answer("run", 300).samples) == 0
    assert past.answer("run", 999).last == 999


def test_a_long_run_is_coarser_the_further_back_and_nothing_is_lost_in_its_means() -> None:
    past, said = filled(20_000, 64)
    assert len(past) < 64 * 2 * 12
    answer = past.answer("run", 0)
    found = samples_of(answer)
    events = [sample for sample in found if isinstance(sample.message, Event)]
    assert [int(e.message.subject) for e in events] == list(range(20_000 - 640 + 10, 20_001, 10))  # type: ignore[attr-defined]
    stands_for = dict(zip((s.number for s in found), answer.counts.tolist(), strict=True))
    assert sum(stands_for.values()) == 20_000 - (2_000 - len(events))
    assert stands_for[20_000] == 1
    assert max(stands_for.values()) >= 64

    for name in ("all", "w1"):
        merged = [s.message for s in found if isinstance(s.message, LossSample) and s.message.worker == name]
        whole = [s for s in said if isinstance(s, LossSample) and s.worker == name]
        assert total(merged) == pytest.approx(total(whole), rel=1e-9)


def total(samples: list[LossSample]) -> float:
    """The sum that the means are of."""
    before, found = 0, 0.0
    for sample in samples:
        found += sample.loss * (sample.entries - before)
        before = sample.entries
    return found


def test_workers_that_come_and_go_under_new_names_do_not_fill_the_memory() -> None:
    past = Past(16)
    for n in range(1, 5_000):
        sample = WorkerSample(0.0, f"w{n}", "left", 1, 1.0, 1, 0.0, 0)
        past.keep(n, sample, wire.encode_sample("run", n, sample)[-1])
    assert sum(past.answer("run", 0).counts) == 4_999
    assert len(past._topics["worker"][0].alone) <= 1024


def test_a_long_past_comes_in_pages(tmp_path: Path) -> None:
    one = shard(in_memory(tmp_path / "d"))
    for n in range(9_000):
        one.state.publisher.say(event(f"{n} {'x' * 400}"))
        assert len(list(one.state.publisher.due(float(n)))) == 1
    after, found, pages = 0, [], 0
    while True:
        answer = one.ask(b"anybody", m.GetHistory(after))
        assert isinstance(answer, m.History)
        assert len(answer.samples) <= PAGE_BYTES
        found += [sample.number for sample in samples_of(answer)]
        after, pages = answer.last, pages + 1
        if answer.last == answer.newest:
            break
    assert found == list(range(9_000 - 4096 + 1, 9_001))
    assert pages > 1


def test_anybody_may_ask_what_rows_stand_for(tmp_path: Path) -> None:
    one = shard(in_memory(tmp_path / "d"), number=1, shards=2)
    table, dataset = one.state.table, one.dataset
    answer = one.ask(b"anybody", m.GetWords(table.first, table.last))
    assert isinstance(answer, m.Words)
    words = bytes(answer.words).decode().splitlines()
    assert words == [dataset.words[word] for word in dataset.permutation[table.first : table.last]]
    assert code(one.ask(b"anybody", m.GetWords(0, table.last))) == "bad-request"
    assert np.size(words) == len(table.values)


@pytest.mark.parametrize("joined", [b"\xc1", b"\x92\x01", b"\xa5hel", b"\xdd\xff\xff\xff\xff"])
def test_headers_that_are_none_are_refused(joined: bytes) -> None:
    with pytest.raises(ProtocolError):
        list(map(wire.decode_header, wire.split_headers(joined)))
