"""Nothing twice, nothing left out: latecomers and the cut off get the samples that they lack, and numbers prove it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from monitor_fakes import loss, server_sample, until, worker
from shards import MINIBATCH, in_memory, served, shard

from glovewire.common.errors import ProtocolError
from glovewire.common.protocol.messages import Event, History, Message
from glovewire.common.protocol.wire import Numbered, encode_sample
from glovewire.common.transport.sockets import Context, has_message, receive, send
from glovewire.monitor.stream.feed import Feed, ReceivedSample
from glovewire.monitor.stream.reassembly import ANSWER_WAIT_S, MAX_HELD, PORT_WAIT_S, Reassembly
from glovewire.server.daemon import Daemon

TELLS_PORT = server_sample(1.0, 0, 1, 10, 0, 0, port=5)


class Stream:
    """A publisher that sends sample after sample and remembers them."""

    def __init__(self, run: str = "run") -> None:
        self.run, self.sent = run, [TELLS_PORT]

    def say(self, message: Message | None = None) -> Numbered:
        self.sent.append(message or loss(entries=len(self.sent)))
        return Numbered(len(self.sent) - 1, self.sent[-1], self.run)

    def past(self, after: int, last: int | None = None, leave_out: Sequence[int] = ()) -> History:
        newest = len(self.sent) - 1
        last = newest if last is None else last
        numbers = [n for n in range(after + 1, last + 1) if n not in leave_out]
        headers = b"".join(encode_sample(self.run, n, self.sent[n])[-1] for n in numbers)
        return History(self.run, last, newest, np.ones(len(numbers), np.int64), np.frombuffer(headers, np.uint8))


@pytest.fixture
def stream() -> Stream:
    return Stream()


@pytest.fixture
def reassembly() -> Reassembly:
    return Reassembly("tcp://here:1", history=True)


def numbers(received: Iterator[ReceivedSample] | list[ReceivedSample]) -> list[int]:
    return [each.number for each in received]


def test_who_is_there_from_the_beginning_waits_for_nothing(reassembly: Reassembly, stream: Stream) -> None:
    assert [numbers(reassembly.receive(stream.say(), 0.0)) for _ in range(3)] == [[1], [2], [3]]
    assert reassembly.missing_after is None


def test_a_latecomer_gets_the_past_in_pages_and_then_what_it_held(reassembly: Reassembly, stream: Stream) -> None:
    for _ in range(9):
        stream.say()
    assert list(reassembly.receive(stream.say(), 0.0)) == []
    assert reassembly.missing_after is None, "the request port is unknown"
    assert list(reassembly.receive(stream.say(TELLS_PORT), 0.1)) == []
    assert reassembly.missing_after == 0
    first = list(reassembly.fill(stream.past(0, 6), 0, 0.2))
    assert numbers(first) == [1, 2, 3, 4, 5, 6]
    assert all(received.past for received in first)
    assert reassembly.missing_after == 6
    assert list(reassembly.receive(stream.say(), 0.3)) == []
    rest = list(reassembly.fill(stream.past(6), 6, 0.4))
    assert numbers(rest) == [7, 8, 9, 10, 11, 12]
    assert [received.past for received in rest] == [True] * 3 + [False] * 3
    assert (reassembly.lost, reassembly.missed, reassembly.missing_after) == (0, 0, None)


def test_a_cut_leaves_a_counted_gap_that_the_past_fills(reassembly: Reassembly, stream: Stream) -> None:
    list(reassembly.receive(stream.say(TELLS_PORT), 0.0))
    for _ in range(20):
        stream.say()
    assert list(reassembly.receive(stream.say(), 10.0)) == []
    assert (reassembly.lost, reassembly.missed, reassembly.missing_after) == (20, 20, 1)
    assert numbers(reassembly.fill(stream.past(1), 1, 10.1)) == list(range(2, 23))
    assert (reassembly.lost, reassembly.filled) == (0, 20)


def test_what_the_past_lacks_stays_counted_and_a_second_hole_is_filled_after_the_first(
    reassembly: Reassembly, stream: Stream
) -> None:
    list(reassembly.receive(stream.say(TELLS_PORT), 0.0))
    for number in range(2, 10):
        sample = stream.say()
        if number in (5, 6, 9):
            assert list(reassembly.receive(sample, 1.0)) == []
    found = list(reassembly.fill(stream.past(1, leave_out=[3]), 1, 1.1))
    assert numbers(found) == [2, 4, 5, 6]
    assert [received.lost for received in found] == [0, 0, 1, 0]
    assert reassembly.missing_after == 6
    assert numbers(reassembly.fill(stream.past(6), 6, 1.2)) == [7, 8, 9]
    assert reassembly.lost == 1


def test_waiting_for_missing_samples_has_a_deadline(reassembly: Reassembly, stream: Stream) -> None:
    stream.say()
    list(reassembly.receive(stream.say(), 0.0))
    assert list(reassembly.give_up(PORT_WAIT_S)) == []
    assert numbers(reassembly.give_up(PORT_WAIT_S + 0.1)) == [2]
    assert reassembly.lost == 0, "what was before us is past, not missed"
    list(reassembly.receive(stream.say(TELLS_PORT), 2.0))
    stream.say()
    list(reassembly.receive(stream.say(), 3.0))
    assert list(reassembly.give_up(3.0 + ANSWER_WAIT_S)) == []
    (received,) = reassembly.give_up(3.1 + ANSWER_WAIT_S)
    assert (received.number, received.lost, reassembly.lost) == (5, 1, 1)


def test_what_is_held_back_has_a_bound(reassembly: Reassembly, stream: Stream) -> None:
    stream.say()
    given = [received for _ in range(MAX_HELD + 1) for received in reassembly.receive(stream.say(), 0.0)]
    assert numbers(given) == list(range(2, MAX_HELD + 3))


def test_a_restarted_server_releases_what_was_held_and_has_a_past_of_its_own(
    reassembly: Reassembly, stream: Stream
) -> None:
    list(reassembly.receive(stream.say(TELLS_PORT), 0.0))
    stream.say()
    list(reassembly.receive(stream.say(), 0.0))
    other = Stream("other")
    for _ in range(4):
        other.say()
    assert numbers(reassembly.receive(other.say(TELLS_PORT), 1.0)) == [3]
    assert reassembly.missing_after == 0
    assert list(reassembly.fill(stream.past(0), 0, 1.1)) == [], "an answer of the run before"
    found = list(reassembly.fill(other.past(0), 0, 1.2))
    assert numbers(found) == [1, 2, 3, 4, 5]
    assert [received.restarted for received in found] == [True] + [False] * 4


def heard(reassembly: Reassembly, sent: Sequence[Numbered]) -> list[ReceivedSample]:
    return [received for sample in sent for received in reassembly.receive(sample, 0.0)]


@pytest.mark.parametrize("seed", range(20))
def test_samples_that_overtake_each_other_are_put_in_order_without_asking_for_any(
    reassembly: Reassembly, stream: Stream, seed: int
) -> None:
    said = [stream.say(TELLS_PORT), *(stream.say() for _ in range(30))]
    later = np.random.default_rng(seed).permutation(30) + 1
    got = heard(reassembly, [said[0], *(said[at] for at in later), *(said[at] for at in later)])
    assert numbers(got) == list(range(1, 32))
    assert not any(received.lost or received.restarted for received in got)
    assert (reassembly.lost, reassembly.missing_after) == (0, None)


def test_a_late_sample_fills_its_part_of_a_hole_and_leaves_the_rest(reassembly: Reassembly, stream: Stream) -> None:
    said = [stream.say(TELLS_PORT), *(stream.say() for _ in range(9))]
    assert numbers(heard(reassembly, [said[0], said[9]])) == [1]
    assert reassembly.lost == 8
    assert heard(reassembly, [said[5]]) == []
    assert (reassembly.lost, reassembly.missing_after) == (4, 1)
    assert numbers(reassembly.fill(stream.past(1, last=5, leave_out=[3]), 1, 0.1)) == [2, 4, 5, 6]
    assert (reassembly.lost, reassembly.missing_after) == (1 + 3, 6)
    assert numbers(reassembly.give_up(0.2 + ANSWER_WAIT_S)) == [10]
    assert heard(reassembly, said) == [], "their turn is over"
    assert reassembly.lost == 4


def test_the_answer_to_a_gap_that_has_closed_leaves_the_next_one_to_be_asked_for(
    reassembly: Reassembly, stream: Stream
) -> None:
    said = [stream.say(TELLS_PORT), *(stream.say() for _ in range(2))]
    assert numbers(heard(reassembly, [said[0], said[2]])) == [1]
    asked_after, answer = reassembly.missing_after, stream.past(1)
    assert asked_after == 1
    stream.say()
    assert numbers(heard(reassembly, [stream.say(), said[1]])) == [2, 3]
    assert reassembly.missing_after == 3
    assert list(reassembly.fill(answer, asked_after, 0.1)) == []
    assert numbers(reassembly.fill(stream.past(3), 3, 0.2)) == [4, 5]
    assert reassembly.lost == 0


def test_an_end_stays_an_end_whatever_comes_late(reassembly: Reassembly, stream: Stream) -> None:
    said = [stream.say(TELLS_PORT), stream.say(), stream.say(Event(9.0, "finished", "shard 0", ""))]
    assert numbers(heard(reassembly, [said[0], said[2], said[1]])) == [1, 2, 3]
    assert reassembly.finished
    assert heard(reassembly, said) == []
    assert reassembly.finished


def test_a_late_sample_of_the_life_before_is_none_of_this_one(reassembly: Reassembly, stream: Stream) -> None:
    late, other = stream.say(), Stream("other")
    got = heard(reassembly, [stream.say(), other.say(TELLS_PORT), late, other.say()])
    assert reassembly.run == "other"
    assert [(each.run, each.number) for each in got] == [("run", 2), ("other", 1), ("other", 2)]
    assert [each.restarted for each in got] == [False, True, False]


class Forwarder:
    """Stands between a publisher and its subscribers at `address`; passes on or drops what has arrived."""

    def __init__(self, context: Context, publisher: str) -> None:
        self._upstream = context.subscriber(publisher)
        self._downstream, self.address = context.publisher("tcp://127.0.0.1:0")
        self.dropped = 0

    def forward(self) -> None:
        while has_message(self._upstream):
            send(self._downstream, receive(self._upstream))

    def drop(self) -> None:
        while has_message(self._upstream):
            receive(self._upstream)
            self.dropped += 1


def test_with_a_real_server_a_latecomer_has_every_sample_and_a_cut_is_filled(tmp_path: Path) -> None:
    one = shard(in_memory(tmp_path / "d"), out=tmp_path, now=time.monotonic(), **MINIBATCH)
    daemon = Daemon(one.core, tmp_path, "tcp://127.0.0.1:0", "tcp://127.0.0.1:0")
    with served(daemon), Context() as context:
        between = Forwarder(context, daemon.stream_address)
        until(lambda: between.dropped >= 3, "samples before the subscriber", between.drop)
        with Feed(between.address, timeout_s=60) as feed:
            got: list[ReceivedSample] = []

            def listen() -> None:
                between.forward()
                got.extend(feed.poll(0.05))

            until(lambda: len(got) >= 5, "the past, and then the stream", listen)
            before = between.dropped
            until(lambda: between.dropped >= before + 3, "samples that the cut hides", between.drop)
            until(lambda: feed.filled >= 2, "what was cut", listen)
        assert numbers(got) == list(range(1, len(got) + 1))
        assert {received.past for received in got} == {True, False}
        assert (feed.lost, sum(received.lost for received in got)) == (0, 0)


def test_an_answer_that_is_none_costs_the_past_and_nothing_else(reassembly: Reassembly, stream: Stream) -> None:
    list(reassembly.receive(stream.say(TELLS_PORT), 0.0))
    stream.say(worker())
    list(reassembly.receive(stream.say(), 0.0))
    junk = History("run", 2, 3, np.ones(1, np.int64), np.frombuffer(b"\xc1\xff", np.uint8))
    with pytest.raises(ProtocolError):
        list(reassembly.fill(junk, 1, 0.1))
    assert numbers(reassembly.give_up(0.1, at_once=True)) == [3]
