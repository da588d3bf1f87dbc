"""The history of the stream: all of a short run, coarser the older of a long one, in bounded memory and in pages."""

from __future__ import annotations

from pathlib import Path

import pytest
from monitor_fakes import loss
from shards import in_memory, shard

from glovewire.common.errors import ProtocolError
from glovewire.common.protocol import messages as m
from glovewire.common.protocol import wire
from glovewire.common.protocol.messages import Event, LossSample, Message, WorkerSample
from glovewire.server.telemetry.history import MAX_KINDS, PAGE_BYTES, SampleHistory


def event(subject: str) -> Event:
    return Event(0.0, "joined", subject, "")


def samples_of(history: m.History) -> list[wire.Numbered]:
    return [wire.decode_header(header) for header in wire.split_headers(history.samples)]


def filled(count: int, kept: int, workers: int = 3) -> tuple[SampleHistory, list[Message]]:
    history, said = SampleHistory(kept), []
    for n in range(1, count + 1):
        name = f"w{n % (workers + 1)}" if n % (workers + 1) else "all"
        sample: Message = loss(n / 10, name, 10 * n * n, 1 / n) if n % 10 else event(str(n))
        said.append(sample)
        history.keep(n, sample, wire.encode_sample("run", n, sample)[-1])
    return history, said


def test_a_latecomer_gets_every_sample_of_a_run_that_is_not_long() -> None:
    history, said = filled(300, 4096)
    answer = history.answer("run", 0)
    found = samples_of(answer)
    assert [sample.number for sample in found] == list(range(1, 301))
    assert [sample.message for sample in found] == said
    assert (answer.last, answer.newest, set(answer.counts.tolist())) == (300, 300, {1})
    assert [sample.number for sample in samples_of(history.answer("run", 290))] == list(range(291, 301))
    assert len(history.answer("run", 300).samples) == 0
    assert history.answer("run", 999).last == 999


def test_a_long_run_is_coarser_the_further_back_and_nothing_is_lost_in_its_means() -> None:
    history, said = filled(20_000, 64)
    answer = history.answer("run", 0)
    assert len(answer.counts) < 64 * 2 * 12
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


def test_workers_that_come_and_go_under_new_names_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    history = SampleHistory(16)
    for n in range(1, 5_000):
        sample = WorkerSample(0.0, f"w{n}", "left", 1, 1.0, 1, 0.0, 0)
        history.keep(n, sample, wire.encode_sample("run", n, sample)[-1])
    assert sum(history.answer("run", 0).counts) == 4_999
    monkeypatch.setattr("glovewire.server.telemetry.history.MAX_LEVELS", 3)
    bounded = SampleHistory(16)
    for n in range(1, 5_000):
        sample = WorkerSample(0.0, f"w{n}", "left", 1, 1.0, 1, 0.0, 0)
        bounded.keep(n, sample, wire.encode_sample("run", n, sample)[-1])
    answer = bounded.answer("run", 0)
    assert (answer.last, len(answer.counts) <= 3 * (16 + MAX_KINDS)) == (4_999, True)
    assert bounded.answer("run", 4_998).counts.tolist() == [1]


def test_a_long_history_comes_in_pages(tmp_path: Path) -> None:
    one = shard(in_memory(tmp_path / "d"))
    one.tick(0.1)  # publishes numbers 1 and 2, of the run and the server
    for n in range(9_000):
        one.state.publisher.add([event(f"{n} {'x' * 400}")])
        assert len(one.state.publisher.take_due(one.now, loss, [], everything=True)) == 1
    after, found, pages = 0, [], 0
    while True:
        answer = one.ask(b"stranger", m.GetHistory(after))
        assert isinstance(answer, m.History)
        assert len(answer.samples) <= PAGE_BYTES
        found += [sample.number for sample in samples_of(answer)]
        after, pages = answer.last, pages + 1
        if answer.last == answer.newest:
            break
    assert found == [1, 2, *range(9_002 - 4096 + 1, 9_003)]
    assert pages > 1


@pytest.mark.parametrize("joined", [b"\xc1", b"\x92\x01", b"\xa5hel", b"\xdd\xff\xff\xff\xff"])
def test_headers_that_are_none_are_refused(joined: bytes) -> None:
    with pytest.raises(ProtocolError):
        list(map(wire.decode_header, wire.split_headers(joined)))
