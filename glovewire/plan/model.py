"""Predict how long an epoch takes on a cluster, by simulating the block schedule in virtual time. No I/O.

The `Schedule` of training grants strips. A worker prefetches as many strips and visits as in training, pulls the rows
that they need, trains one visit at a time and pushes its rows, for which it needs credit; a pull waits until its
partition has been through the rounds before. Shards and workers are queues with a service rate. Connections share
links, and messages of a connection, requests among them, stay in their order.
"""

import heapq
import itertools
import math
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from glovewire.common.model.rounds import Rounds
from glovewire.common.model.sharding import Sharding
from glovewire.server.leases.schedule import Schedule
from glovewire.server.limits import TOTAL_CREDIT_BYTES, WORKER_CREDIT_BYTES
from glovewire.worker.training.prefetch import PrefetchWindow, needs_visit

from .links import Links
from .work import Work

Resource = tuple[str, int]

EPOCHS = 3
"""Of a longer training so many epochs are simulated, and the others take as long as the last of them."""
MANY_PARTITIONS = 80
"""From this many partitions on, one epoch is simulated."""
LINK_SHARE = 0.95
"""Fraction of a link that carries data; the rest is TCP's headers."""
PIECE_BYTES = WORKER_CREDIT_BYTES // 4
"""Of a push in one message; workers send smaller ones, which takes longer to simulate."""
ENOUGH = 1.1
"""Speed-up from which another number of servers or partitions is worth the change."""
MAX_SERVERS = 64


