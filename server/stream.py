"""What a shard says on its PUB socket: numbered, at most ten samples a second of each topic, and remembered. Pure.

Who has more to say waits for a turn (`room`); what happens all at once (fifty workers that join) goes out one after the
other. It must never make training wait: what does not fit in the queue is dropped, the oldest first, and counted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from common import messages as m
from common import wire

from .past import Past

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

    def history(self, after: int) -> m.Past:
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
