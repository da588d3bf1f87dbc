"""What is to be said on the stream: collected here, published by the daemon. No I/O; `now` is an argument."""

from __future__ import annotations

from collections.abc import Iterable

from common.messages import Event, Message


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
