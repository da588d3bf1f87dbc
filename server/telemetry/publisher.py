"""Decide what a shard publishes on its stream, and when. No I/O; `now` is an argument.

At most ten samples a second of each topic leave a shard. Periodic samples are taken when there is room for them; a
burst of events (fifty workers that join) is queued and sent at that rate. Publishing never delays training: when the
queue is full, its oldest samples are dropped.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from glovewire.common.errors import ProtocolError
from glovewire.common.protocol import messages as m
from glovewire.common.protocol import wire
from glovewire.common.text import printable

from ..sessions import Session
from .history import SampleHistory

PER_SECOND = 10
MAX_QUEUED = 1_000
SERVER_EVERY_S = WORKER_EVERY_S = 0.5
TURNS_EVERY_S = 0.1
NEVER = -1e9


class Published(NamedTuple):
    """A sample, the run it belongs to, and the frames to send for it."""

    run: str
    sample: m.Message
    frames: list[bytes]


class Publisher:
    """The stream of shard `shard` in `run`: a queue of samples, their numbers, and the history of those sent.

    `started` is the time at which `t` is 0.
    """

    def __init__(self, run: str, shard: int, started: float) -> None:
        self._run, self._shard, self._started = run, shard, started
        self._history = SampleHistory()
        self._number = 0
        self._queue: deque[m.Message] = deque(maxlen=MAX_QUEUED)
        self._sent = {topic: deque[float](maxlen=PER_SECOND) for topic in m.TOPICS}
        self._turns = WorkerTurns()
        self._sampled = self._turned = NEVER

    def elapsed(self, now: float) -> float:
        """Return `t`, the seconds since the start."""
        return now - self._started

    def event(self, now: float, kind: str, subject: str, text: str) -> None:
        """Queue an event."""
        self.add([m.Event(self.elapsed(now), kind, subject, printable(text, m.MAX_EXPLANATION))])

    def worker_event(self, now: float, kind: str, session: Session, text: str) -> None:
        """On shard 0, queue an event about a worker and, when it left or was lost, its last sample; else do nothing."""
        if self._shard == 0:
            self.event(now, kind, session.name, text)
            if kind in ("left", "lost"):
                self.add([worker_sample(session, self.elapsed(now), now, kind)])

    def add(self, samples: Iterable[m.Message]) -> None:
        """Queue samples."""
        self._queue.extend(samples)

    def take_due(
        self,
        now: float,
        sample_server: Callable[[], m.Message],
        workers: Sequence[Session],
        *,
        everything: bool = False,
    ) -> list[Published]:
        """Remove from the queue what may be published now and return it in order; `everything` ignores the rate.

        First queues the periodic samples of the server and of workers that are due.
        """
        if now - self._sampled >= SERVER_EVERY_S:
            self._sampled = now
            self.add([sample_server()])
        if self._shard == 0 and now - self._turned >= TURNS_EVERY_S:
            self._turned = now
            room = self._room("worker", now) - sum(sample.topic == "worker" for sample in self._queue)
            due = self._turns.take(workers, now, max(room, 0))
            self.add([worker_sample(session, self.elapsed(now), now, session.state) for session in due])
        queue, published = list(self._queue), []
        self._queue.clear()
        for sample in queue:
            if not everything and not self._room(sample.topic, now):
                self._queue.append(sample)
                continue
            with suppress(ProtocolError):  # a sample that cannot be encoded is dropped: it must not end the server
                published.append(self._publish(sample, now))
        return published

    def history(self, after: int) -> m.History:
        """Return the answer to a request for the samples above number `after`."""
        return self._history.answer(self._run, after)

    def _room(self, topic: str, now: float) -> int:
        return PER_SECOND - sum(t > now - 1.0 for t in self._sent[topic])

    def _publish(self, sample: m.Message, now: float) -> Published:
        frames = wire.encode_sample(self._run, self._number + 1, sample)
        self._number += 1
        self._sent[sample.topic].append(now)
        self._history.keep(self._number, sample, frames[-1])
        return Published(self._run, sample, frames)


class WorkerTurns:
    """Decides whose sample is next: every worker's twice a second if there is room, changed states before others."""

    def __init__(self) -> None:
        self._published: dict[str, tuple[str, float]] = {}

    def take(self, workers: Sequence[Session], now: float, room: int) -> list[Session]:
        """Return at most `room` sessions whose samples are due, longest waiting first, and count them as published."""
        if not room:
            return []
        self._published = {s.name: self._published.get(s.name, ("", NEVER)) for s in workers}
        waiting = sorted((self._last(session), session.index, session) for session in workers)
        due = [session for last, _, session in waiting if last <= now - WORKER_EVERY_S][:room]
        self._published |= {session.name: (session.state, now) for session in due}
        return due

    def _last(self, session: Session) -> float:
        """Return when the present state of a session was last published, NEVER if it was not."""
        state, when = self._published[session.name]
        return when if state == session.state else NEVER


def worker_sample(session: Session, t: float, now: float, state: str) -> m.WorkerSample:
    """Return the sample of one worker; `state` is its own, or `lost` or `left`."""
    rate = session.entries / max(now - session.joined, 1e-9)
    age_s = now - session.seen
    return m.WorkerSample(t, session.name, state, session.entries, rate, session.bytes_sent, age_s, session.staleness)
