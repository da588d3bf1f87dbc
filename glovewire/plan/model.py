"""Predict how long an epoch takes on a cluster, by simulating the block schedule in virtual time. No I/O.

The `Schedule` of training grants strips, and its `Strips` say what a worker does next: pull rows, train one visit at a
time, and push its rows, for which it needs credit. A pull waits until its partition has completed all earlier rounds.
Shards and workers are queues with a service rate. Connections share links, and the messages of a connection, including
requests, stay in order.
"""

import heapq
import itertools
import math
from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from glovewire.common.model.rounds import Rounds
from glovewire.common.model.sharding import Sharding
from glovewire.common.protocol.messages import Granted
from glovewire.server.leases.schedule import Schedule
from glovewire.server.limits import TOTAL_CREDIT_BYTES, WORKER_CREDIT_BYTES
from glovewire.worker.training.strips import Lease, Load, Pull, Push, Report, Strip, Strips, Train, Visit

from .links import Links
from .work import Work

Resource = tuple[str, int]

SWEEPS = 3
"""Maximum number of sweeps to simulate; each later sweep is taken to last as long as the last simulated one."""
MANY_PARTITIONS = 80
"""From this many partitions on, one sweep is simulated."""
LINK_SHARE = 0.95
"""Fraction of a link that carries data; the rest is TCP's headers."""
PIECE_BYTES = WORKER_CREDIT_BYTES // 4
"""Maximum bytes of a push per message; workers send smaller pieces, which would take longer to simulate."""
ENOUGH = 1.1
"""Speed-up from which another number of servers or partitions is worth the change."""
MAX_SERVERS = 64


@dataclass(frozen=True)
class Cluster:
    """The training and its hardware; an epoch is the `work`, and rows are sent once per `local_epochs`.

    `row_bytes` is the size of a row in a message, `entries_per_second` the training rate of one worker,
    `bytes_per_second` the bandwidth of a link in each direction, `served_per_second` the bytes per second that a shard
    can copy. A training of few sweeps takes longer per epoch, because workers are idle at its beginning and end.
    """

    work: Work
    row_bytes: int
    workers: int
    servers: int
    entries_per_second: float
    bytes_per_second: float
    served_per_second: float
    round_trip_s: float = 0.0
    epochs: int = 2
    local_epochs: int = 1

    @property
    def entries(self) -> float:
        """Return the entries of the full matrix."""
        return float(self.work.entries.sum())

    @property
    def sweeps(self) -> int:
        """Return how often all rows are sent."""
        return self.epochs // self.local_epochs

    @property
    def words(self) -> int:
        """Return the number of rows of the table."""
        return self.work.bounds[-1]


@dataclass(frozen=True)
class Forecast:
    """Seconds and bytes of an epoch, and for each kind of resource the busy fraction of the busiest one."""

    seconds: float
    bytes_pulled: float
    bytes_pushed: float
    busy: dict[str, float]

    @property
    def bottleneck(self) -> str:
        """Return the busiest kind of resource, or `rounds` if workers mostly wait for each other's rows."""
        name = max(self.busy, key=lambda kind: self.busy[kind])
        return name if self.busy[name] > 0.6 else "rounds"


def forecast(cluster: Cluster) -> Forecast:
    """Simulate the training, or its first sweeps, and return the means per epoch."""
    simulated = _Sweeps(cluster)
    simulated.run()
    sweeps, seconds, ends = simulated.sweeps, simulated.now, simulated.ends
    usual = ends[-1] - ends[-2] if sweeps > 1 else seconds
    mean = (seconds + usual * (cluster.sweeps - sweeps)) / cluster.epochs
    epochs = sweeps * cluster.local_epochs
    busy: dict[str, float] = defaultdict(float)
    for (kind, _), used in [*simulated.busy.items(), *simulated.links.busy.items()]:
        busy[kind] = max(busy[kind], used / seconds)
    return Forecast(mean, simulated.pulled / epochs, simulated.pushed / epochs, dict(busy))


def servers_needed(cluster: Cluster) -> int:
    """Return the smallest number of shards whose epoch takes at most 10 % longer than with MAX_SERVERS shards."""
    most = min(MAX_SERVERS, cluster.words)
    enough = forecast(replace(cluster, servers=most)).seconds * ENOUGH

    def suffice(servers: int) -> bool:
        return forecast(replace(cluster, servers=servers)).seconds <= enough

    return 1 + bisect_left(range(1, most), True, key=suffice)