@dataclass(frozen=True)
class Cluster:
    """The training and its hardware; an epoch is the `work`.

    `row_bytes` is the size of a row in a message, `entries_per_second` the training rate of one worker,
    `bytes_per_second` the bandwidth of a link in each direction, `served_per_second` the bytes per second that a shard
    can copy. A training of few epochs takes longer per epoch: workers are idle at its beginning and its end.
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

    @property
    def entries(self) -> float:
        """Return the entries of the full matrix."""
        return float(self.work.entries.sum())

    @property
    def words(self) -> int:
        """Return the number of rows of the table."""
        return self.work.bounds[-1]


@dataclass(frozen=True)
class Forecast:
    """Seconds and bytes of an epoch, and by kind of resource the busy fraction of its busiest resource."""

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
    """Simulate the training, or its first epochs, and return the means per epoch."""
    simulated = _Epochs(cluster)
    simulated.run()
    epochs, seconds, ends = simulated.epochs, simulated.now, simulated.ends
    usual = ends[-1] - ends[-2] if epochs > 1 else seconds
    mean = (seconds + usual * (cluster.epochs - epochs)) / cluster.epochs
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
class _Visit:
    """A partition that a strip visits, and how many parts of its rows are missing."""

    partition: int
    missing: int
    nbytes: float


@dataclass(eq=False)
class _Task:
    """A strip leased to a worker: the partitions still to pull, its own one first, and the visits that are pulled."""

    lease: int
    round: int
    own: int
    ahead: deque[int]
    left: float
    visits: deque[_Visit] = field(default_factory=deque)
    seconds: float = 0.0
    unanswered: int = 0
    sent: float = 0.0

    @property
    def is_ready(self) -> bool:
        """Return whether the rows of the next visit have arrived."""
        return bool(self.visits) and not self.visits[0].missing


@dataclass(frozen=True, eq=False)
class _Piece:
    """A message of a push to a shard; `left` is how many pieces of this push the shard has not applied."""

    task: _Task
    partition: int
    shard: int
    nbytes: float
    left: list[int]


class _Epochs:
    """A discrete-event simulation of some epochs; a queue is stored as the time at which it is free again."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._work = cluster, cluster.work
        self.epochs = min(cluster.epochs, EPOCHS if self._work.partitions < MANY_PARTITIONS else 1)
        self.ends: list[float] = []
        """When all strips of each epoch were trained."""
        self._rounds = Rounds(self._work.partitions, self.epochs)
        self._schedule = Schedule(self._rounds)
        self._goodput = cluster.bytes_per_second * LINK_SHARE
        self._number = itertools.count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._free: dict[Resource, float] = defaultdict(float)
        self._waiting_pulls: dict[tuple[int, int], list[Callable[[], None]]] = defaultdict(list)
        self._tasks: list[list[_Task]] = [[] for _ in range(cluster.workers)]
        self._asking = [False] * cluster.workers
        self._waiting_leases: list[int] = []  # workers whose request shard 0 could not answer yet
        self._computing = [False] * cluster.workers
        self._ahead = [PrefetchWindow() for _ in range(cluster.workers)]
        self._credit = min(WORKER_CREDIT_BYTES, TOTAL_CREDIT_BYTES // cluster.workers)
        self._in_flight = [0.0] * cluster.workers
        self._unsent: list[deque[_Piece]] = [deque() for _ in range(cluster.workers)]
        self._then: list[Callable[[], None] | None] = [None] * cluster.workers  # when the worker has sent its push
        self.now = 0.0
        self.pulled = self.pushed = 0.0
        self.busy: dict[Resource, float] = defaultdict(float)
        self.links = Links(lambda: self.now, self._after)
        sharding = Sharding(cluster.words, cluster.servers)
        self._parts = [
            [(part.shard, (part.last - part.first) / (span[1] - span[0])) for part in sharding.split(*span)]
            for span in itertools.pairwise(self._work.bounds)
        ]
        self._version = {  # of a partition's rows on a shard
            (partition, shard): self._rounds.next_visit(partition, 0)
            for partition, parts in enumerate(self._parts)
            for shard, _ in parts
        }

    def run(self) -> None:
        """Process events until every strip is trained."""
        for worker in range(self._cluster.workers):
            self._ask(worker)
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

    def _request(self, worker: int, shard: int, nbytes: float, event: Callable[[], None]) -> None:
        """Send a message to a shard, behind those that the worker has sent to it before."""
        came = partial(self._after, self._cluster.round_trip_s / 2, event)
        self.links.send(("worker link, out", worker), ("server link, in", shard), nbytes / self._goodput, came)

    def _reply(self, worker: int, shard: int, nbytes: float, event: Callable[[], None]) -> None:
        """Send a message to a worker, behind those that the shard has sent to it before."""
        came = partial(self._after, self._cluster.round_trip_s / 2, event)
        self.links.send(("server link, out", shard), ("worker link, in", worker), nbytes / self._goodput, came)

    def _nbytes(self, own: int, partition: int) -> float:
        return float(self._work.rows[own, partition]) * self._cluster.row_bytes

    def _ask(self, worker: int) -> None:
        """Send a lease request, unless the worker has one unanswered, holds enough strips, or waits for credit."""
        tasks = self._tasks[worker]
        left = tasks[0].left / max(float(self._work.entries[tasks[0].own].sum()), 1.0) if tasks else 0.0
        waiting = int(sum(self._nbytes(task.own, task.own) for task in tasks[1:]))
        if self._asking[worker] or self._then[worker]:
            return
        if self._ahead[worker].needs_strip(len(tasks), waiting, left):
            self._asking[worker] = True
            self._request(worker, 0, 0.0, partial(self._asked, worker))

    def _asked(self, worker: int) -> None:
        self._waiting_leases.append(worker)
        self._grant()

    def _grant(self) -> None:
        """Grant strips to waiting workers, as shard 0, in the order of their requests."""
        for worker in list(self._waiting_leases):
            if granted := self._schedule.grant(str(worker)):
                self._waiting_leases.remove(worker)
                visits = self._rounds.visits(granted[1])
                task = _Task(*granted, visits[0], deque(visits), float(self._work.entries[visits[0]].sum()))
                self._reply(worker, 0, 0.0, partial(self._take, worker, task))

    def _take(self, worker: int, task: _Task) -> None:
        self._tasks[worker].append(task)
        self._asking[worker] = False
        self._go_on(worker)

    def _go_on(self, worker: int) -> None:
        """Ask for a strip, prefetch visits and train what is ready, as far as each is due."""
        if self._then[worker]:
            return
        self._ask(worker)
        for place, task in enumerate(self._tasks[worker]):
            while task.ahead and (
                task.ahead[0] == task.own
                or (len(task.visits) < 2 and place)
                or (not place and needs_visit(len(task.visits), int(sum(each.nbytes for each in task.visits))))
            ):
                self._prefetch(worker, task, task.ahead.popleft())
        self._compute(worker)

    def _prefetch(self, worker: int, task: _Task, partition: int) -> None:
        parts = self._parts[partition]
        nbytes = self._nbytes(task.own, partition)
        task.visits.append(visit := _Visit(partition, len(parts), 0.0 if partition == task.own else nbytes))
        for shard, share in parts:
            self._request(worker, shard, 0.0, partial(self._pull, worker, task, visit, shard, share * nbytes))

    def _pull(self, worker: int, task: _Task, visit: _Visit, shard: int, nbytes: float) -> None:
        """Answer a pull that has reached a shard, once the partition has been through the rounds before."""
        if self._version[visit.partition, shard] < task.round:
            again = partial(self._pull, worker, task, visit, shard, nbytes)
            self._waiting_pulls[visit.partition, shard].append(again)
            return
        self.pulled += nbytes
        sent = partial(self._reply, worker, shard, nbytes, partial(self._arrived, worker, visit))
        self._use(("server", shard), nbytes / self._cluster.served_per_second, sent)

    def _arrived(self, worker: int, visit: _Visit) -> None:
        visit.missing -= 1
        self._compute(worker)

    def _compute(self, worker: int) -> None:
        """Train the next visit whose rows have arrived, of the earliest round, if the worker is idle."""
        ready = [task for task in self._tasks[worker] if task.is_ready]
        if self._computing[worker] or self._then[worker] or not ready:
            return
        task = min(ready, key=lambda task: task.round)
        visit = task.visits.popleft()
        entries, half = float(self._work.entries[task.own, visit.partition]), self._work.entries[task.own].sum() / 2
        seconds = entries / self._cluster.entries_per_second
        if task.left > half >= task.left - entries:
            self._after(seconds * (task.left - half) / entries, partial(self._half, worker, task))
        self._computing[worker] = True
        computed = partial(self._computed, worker, task, visit, task.left - entries, self.now)
        self._use(("worker", worker), seconds, computed)

    def _half(self, worker: int, task: _Task) -> None:
        """Ask for the next strip, as a worker does when it has trained half of one."""
        task.left = self._work.entries[task.own].sum() / 2
        self._ask(worker)

    def _computed(self, worker: int, task: _Task, visit: _Visit, left: float, began: float) -> None:
        self._computing[worker] = False
        task.left = left
        visited = partial(self._visited, worker, task, began)
        if visit.partition == task.own:
            visited()
        else:
            self._push(worker, task, visit.partition, visited)

    def _visited(self, worker: int, task: _Task, began: float) -> None:
        """Go on when the rows of a visit have been sent; after the last one push the strip's own rows."""
        task.seconds += self.now - began
        if task.visits or task.ahead:
            self._go_on(worker)
            return
        self._tasks[worker].remove(task)
        self._ahead[worker].trained(task.seconds)
        self._push(worker, task, task.own, partial(self._go_on, worker))

    def _push(self, worker: int, task: _Task, partition: int, then: Callable[[], None]) -> None:
        """Push the rows of a visit in pieces; `then` is called when the last of them has been sent."""
        for shard, share in self._parts[partition]:
            nbytes = share * self._nbytes(task.own, partition)
            self.pushed += nbytes
            count = max(1, math.ceil(nbytes / PIECE_BYTES))
            left = [count]
            self._unsent[worker] += [_Piece(task, partition, shard, nbytes / count, left) for _ in range(count)]
            task.unanswered += count
        self._then[worker] = then
        self._send(worker)

    def _send(self, worker: int) -> None:
        """Send as many pieces as the worker has credit for."""
        unsent, in_flight = self._unsent[worker], self._in_flight
        while unsent and (not in_flight[worker] or in_flight[worker] + unsent[0].nbytes <= self._credit):
            piece = unsent.popleft()
            in_flight[worker] += piece.nbytes
            piece.task.sent = self.now
            applied = partial(self._applied, worker, piece)
            served = partial(
                self._use, ("server", piece.shard), piece.nbytes / self._cluster.served_per_second, applied
            )
            self._request(worker, piece.shard, piece.nbytes, served)
        if not unsent and (then := self._then[worker]):
            self._then[worker] = None
            then()

    def _applied(self, worker: int, piece: _Piece) -> None:
        """Answer a piece; after the last one, answer pulls that waited for this version."""
        piece.left[0] -= 1
        if not piece.left[0]:
            place = piece.partition, piece.shard
            self._version[place] = self._rounds.next_visit(piece.partition, piece.task.round + 1)
            for pull in self._waiting_pulls.pop(place, []):
                pull()
        self._reply(worker, piece.shard, 0.0, partial(self._answered, worker, piece))

    def _answered(self, worker: int, piece: _Piece) -> None:
        """Report a strip whose pushes are answered; the report ends its lease."""
        task = piece.task
        task.unanswered -= 1
        self._in_flight[worker] -= piece.nbytes
        self._send(worker)
        if task not in self._tasks[worker] and not task.unanswered:
            self._ahead[worker].pushed(self.now - task.sent)
            self._request(worker, 0, 0.0, partial(self._reported, task))
            self._ask(worker)

    def _reported(self, task: _Task) -> None:
        self._schedule.finish(task.lease)
        while (len(self.ends) + 1) * self._work.partitions <= self._schedule.low_water:
            self.ends.append(self.now)
        self._grant()
