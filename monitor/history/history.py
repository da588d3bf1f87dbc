"""Keep the history of a run within fixed bounds: curves, worker and shard states, scores and events. No I/O.

Every view reads a `RunHistory`: the terminal, the browser dashboard, the plot and the Prometheus sink. `now` is in
seconds of any steady clock. Curves are downsampled, and workers, shards and tests beyond fixed numbers are ignored, so
that memory is bounded whatever the servers send.
"""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from glovewire.common.endings import Ending
from glovewire.common.model.options import DEFAULTS, TrainingOptions, usual_local_epochs
from glovewire.common.protocol.messages import (
    Event,
    LossSample,
    Message,
    QualitySample,
    RunSample,
    ServerSample,
    WorkerSample,
)
from glovewire.common.protocol.schema import Scalar

from .curve import LossCurve, Point, rolling_means
from .formatting import NO_WORKER_YET, natural_key, sanitize

ALL_WORKERS = "all"
OVERALL_POINTS = 4_000
WORKER_POINTS = 400
MAX_WORKERS = 256
MAX_SHARDS = 256
MAX_TESTS = 32
MAX_EVENTS = 200
MAX_BINS = 32
MAX_HOT_ROWS = 8
MAX_SETTINGS = 100
SETTINGS = ("objective", "dim", "epochs", "learning_rate", "optimizer", "tied", "x_max", "alpha", "subwords", "seed")
DENSE_SETTINGS = ("optimizer", "learning_rate", "steps", "consistency", "rate_shape")
"""Options that are always shown; others are shown if they differ from the defaults of their objective."""
JITTER_S = 1.0
RATE_S = 3.0
QUIET_AFTER_S = 3.0
_DEPARTED = ("lost", "left")
_URGENCY = {"lost": 0, "late": 1, "left": 3}
"""Sort key of worker states in a table; states that are not listed sort as 2."""


class RunStatus(NamedTuple):
    """Status of a run; `level` is `good`, `warn`, `bad` or `calm`."""

    level: str
    text: str


class WorkerState:
    """State of one worker: its losses, its last sample, and its send rate."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.curve = LossCurve(WORKER_POINTS)
        self.trained = 0
        self.sample: WorkerSample | None = None
        self.heard_at = 0.0
        self.bytes_per_second = 0.0

    @property
    def state(self) -> str:
        """Return `training`, `late`, `lost` or `left`, as last reported by the server."""
        return sanitize(self.sample.state, 16) if self.sample else "training"

    @property
    def entries(self) -> int:
        """Return the number of entries trained."""
        return self.sample.entries if self.sample else self.trained

    @property
    def entries_per_second(self) -> float:
        """Return the entries that the worker trains per second; 0 once it is lost or has left."""
        if self.state in _DEPARTED:
            return 0.0
        if self.sample:
            return self.sample.entries_per_second
        return self.curve.last.entries_per_second if self.curve.last else 0.0

    def age_s(self, now: float) -> float | None:
        """Return the seconds since the server last heard from the worker; None before the worker's first sample."""
        return self.sample.age_s + max(0.0, now - self.heard_at) if self.sample else None


@dataclass
class ShardRates:
    """State of one server shard: its last sample of counters, and the rates between its last two samples."""

    sample: ServerSample
    received_per_second: float
    sent_per_second: float
    pulls_per_second: float
    pushes_per_second: float

    @property
    def bytes_per_second(self) -> float:
        """Return the bytes received and sent per second."""
        return self.received_per_second + self.sent_per_second


