"""The feed: real PUB sockets, gaps counted, restarts noticed, junk refused, deadlines that name the silent."""

from __future__ import annotations

import functools
import time
from itertools import pairwise

import pytest
from monitor_fakes import Publisher, loss, until, worker

from glovewire.common.errors import DeadlineExceeded, UsageError, VersionMismatch
from glovewire.common.protocol.messages import Event, LossSample
from glovewire.common.protocol.schema import MAGIC
from glovewire.common.protocol.wire import encode_sample
from glovewire.common.transport import sockets
from glovewire.monitor.stream import feed as feeds
from glovewire.monitor.stream.feed import Feed, ReceivedSample

heard = functools.partial(Feed, history=False)
"""A feed that takes what it hears: the publisher here has no past to ask for."""


def connect(publisher: Publisher, feed: Feed) -> None:
    """Publish until the feed has heard this publisher."""

    def again() -> None:
        publisher.publish(worker("hello"))
        feed.poll(0.01)

    until(lambda: publisher.address not in feed.silent, "a subscription", again)


def take(feed: Feed, count: int) -> list[ReceivedSample]:
    got: list[ReceivedSample] = []
    until(
        lambda: len([r for r in got if isinstance(r.message, LossSample)]) >= count,
        "samples",
        lambda: got.extend(feed.poll(0.05)),
    )
    return [received for received in got if isinstance(received.message, LossSample)]


def test_samples_arrive_as_they_were_sent() -> None:
    with Publisher() as publisher, heard(publisher.address, timeout_s=60) as feed:
        connect(publisher, feed)
        publisher.publish(loss(entries=7))
        (received,) = take(feed, 1)
        assert received.message == loss(entries=7)
        assert (received.run, received.address, received.lost) == ("run-1", publisher.address, 0)


def test_a_gap_is_counted_by_number() -> None:
    with Publisher() as publisher, heard(publisher.address) as feed:
        connect(publisher, feed)
        publisher.number += 5
        publisher.publish(loss())
        (received,) = take(feed, 1)
        assert received.lost == feed.lost == 5
        assert not received.restarted


def test_who_stops_reading_sees_the_gap_by_number_while_the_publisher_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "STREAM_QUEUE_MESSAGES", 100)
    note = Event(1.0, "note", "shard 0", "x" * 1000)
    with Publisher() as publisher, heard(publisher.address) as feed:
        connect(publisher, feed)
        for _ in range(20_000):  # 20 MB, more than queues and the system's buffers hold
            publisher.publish(note)
        got: list[ReceivedSample] = []

        def again() -> None:
            publisher.publish(loss())
            got.extend(feed.poll(0.01))

        until(lambda: any(isinstance(each.message, LossSample) for each in got), "the stream, going on", again)
    numbers = [each.number for each in got]
    assert [each.lost for each in got[1:]] == [after - before - 1 for before, after in pairwise(numbers)]
    assert feed.lost == sum(each.lost for each in got) > 1000


def test_topics_that_are_left_out_are_not_gaps() -> None:
    with Publisher() as publisher, heard(publisher.address, topics=["loss"]) as feed:
        connect(publisher, feed)
        publisher.publish(worker())
        publisher.publish(loss())
        got: list[ReceivedSample] = []
        until(lambda: bool(got), "a loss", lambda: got.extend(feed.poll(0.05)))
        assert [type(received.message) for received in got] == [LossSample]
        assert feed.lost == 0


def test_a_restarted_server_is_noticed_and_followed() -> None:
    with Publisher() as first, heard(first.address) as feed:
        first.number = 100_000
        connect(first, feed)
        first.publish(Event(1.0, "finished", "shard 0", ""))
        until(lambda: feed.over, "the end", lambda: feed.poll(0.05))
        address = first.address
        first.close()
        with Publisher("run-2", address) as second:
            got: list[ReceivedSample] = []

            def again() -> None:
                second.publish(loss())
                got.extend(feed.poll(0.02))

            until(lambda: bool(got), "the second server", again)
            assert [received.restarted for received in got].count(True) == 1
            assert got[0].run == "run-2"
            assert not feed.over
            assert feed.lost == 0


def test_a_late_sample_does_not_take_the_end_of_the_run_back() -> None:
    with Publisher() as publisher, heard(publisher.address) as feed:
        connect(publisher, feed)
        publisher.publish(Event(1.0, "finished", "shard 0", ""))
        until(lambda: feed.over, "the end", lambda: feed.poll(0.05))
        publisher.number -= 2
        publisher.publish(loss())
        publisher.number += 1
        publisher.publish(loss())
        got: list[ReceivedSample] = []
        until(lambda: bool(got), "what comes after it", lambda: got.extend(feed.poll(0.05)))
        assert [(received.number, received.restarted) for received in got] == [(publisher.number, False)]
        assert feed.over


