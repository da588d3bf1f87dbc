"""What a shard says on its PUB socket: numbered, at most ten samples a second of each topic, and remembered. Pure.

Who has more to say waits for a turn (`room`); what happens all at once (fifty workers that join) goes out one after the
other. It must never make training wait: what does not fit in the queue is dropped, the oldest first, and counted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from glovewire.common.protocol import messages as m
from glovewire.common.protocol import wire
from glovewire.common.protocol.messages import Event, Message

from .history import Past

PER_SECOND = 10
MAX_WAITING = 1_000


class Stream:
    """The samples of `run`, from what is to be said to what was sent."""

    def __init__(self, run: str) -> None:
        self.past = Past()
        self.dropped = 0
        self._run = run
        self._number = 0
        self._waiting: deque[m.Message] = deque()
        self._sent = {topic: deque[float](maxlen=PER_SECOND) for topic in m.TOPICS}

    def say(self, sample: m.Message) -> None:
        """Let a sample go out as soon as its topic has room."""
        self._waiting.append(sample)
        if len(self._waiting) > MAX_WAITING:
            self._waiting.popleft()
            self.dropped += 1

    def room(self, topic: str, now: float) -> int:
        """How many samples of a topic could go out now, beside those that wait."""
        waiting = sum(sample.topic == topic for sample in self._waiting)
        return max(0, self._free(topic, now) - waiting)

    def due(self, now: float, *, everything: bool = False) -> Iterator[list[bytes]]:
        """Frames of what goes out now, as it was said; at the end `everything`, whatever the pace."""
        waiting, self._waiting = self._waiting, deque()
        for sample in waiting:
            if everything or self._free(sample.topic, now):
                yield self._send(sample, now)
            else:
                self._waiting.append(sample)

    def history(self, after: int) -> m.History:
        """The answer to a request for the samples above number `after`."""
        return self.past.answer(self._run, after)

    def _free(self, topic: str, now: float) -> int:
        return PER_SECOND - sum(t > now - 1.0 for t in self._sent[topic])

    def _send(self, sample: m.Message, now: float) -> list[bytes]:
        self._number += 1
        self._sent[sample.topic].append(now)
        frames = wire.encode_sample(self._run, self._number, sample)
        self.past.keep(self._number, sample, frames[-1])
        return frames


# ---- What is to be said on the stream: collected here, published by the daemon. No I/O; `now` is an argument.


class News:
    """Events and other samples of one shard that wait to be published; `started` is the time at which `t` is 0."""

    def __init__(self, started: float, shard: int) -> None:
        self.started, self._shard = started, shard
        self._waiting: list[Message] = []

    def say(self, now: float, kind: str, subject: str, text: str) -> None:
        """Something happened."""
        self._waiting.append(Event(now - self.started, kind, subject, text[:500]))

    def say_of_worker(self, now: float, kind: str, name: str, text: str) -> None:
        """Workers come and go at every shard; one of them tells."""
        if self._shard == 0:
            self.say(now, kind, name, text)

    def add(self, samples: Iterable[Message]) -> None:
        """Say these, too."""
        self._waiting.extend(samples)

    def take(self) -> list[Message]:
        """All that waits, which then waits no more."""
        waiting, self._waiting = self._waiting, []
        return waiting