def partitions_advised(cluster: Cluster, estimate: Callable[[int], Work]) -> int:
    """Return the cluster's number of partitions, or half or double of it if an epoch is clearly shorter.

    Fewer partitions mean less traffic; with more partitions more workers train at the same time. `estimate` returns the
    work for a number of partitions.
    """
    own = cluster.work.partitions
    choices = [partitions for partitions in (own // 2, own, 2 * own) if 1 <= partitions <= cluster.words]
    seconds = {p: forecast(replace(cluster, work=estimate(p))).seconds for p in choices}
    best = min(seconds, key=lambda partitions: seconds[partitions])
    return best if seconds[best] * ENOUGH < seconds[own] else own


@dataclass(eq=False)
class _Worker:
    """A worker: what it does next, what it has sent, and what it still has to send."""

    number: int
    strips: Strips
    in_flight: float = 0.0
    unsent: deque["_Piece"] = field(default_factory=deque)
    unanswered: Counter[Strip] = field(default_factory=Counter)
    ended: dict[Strip, float] = field(default_factory=dict)
    """Time at which it sent the last piece of each strip that awaits answers."""


@dataclass(frozen=True, eq=False)
class _Piece:
    """A message of a push to a shard; `left` is how many pieces of this push the shard has not applied."""

    visit: Visit
    shard: int
    nbytes: float
    left: list[int]


class _Sweeps:
    """A discrete-event simulation of some sweeps; a queue is stored as the time at which it is free again."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._work = cluster, cluster.work
        most = SWEEPS if self._work.partitions < MANY_PARTITIONS else 1
        self.sweeps = min(cluster.sweeps, most)
        self.ends: list[float] = []
        """Time at which all strips of each sweep had been trained."""
        self._rounds = Rounds(self._work.partitions, self.sweeps)
        self._schedule = Schedule(self._rounds)
        self._goodput = cluster.bytes_per_second * LINK_SHARE
        self._number = itertools.count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._free: dict[Resource, float] = defaultdict(float)
        self._waiting_pulls: dict[tuple[int, int], list[Callable[[], None]]] = defaultdict(list)
        self._waiting_leases: list[_Worker] = []  # workers whose request shard 0 could not answer yet
        strips = partial(Strips, self._rounds, self._entries, self._nbytes, 0.0)
        self._workers = [_Worker(number, strips()) for number in range(cluster.workers)]
        self._credit = min(WORKER_CREDIT_BYTES, TOTAL_CREDIT_BYTES // cluster.workers)
        self.now = 0.0
        self.pulled = self.pushed = 0.0
        self.busy: dict[Resource, float] = defaultdict(float)
        self.links = Links(lambda: self.now, self._after)
        sharding = Sharding(cluster.words, cluster.servers)
        self._parts = [
            [(part.shard, (part.last - part.first) / (span[1] - span[0])) for part in sharding.split(*span)]
            for span in itertools.pairwise(self._work.bounds)
        ]
        self._version = {  # version of a partition's rows on a shard
            (partition, shard): self._rounds.next_visit(partition, 0)
            for partition, parts in enumerate(self._parts)
            for shard, _ in parts
        }

    def run(self) -> None:
        """Process events until every strip is trained."""
        for worker in self._workers:
            self._go_on(worker)
        while self._events:
            self.now, _, event = heapq.heappop(self._events)
            event()

    def _after(self, seconds: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._number), event))

    def _use(self, resource: Resource, seconds: float, event: Callable[[], None]) -> None:
        """Queue a job of `seconds` on a resource, behind its earlier jobs; run `event` when it is done."""
        self._free[resource] = max(self.now, self._free[resource]) + seconds
        self.busy[resource] += seconds
        self._after(self._free[resource] - self.now, event)

    def _serve(self, shard: int, nbytes: float, event: Callable[[], None]) -> None:
        self._use(("server", shard), nbytes / self._cluster.served_per_second, event)

    def _request(self, worker: _Worker, shard: int, nbytes: float, event: Callable[[], None]) -> None:
        """Send a message from a worker to a shard, behind the worker's earlier messages to it."""
        came = partial(self._after, self._cluster.round_trip_s / 2, event)
        self.links.send(("worker link, out", worker.number), ("server link, in", shard), nbytes / self._goodput, came)

    def _reply(self, worker: _Worker, shard: int, nbytes: float, event: Callable[[], None]) -> None:
        """Send a message from a shard to a worker, behind the shard's earlier messages to it."""
        came = partial(self._after, self._cluster.round_trip_s / 2, event)
        self.links.send(("server link, out", shard), ("worker link, in", worker.number), nbytes / self._goodput, came)

    def _entries(self, own: int) -> float:
        return float(self._work.entries[own].sum()) * self._cluster.local_epochs

    def _nbytes(self, own: int, partition: int) -> float:
        return float(self._work.rows[own, partition]) * self._cluster.row_bytes

    # ---- workers

    def _go_on(self, worker: _Worker) -> None:
        """Do what the worker's strips need, unless it waits for credit."""
        while not worker.unsent and (instruction := worker.strips.next(self.now)) is not None:
            match instruction:
                case Lease():
                    self._request(worker, 0, 0.0, partial(self._asked, worker))
                case Load(strip):
                    worker.strips.arrived(strip, 0, self.now)
                case Pull(visit):
                    self._pull(worker, visit)
                case Train(visit):
                    self._train(worker, visit)
                case Push(visit):
                    self._push(worker, visit)
                case Report(strip):
                    self._request(worker, 0, 0.0, partial(self._reported, strip.granted.lease))

    def _granted(self, worker: _Worker, granted: Granted) -> None:
        worker.strips.granted(granted)
        self._go_on(worker)

    def _pull(self, worker: _Worker, visit: Visit) -> None:
        parts = self._parts[visit.partition]
        visit.missing = len(parts)
        for shard, share in parts:
            self._request(worker, shard, 0.0, partial(self._asked_rows, worker, visit, shard, share * visit.nbytes))

    def _came(self, worker: _Worker, visit: Visit) -> None:
        worker.strips.arrived(visit, visit.missing - 1, self.now)
        self._go_on(worker)

    def _train(self, worker: _Worker, visit: Visit) -> None:
        """Train a visit; report when half of its strip has been trained, because the next strip may then be due."""
        rate = self._cluster.entries_per_second
        entries = float(self._work.entries[visit.strip.own, visit.partition]) * self._cluster.local_epochs
        before, seconds = visit.strip.left - visit.strip.total / 2, entries / rate

        def half() -> None:
            worker.strips.progressed(before)
            self._go_on(worker)

        def trained() -> None:
            worker.strips.progressed(entries - before if 0 <= before < entries else entries)
            worker.strips.trained(seconds, self.now)
            self._go_on(worker)

        if 0 <= before < entries:
            self._after(before / rate, half)
        self._use(("worker", worker.number), seconds, trained)

    def _push(self, worker: _Worker, visit: Visit) -> None:
        """Push the rows of a visit in pieces."""
        for shard, share in self._parts[visit.partition]:
            nbytes = share * visit.nbytes
            self.pushed += nbytes
            count = max(1, math.ceil(nbytes / PIECE_BYTES))
            left = [count]
            worker.unsent += [_Piece(visit, shard, nbytes / count, left) for _ in range(count)]
            worker.unanswered[visit.strip] += count
        self._send(worker)

    def _send(self, worker: _Worker) -> None:
        """Send as many pieces as the worker has credit for."""
        unsent = worker.unsent
        while unsent and (not worker.in_flight or worker.in_flight + unsent[0].nbytes <= self._credit):
            piece = unsent.popleft()
            worker.in_flight += piece.nbytes
            if piece.visit.is_own:
                worker.ended[piece.visit.strip] = self.now
            applied = partial(self._applied, worker, piece)
            self._request(worker, piece.shard, piece.nbytes, partial(self._serve, piece.shard, piece.nbytes, applied))

    def _answered(self, worker: _Worker, piece: _Piece) -> None:
        strip = piece.visit.strip
        worker.in_flight -= piece.nbytes
        worker.unanswered[strip] -= 1
        self._send(worker)
        if strip in worker.ended and not worker.unanswered[strip]:
            worker.strips.answered(strip, self.now - worker.ended.pop(strip))
        self._go_on(worker)

    # ---- shards

    def _asked(self, worker: _Worker) -> None:
        self._waiting_leases.append(worker)
        self._grant()

    def _grant(self) -> None:
        """Grant strips to waiting workers, as shard 0, in the order of their requests."""
        for worker in list(self._waiting_leases):
            if granted := self._schedule.grant(str(worker.number)):
                self._waiting_leases.remove(worker)
                self._reply(worker, 0, 0.0, partial(self._granted, worker, Granted(*granted, 0)))

    def _asked_rows(self, worker: _Worker, visit: Visit, shard: int, nbytes: float) -> None:
        """Answer a pull that has reached a shard, once the partition has completed all earlier rounds."""
        if self._version[visit.partition, shard] < visit.strip.round:
            again = partial(self._asked_rows, worker, visit, shard, nbytes)
            self._waiting_pulls[visit.partition, shard].append(again)
            return
        self.pulled += nbytes
        self._serve(shard, nbytes, partial(self._reply, worker, shard, nbytes, partial(self._came, worker, visit)))

    def _applied(self, worker: _Worker, piece: _Piece) -> None:
        """Answer a piece; after the last one, answer pulls that waited for this version."""
        piece.left[0] -= 1
        if not piece.left[0]:
            place = piece.visit.partition, piece.shard
            self._version[place] = self._rounds.next_visit(piece.visit.partition, piece.visit.strip.round + 1)
            for pull in self._waiting_pulls.pop(place, []):
                pull()
        self._reply(worker, piece.shard, 0.0, partial(self._answered, worker, piece))

    def _reported(self, lease: int) -> None:
        self._schedule.finish(lease)
        while (len(self.ends) + 1) * self._work.partitions <= self._schedule.low_water:
            self.ends.append(self.now)
        self._grant()
