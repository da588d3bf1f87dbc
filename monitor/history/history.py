"""What the monitor knows of a run: curves, workers, shards, scores and events, within fixed bounds.

Pure: no clock, no files, no sockets; `now` (seconds of any steady clock) is an argument. It must never grow without
bound, whatever arrives: curves are thinned, and beyond a number of workers, shards or tests new names are not kept.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, replace
from typing import NamedTuple

from glovewire.common.protocol.messages import Event, LossSample, Message, QualitySample, ServerSample, WorkerSample

from .curve import Point, Series
from .formatting import natural, plain

ALL = "all"
OVERALL_POINTS = 4_000
MAX_WORKERS = 256
MAX_SHARDS = 256
MAX_TESTS = 32
MAX_EVENTS = 200
MAX_BINS = 32
HOTTEST = 8
JITTER_S = 1.0
RATE_S = 3.0


class Mean(NamedTuple):
    """Losses over the whole matrix."""

    loss: float
    bias_only_loss: float


class History:
    """Takes samples in the order in which they arrive; everything else is for reading."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self._forget()

    def _forget(self) -> None:
        self.run = ""
        self.overall = Series(OVERALL_POINTS)
        self.workers: dict[str, Worker] = {}
        self.shards: dict[int, Shard] = {}
        self.quality: dict[str, deque[QualitySample]] = {}
        self.events: deque[Event] = deque(maxlen=MAX_EVENTS)
        self.noted = 0
        self.loss: LossSample | None = None
        self.origin: float | None = None
        self.heard: float | None = None
        self.lost = 0
        self.finished = False
        self.failed: str | None = None
        self.t = 0.0
        self._shift = 0.0

    def add(self, message: Message, now: float) -> None:
        """Take one sample of the stream."""
        self.heard = now
        match message:
            case LossSample():
                self._add_loss(message)
            case WorkerSample():
                self._add_worker(message, now)
            case ServerSample():
                self._add_shard(message, now)
            case QualitySample():
                self._add_quality(message)
            case Event():
                self._add_event(message)

    def begin(self, run: str, *, anew: bool = False) -> None:
        """A sample of `run` is to come; with `anew`, from a server that was restarted: another run starts afresh."""
        shown = plain(run)
        if anew and self.run and shown != self.run:
            self._forget()
        self.run = self.run or shown

    def note(self, kind: str, subject: str, text: str) -> None:
        """Add an event that the monitor itself has seen, at the time of the last sample."""
        self._keep(Event(self.t, kind, subject, text))

    # ---- what views ask

    @property
    def progress(self) -> float | None:
        """Share of the training that is done, 0 to 1; None when the server did not say how much there is."""
        if self.loss is None or self.loss.total <= 0:
            return None
        return min(1.0, self.loss.entries / self.loss.total)

    @property
    def mean(self) -> Mean:
        """The losses over the whole matrix, as last said."""
        last = self.overall.last
        return Mean(last.mean_loss, last.mean_bias_only_loss) if last is not None else Mean(0.0, 0.0)

    @property
    def staleness(self) -> dict[str, int]:
        """Pushes by staleness over all shards, in the order of the bins."""
        found: Counter[str] = Counter()
        for shard in list(self.shards.values()):
            found.update({plain(bin, 16): max(0, int(count)) for bin, count in shard.sample.staleness.items()})
        return dict(sorted(found.items(), key=lambda item: natural(item[0]))[:MAX_BINS])

    @property
    def hottest(self) -> list[tuple[str, int]]:
        """Rows, or ranges of rows, and how often they were pushed: those that were pushed most, over all shards.

        Those that were pushed as often stand in the order of their numbers.
        """
        each = [item for shard in list(self.shards.values()) for item in shard.sample.hot_rows.items()]
        found = [(plain(rows, 24), int(count)) for rows, count in each]
        return sorted(found, key=lambda item: (-item[1], natural(item[0])))[:HOTTEST]

    @property
    def traffic(self) -> tuple[float, float]:
        """Bytes per second that servers receive and send, all together."""
        shards = list(self.shards.values())
        return sum(s.received_per_second for s in shards), sum(s.sent_per_second for s in shards)

    @property
    def moved(self) -> tuple[int, int]:
        """Bytes that servers have received and sent since they were started, all together."""
        samples = [shard.sample for shard in list(self.shards.values())]
        return sum(sample.bytes_in for sample in samples), sum(sample.bytes_out for sample in samples)

    @property
    def seconds(self) -> float:
        """How long training has gone on."""
        return self.since_start(self.t)

    def since_start(self, t: float) -> float:
        """Seconds of training at time `t` of the stream, which begins when the server does; 0 before training."""
        return max(0.0, t - self.origin) if self.origin is not None else 0.0

    @property
    def entries_per_second(self) -> float:
        """The pace of all workers together over the last seconds; once it is over, over all that was watched."""
        curve = self.overall.curve()
        if self.finished and len(curve) > 1 and curve[-1].t > curve[0].t:
            return (curve[-1].position - curve[0].position) / (curve[-1].t - curve[0].t)
        recent = self.overall.recent(RATE_S)
        return sum(point.entries_per_second for point in recent) / len(recent) if recent else 0.0

    @property
    def eta_s(self) -> float | None:
        """Seconds until the end at this pace; None when unknown, 0 when it is over."""
        if self.finished:
            return 0.0
        pace = self.entries_per_second
        if self.loss is None or self.loss.total <= 0 or pace <= 0:
            return None
        return max(0, self.loss.total - self.loss.entries) / pace

    @property
    def active(self) -> int:
        """Workers that are there."""
        return sum(worker.state not in ("lost", "left") for worker in self.workers.values())

    def state(self, worker: Worker) -> str:
        """What a worker does, or did when it was last heard of; nobody trains once the run has finished."""
        return "done" if self.finished and worker.state == "training" else worker.state

    def silence_s(self, now: float) -> float | None:
        """Seconds since anything was heard; None before the first sample."""
        return None if self.heard is None else max(0.0, now - self.heard)

    # ---- what samples do

    def _add_loss(self, sample: LossSample) -> None:
        self._restart_time(sample.t)
        when = self._when(sample.t)
        if sample.worker == ALL:
            self._add_overall(sample, when)
            return
        worker = self._worker(sample.worker)
        if worker is not None:
            position = self.loss.entries if self.loss else sample.entries
            before = worker.trained
            worker.trained = sample.entries
            worker.series.add(_point(sample, when, position, sample.entries - before))

    def _add_overall(self, sample: LossSample, when: float) -> None:
        if self.loss is not None and sample.entries < self.loss.entries:
            self.note("rewound", "server", f"training goes on from {sample.entries:,} entries")
            for series in (self.overall, *(worker.series for worker in self.workers.values())):
                series.rewind(sample.entries)
        before = self.loss.entries if self.loss is not None else 0
        self.loss = sample
        self.origin = when if self.origin is None else self.origin
        self.overall.add(_point(sample, when, sample.entries, sample.entries - before))

    def _add_worker(self, sample: WorkerSample, now: float) -> None:
        worker = self._worker(sample.worker)
        if worker is None:
            return
        self._when(sample.t)
        if worker.sample is not None:
            worker.bytes_per_second = rate(worker.sample.t, worker.sample.bytes_sent, sample.t, sample.bytes_sent)
        worker.sample, worker.heard = sample, now

    def _add_shard(self, sample: ServerSample, now: float) -> None:
        before = self.shards.get(sample.shard)
        if before is None and len(self.shards) >= MAX_SHARDS:
            return
        shard = Shard(sample, now)
        if before is not None:
            old = before.sample
            shard.received_per_second = rate(old.t, old.bytes_in, sample.t, sample.bytes_in)
            shard.sent_per_second = rate(old.t, old.bytes_out, sample.t, sample.bytes_out)
            shard.pulls_per_second = rate(old.t, old.pulls, sample.t, sample.pulls)
            shard.pushes_per_second = rate(old.t, old.pushes, sample.t, sample.pushes)
        self.shards[sample.shard] = shard

    def _add_quality(self, sample: QualitySample) -> None:
        test = plain(sample.test)
        if test in self.quality or len(self.quality) < MAX_TESTS:
            self.quality.setdefault(test, deque(maxlen=MAX_EVENTS)).append(sample)

    def _add_event(self, event: Event) -> None:
        self._keep(replace(event, t=self._when(event.t)))
        if event.kind == "finished":
            self.finished = True
        elif event.kind == "failed":
            self.failed = plain(event.text, 200)

    def _keep(self, event: Event) -> None:
        self.events.append(Event(event.t, plain(event.kind, 24), plain(event.subject), plain(event.text, 200)))
        self.noted += 1

    def _worker(self, name: str) -> Worker | None:
        shown = plain(name)
        if shown not in self.workers and len(self.workers) < MAX_WORKERS:
            self.workers[shown] = Worker(shown)
        return self.workers.get(shown)

    def _restart_time(self, t: float) -> None:
        """A server that starts anew counts from 0: the curve goes on where it was."""
        if t + self._shift < self.t - JITTER_S:
            self._shift = self.t - t

    def _when(self, t: float) -> float:
        """`t` on one line of time, of which shard 0's losses are the measure: other shards began a little off."""
        self.t = max(self.t, t + self._shift)
        return t + self._shift


def _point(sample: LossSample, when: float, position: int, entries: int) -> Point:
    return Point(
        when,
        position,
        sample.epoch,
        sample.loss,
        sample.bias_only_loss,
        sample.norm,
        sample.entries_per_second,
        max(1, entries),
        mean_loss=sample.mean_loss,
        mean_bias_only_loss=sample.mean_bias_only_loss,
    )


# ---- Who takes part in a run, as samples tell: workers and shards, their states and their traffic. Pure.

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