def test_iteration_ends_when_every_shard_has_finished() -> None:
    with Publisher() as first, Publisher() as second, heard([first.address, second.address]) as feed:
        connect(first, feed)
        connect(second, feed)
        first.publish(Event(1.0, "finished", "shard 0", ""))
        until(lambda: any(isinstance(r.message, Event) for r in feed.poll(0.05)), "the first end")
        assert not feed.over
        second.publish(Event(1.0, "finished", "shard 1", ""))
        assert [received.address for received in feed if isinstance(received.message, Event)] == [second.address]
        assert feed.over
        assert feed.failed is None


def test_one_failed_shard_ends_it() -> None:
    with Publisher() as first, Publisher() as second, heard([first.address, second.address]) as feed:
        connect(first, feed)
        connect(second, feed)
        first.publish(Event(1.0, "failed", "shard 0", "disk full"))
        assert list(feed)
        assert feed.failed == "disk full"


def test_the_deadline_names_who_is_silent() -> None:
    with Publisher() as talking, Publisher() as quiet:
        with heard([talking.address, quiet.address], timeout_s=1.0) as feed:
            connect(talking, feed)
            with pytest.raises(DeadlineExceeded, match=r"within 1 s") as error:
                for _ in feed:
                    pass
        assert quiet.address in str(error.value)
        assert talking.address not in str(error.value)


def test_junk_is_refused_and_the_stream_goes_on() -> None:
    with Publisher() as publisher, heard(publisher.address) as feed:
        connect(publisher, feed)
        good = encode_sample("run-1", 9, loss())
        for frames in ([b"loss"], [b"loss", good[1], b"\xff" * 40], [b"event", *good[1:]], [b"x", b"HTTP/1.1", b""]):
            publisher.send(frames)
        publisher.publish(loss())
        assert len(take(feed, 1)) == 1
        assert feed.refused == 4


def test_another_version_is_said_in_words() -> None:
    with Publisher() as publisher, heard(publisher.address) as feed:
        connect(publisher, feed)
        publisher.send([b"loss", MAGIC + b"\x63", encode_sample("r", 1, loss())[2]])
        with pytest.raises(VersionMismatch, match="version 99") as error:
            until(lambda: False, "a refusal", lambda: feed.poll(0.05))
        assert publisher.address in str(error.value)


def test_a_feed_may_be_there_before_the_server() -> None:
    with Publisher() as publisher:
        address = publisher.address
    with heard(address, timeout_s=60) as feed:
        assert feed.poll(0.01) == []
        with Publisher(address=address) as publisher:
            connect(publisher, feed)


def test_a_shard_whose_last_word_was_lost_ends_with_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    with Publisher() as first, Publisher() as second, heard([first.address, second.address]) as feed:
        connect(first, feed)
        connect(second, feed)
        first.publish(Event(1.0, "finished", "shard 0", ""))
        first.publish(loss())
        take(feed, 1)
        assert not feed.over
        monkeypatch.setattr(feeds, "LAST_WORD_S", 0.0)
        assert feed.over


class Clock:
    """Time as the feed reads it, which passes when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def passes(self, feed: Feed, seconds: int) -> None:
        """Let `seconds` pass, with a poll in each."""
        for _ in range(seconds):
            self.now += 1.0
            feed.poll()


def test_silence_of_all_ends_it_unless_one_has_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(feeds, "time", clock)
    with Publisher() as first, Publisher() as second, heard([first.address, second.address], silence_s=20.0) as feed:
        connect(first, feed)
        connect(second, feed)
        clock.now += 1000.0
        feed.poll()  # time without a poll is no silence of theirs
        clock.passes(feed, 15)
        first.publish(loss())
        take(feed, 1)  # one of them is enough
        with pytest.raises(DeadlineExceeded, match=r"for 20 s, and no finished event") as error:
            clock.passes(feed, 30)
        assert first.address in str(error.value)
        first.publish(Event(1.0, "finished", "shard 0", ""))
        until(lambda: any(isinstance(r.message, Event) for r in feed.poll(0.05)), "the first end")
        clock.passes(feed, 30)
        assert feed.over


def test_a_flood_does_not_hold_a_poll_for_ever() -> None:
    with Publisher() as publisher, heard(publisher.address) as feed:
        connect(publisher, feed)
        for entries in range(5_000):
            publisher.publish(loss(entries=entries))
        started = time.monotonic()
        assert len(take(feed, 5_000)) == 5_000
        assert time.monotonic() - started < 20


@pytest.mark.parametrize(
    ("addresses", "topics", "says"),
    [([], ["loss"], "address"), (["nowhere"], ["loss"], "tcp://HOST:PORT"), (["tcp://127.0.0.1:1"], ["los"], "topic")],
)
def test_wrong_use_is_told_before_anything_is_opened(addresses: list[str], topics: list[str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        heard(addresses, topics)


def test_closing_twice_is_fine() -> None:
    feed = Feed("tcp://127.0.0.1:1")
    feed.close()
    feed.close()