class RunHistory:
    """State of one run. Call `begin`, then `add`, for each sample in order of arrival; properties return the state."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self._reset()

    def _reset(self) -> None:
        self.run = ""
        self._about = RunSample(0.0, "", "", 0, {})
        """What is trained; names and options are empty until a server has sent them."""
        self.overall = LossCurve(OVERALL_POINTS)
        self.workers: dict[str, WorkerState] = {}
        self.shards: dict[int, ShardRates] = {}
        self.quality: dict[str, deque[QualitySample]] = {}
        self.events: deque[Event] = deque(maxlen=MAX_EVENTS)
        self.event_count = 0
        self.loss: LossSample | None = None
        self.started_at: float | None = None
        self.heard_at: float | None = None
        self.lost = 0
        self.finished = False
        self.failed: str | None = None
        self._complete = False
        self.t = 0.0
        self._shift = 0.0

    def begin(self, run: str, *, restarted: bool = False) -> None:
        """Set the run of the next sample; clear everything if the server was `restarted` with another `run`."""
        shown = sanitize(run)
        if restarted and self.run and shown != self.run:
            self._reset()
        self.run = self.run or shown

    def add(self, message: Message, now: float) -> None:
        """Add one sample of the stream, received at `now`."""
        self.heard_at = now
        match message:
            case RunSample():
                self._about = message
            case LossSample():
                self._add_loss(message)
            case WorkerSample():
                self._add_worker(message, now)
            case ServerSample():
                self._add_shard(message)
            case QualitySample():
                self._add_quality(message)
            case Event():
                self._add_event(message)

    def note(self, kind: str, subject: str, text: str) -> None:
        """Add an event that the monitor itself has observed, dated with the time of the last sample."""
        self._keep(Event(self.t, kind, subject, text))

    @property
    def title(self) -> str:
        """Return the name of the run: as given, as the server says, or else its id."""
        return self.name or sanitize(self._about.name) or self.run

    @property
    def dataset(self) -> str:
        """Return the name of the dataset; "" if it is unknown, and for a dense model."""
        return sanitize(self._about.dataset)

    @property
    def is_dense(self) -> bool:
        """Return whether a dense model is trained, in updates instead of epochs."""
        return self._about.options.get("objective") == "tensors"

    @property
    def unit(self) -> str:
        """Return what is counted: `entries` of a matrix, or a dense model's `examples`."""
        return "examples" if self.is_dense else "entries"

    @property
    def settings(self) -> dict[str, str]:
        """Return the options that people compare first, then those that differ from the defaults, by their names."""
        given = dict(list(self._about.options.items())[:MAX_SETTINGS])
        usual = _defaults(given)
        first = DENSE_SETTINGS if self.is_dense else SETTINGS
        names = [name for name in first if name in given]
        names += [name for name, value in given.items() if name not in first and value != usual.get(name, value)]
        return {sanitize(name).replace("_", " "): sanitize(_plain(given[name])) for name in names}

    @property
    def updates_per_second(self) -> float:
        """Return the rate of a dense model's updates over the last RATE_S; for a finished run, its mean rate."""
        points = self._trained() if self.finished else self.overall.recent(RATE_S)
        return _rate(points[0].t, points[0].epoch, points[-1].t, points[-1].epoch) if points else 0.0

    def _trained(self) -> list[Point]:
        """Return the points of the loss up to the last entry or update, after which the run only saves its results."""
        points = self.overall.all_points()
        places = [(point.position, point.epoch) for point in points]
        return points[: places.index(places[-1]) + 1] if points else []

    def status(self, now: float, silent: Sequence[str] = ()) -> RunStatus:
        """Return the status of the run; `silent` are the addresses from which nothing has arrived yet."""
        quiet = self.silence_s(now)
        if self.failed is not None:
            return RunStatus("bad", f"failed: {self.failed}")
        if self.finished:
            return RunStatus("calm", "finished")
        if quiet is None:
            return RunStatus("warn", f"waiting for {', '.join(silent) or 'the server'}")
        if self.is_writing_results:
            return RunStatus("good", f"trained, writing the results for {quiet:.0f} s")
        if quiet > QUIET_AFTER_S:
            return RunStatus("warn", f"no data for {quiet:.0f} s")
        if self.loss:
            return RunStatus("good", "training")
        return RunStatus("good", f"connected, {'nothing trained yet' if self.active_workers else NO_WORKER_YET}")

    @property
    def is_writing_results(self) -> bool:
        """Return whether all workers have left a complete training whose server has not finished yet."""
        return self._complete and not self.active_workers and not self.finished and self.failed is None

    @property
    def _done(self) -> tuple[int, int]:
        """Return how many entries (for a dense model, updates) are done, and how many are planned; 0 if unknown."""
        if self.loss is None:
            return 0, 0
        return (self.loss.epoch, self.loss.epochs) if self.is_dense else (self.loss.entries, self.loss.total)

    @property
    def progress(self) -> float | None:
        """Return the share of all entries, or updates, that is done, 0 to 1; None when the total is unknown."""
        done, total = self._done
        return min(1.0, done / total) if total > 0 else None

    @property
    def epoch(self) -> str:
        """Return the current epoch as `3/10`; without a known number of epochs, the completed epochs as `3`.

        For a dense model, return the updates done as `120 of 2,000`, or as `120`.
        """
        if self.loss is None:
            return "–"
        epoch, epochs = self.loss.epoch, self.loss.epochs or self._planned
        if self.is_dense:
            return f"{epoch:,} of {epochs:,}" if epochs else f"{epoch:,}"
        if epochs and self.loss.total > 0:  # the epochs of a sweep are done together
            epoch = self.loss.entries * epochs // self.loss.total
        return f"{min(epoch + 1, epochs)}/{epochs}" if epochs else str(epoch)

    @property
    def _planned(self) -> int:
        """Return the epochs, or updates of a dense model, that the options name, because a recorded loss does not."""
        named = self._about.options.get("steps" if self.is_dense else "epochs")
        return named if type(named) is int else 0

    @property
    def sweep(self) -> tuple[int, int]:
        """Return the number of epochs in a sweep, and their entries; 0 if the run has not sent it."""
        local = self._about.options.get("local_epochs")
        epochs = max(local, 1) if type(local) is int else 1
        return epochs, self._about.total * epochs // self._planned if self._planned > 0 else 0

    def worker_points(self, name: str, most: int = WORKER_POINTS + 1) -> list[Point]:
        """Return the curve of a worker in at most `most` points; with sweeps, each loss is the mean over the last."""
        points = self.workers[name].curve.all_points()
        return rolling_means(points, self.sweep[1], max(1, -(-len(points) // most)))

    @property
    def staleness(self) -> dict[str, int]:
        """Return {bin of staleness: number of pushes}, summed over all shards, in the order of the bins."""
        found: Counter[str] = Counter()
        for shard in self.shards.values():
            found.update({sanitize(bin, 16): max(0, int(count)) for bin, count in shard.sample.staleness.items()})
        return dict(sorted(found.items(), key=lambda item: natural_key(item[0]))[:MAX_BINS])

    @property
    def hot_rows(self) -> list[tuple[str, int]]:
        """Return (row or range of rows, pushes) for the most-pushed rows of all shards, by pushes, then row number."""
        each = [item for shard in self.shards.values() for item in shard.sample.hot_rows.items()]
        found = [(sanitize(rows, 24), int(count)) for rows, count in each]
        return sorted(found, key=lambda item: (-item[1], natural_key(item[0])))[:MAX_HOT_ROWS]

    @property
    def seconds(self) -> float:
        """Return the seconds from the start of training to the last sample."""
        return self.since_start(self.t)

    def since_start(self, t: float) -> float:
        """Return the seconds from the start of training to time `t` on the timeline of `self.t`; 0 before the start."""
        return max(0.0, t - self.started_at) if self.started_at is not None else 0.0

    @property
    def entries_per_second(self) -> float:
        """Return the rate of all workers together over the last RATE_S; for a finished run, its mean rate."""
        if self.finished and len(points := self._trained()) > 1 and points[-1].t > points[0].t:
            return (points[-1].position - points[0].position) / (points[-1].t - points[0].t)
        recent = self.overall.recent(RATE_S)
        return sum(point.entries_per_second for point in recent) / len(recent) if recent else 0.0

    @property
    def eta_s(self) -> float | None:
        """Return the seconds until training ends at the present rate; None when unknown, 0 for a finished run."""
        if self.finished:
            return 0.0
        done, total = self._done
        rate = self.updates_per_second if self.is_dense else self.entries_per_second
        return max(0, total - done) / rate if total > 0 and rate > 0 else None

    @property
    def active_workers(self) -> int:
        """Return the number of workers that are not lost and have not left."""
        return sum(worker.state not in _DEPARTED for worker in self.workers.values())

    def worker_state(self, worker: WorkerState) -> str:
        """Return the state of a worker; `done` for one that was training when the run finished."""
        return "done" if self.finished and worker.state == "training" else worker.state

    def workers_by_urgency(self) -> list[WorkerState]:
        """Return the workers in the order of a table: lost, late, others, left; within a state by name."""
        return sorted(self.workers.values(), key=lambda each: (_URGENCY.get(each.state, 2), natural_key(each.name)))

    def silence_s(self, now: float) -> float | None:
        """Return the seconds since the last sample of any kind; None before the first."""
        return None if self.heard_at is None else max(0.0, now - self.heard_at)

    def _add_loss(self, sample: LossSample) -> None:
        if sample.t + self._shift < self.t - JITTER_S:  # a restarted server counts from 0: append to the curve
            self._shift = self.t - sample.t
        when = self._on_timeline(sample.t)
        if sample.worker == ALL_WORKERS:
            self._add_overall(sample, when)
        elif (worker := self._worker(sample.worker)) is not None:
            position = self.loss.entries if self.loss else sample.entries
            worker.curve.add(_point(sample, when, position, sample.entries - worker.trained))
            worker.trained = sample.entries

    def _add_overall(self, sample: LossSample, when: float) -> None:
        before = self.loss.entries if self.loss is not None else 0
        if sample.entries < before:
            self.note("rewound", "server", f"training resumes from {sample.entries:,} entries")
            for curve in (self.overall, *(worker.curve for worker in self.workers.values())):
                curve.rewind(sample.entries)
        self.loss = sample
        self.started_at = when if self.started_at is None else self.started_at
        self.overall.add(_point(sample, when, sample.entries, sample.entries - before))

    def _add_worker(self, sample: WorkerSample, now: float) -> None:
        worker = self._worker(sample.worker)
        if worker is None:
            return
        self._on_timeline(sample.t)
        old, worker.sample, worker.heard_at = worker.sample or sample, sample, now
        sent = _rate(old.t, old.bytes_sent, sample.t, sample.bytes_sent)
        worker.bytes_per_second = 0.0 if worker.state in _DEPARTED else sent

    def _add_shard(self, sample: ServerSample) -> None:
        before = self.shards.get(sample.shard)
        if before is None and len(self.shards) >= MAX_SHARDS:
            return
        old = sample if before is None else before.sample
        counters = ("bytes_in", "bytes_out", "pulls", "pushes")
        rates = [_rate(old.t, getattr(old, name), sample.t, getattr(sample, name)) for name in counters]
        self.shards[sample.shard] = ShardRates(sample, *rates)

    def _add_quality(self, sample: QualitySample) -> None:
        test = sanitize(sample.test)
        if test in self.quality or len(self.quality) < MAX_TESTS:
            self.quality.setdefault(test, deque(maxlen=MAX_EVENTS)).append(sample)

    def _add_event(self, event: Event) -> None:
        self._keep(replace(event, t=self._on_timeline(event.t)))
        if event.kind == "finished":
            self.finished = True
        elif event.kind == "failed":
            self.failed = sanitize(event.text, 200)
        elif event.kind in ("joined", "left"):
            self._complete = event.kind == "left" and event.text == Ending.COMPLETE

    def _keep(self, event: Event) -> None:
        self.events.append(Event(event.t, sanitize(event.kind, 24), sanitize(event.subject), sanitize(event.text, 200)))
        self.event_count += 1

    def _worker(self, name: str) -> WorkerState | None:
        shown = sanitize(name)
        if shown not in self.workers and len(self.workers) < MAX_WORKERS:
            self.workers[shown] = WorkerState(shown)
        return self.workers.get(shown)

    def _on_timeline(self, t: float) -> float:
        """Return time `t` of the stream, shifted to continue across server restarts, and advance `self.t` to it."""
        self.t = max(self.t, t + self._shift)
        return t + self._shift


def _point(sample: LossSample, when: float, position: int, entries: int) -> Point:
    same = ("epoch", "loss", "bias_only_loss", "norm", "entries_per_second", "mean_loss", "mean_bias_only_loss")
    return Point(when, position, entries=max(1, entries), **{name: getattr(sample, name) for name in same})


def _defaults(given: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return the default options of a training with the objective, schedule and epochs of the given options."""
    objective, schedule, epochs = (given.get(name) for name in ("objective", "schedule", "epochs"))
    local_epochs = usual_local_epochs(str(objective), str(schedule), epochs if isinstance(epochs, int) else 1)
    derived: dict[str, Scalar] = {"objective": str(objective), "local_epochs": local_epochs}
    return TrainingOptions().as_message() | derived | DEFAULTS.get(str(objective), {})


def _plain(value: Scalar) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _rate(t0: float, count0: int, t1: float, count1: int) -> float:
    """Return the increments per second of a counter between two readings; 0 for one reading, or a counter reset."""
    return max(0, count1 - count0) / (t1 - t0) if t1 > t0 else 0.0
