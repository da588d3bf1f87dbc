"""Who takes part in a run, as samples tell: workers and shards, their states and their traffic. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from common.messages import ServerSample, WorkerSample

from .series import Series
from .units import plain

WORKER_POINTS = 400


class Worker:
    """One worker: its losses, its last state, and how fast it sends."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.series = Series(WORKER_POINTS)
        self.trained = 0
        self.sample: WorkerSample | None = None
        self.heard: float | None = None
        self.bytes_per_second = 0.0

    @property
    def state(self) -> str:
        """`training`, `late`, `lost` or `left`, as the server last said."""
        return plain(self.sample.state, 16) if self.sample else "training"

    @property
    def entries(self) -> int:
        """Entries that it has trained."""
        return self.sample.entries if self.sample else self.trained

    @property
    def entries_per_second(self) -> float:
        """Its pace; nothing once it has gone."""
        if self.state in ("lost", "left"):
            return 0.0
        if self.sample:
            return self.sample.entries_per_second
        return self.series.last.entries_per_second if self.series.last else 0.0

    def age_s(self, now: float) -> float | None:
        """Seconds since the server last heard of it; None before the server said so."""
        if self.sample is None or self.heard is None:
            return None
        return self.sample.age_s + max(0.0, now - self.heard)


@dataclass
class Shard:
    """One server shard: its last counters, and its traffic."""

    sample: ServerSample
    heard: float
    received_per_second: float = 0.0
    sent_per_second: float = 0.0
    pulls_per_second: float = 0.0
    pushes_per_second: float = 0.0

    @property
    def bytes_per_second(self) -> float:
        """Both ways."""
        return self.received_per_second + self.sent_per_second


def rate(t0: float, count0: int, t1: float, count1: int) -> float:
    """Units per second between two readings of a counter; 0 when it was set back."""
    return max(0, count1 - count0) / (t1 - t0) if t1 > t0 else 0.0
