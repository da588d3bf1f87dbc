"""Predict how long an epoch takes on a cluster, by simulating the block schedule in virtual time. No I/O.

The `Schedule` of training grants blocks. A worker prefetches as many blocks as in training, pulls the rows that are not
in its cache, computes one block at a time and pushes its rows; a pull waits until its partition reaches the block's
round. Shards and workers are queues with a service rate; connections share links.
"""

import heapq
import itertools
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from glovewire.common.model.sharding import Sharding
from glovewire.common.storage.dataset import MAX_PARTITION_ROWS
from glovewire.server.leases.schedule import Block, Schedule
from glovewire.worker.training.prefetch import PartitionCache, PrefetchWindow, cache_capacity

from .links import Links

Resource = tuple[str, int]

EPOCHS = 2
MANY_PARTITIONS = 48
"""From this many partitions on, one epoch has enough rounds for a stable estimate."""
LINK_SHARE = 0.95
"""Fraction of a link that carries data; the rest is TCP's headers."""
ENOUGH = 1.1
"""Speed-up from which another number of servers or partitions is worth the change."""
MAX_SERVERS = 64


@dataclass(frozen=True)
class Cluster:
    """The training and its hardware; an epoch covers `entries` entries of the full matrix.

    `row_bytes` is the size of a row in a message, `entries_per_second` the training rate of one worker,
    `bytes_per_second` the bandwidth of a link in each direction, `served_per_second` the bytes per second that a shard
    can copy.
    """

    entries: int
    words: int
    row_bytes: int
    partitions: int
    workers: int
    servers: int
    entries_per_second: float
    bytes_per_second: float
    served_per_second: float
    round_trip_s: float = 0.0


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
    """Simulate one or two epochs and return the means per epoch."""
    simulated = _Epochs(cluster)
    simulated.run()
    epochs, seconds = simulated.epochs, simulated.now
    busy: dict[str, float] = defaultdict(float)
    for (kind, _), used in [*simulated.busy.items(), *simulated.links.busy.items()]:
        busy[kind] = max(busy[kind], used / seconds)
    return Forecast(seconds / epochs, simulated.pulled / epochs, simulated.pushed / epochs, dict(busy))


def servers_needed(cluster: Cluster) -> int:
    """Return the smallest number of shards whose epoch takes at most 10 % longer than with MAX_SERVERS shards."""
    most = min(MAX_SERVERS, cluster.partitions)
    enough = forecast(replace(cluster, servers=most)).seconds * ENOUGH

    def suffice(servers: int) -> bool:
        return forecast(replace(cluster, servers=servers)).seconds <= enough

    return 1 + bisect_left(range(1, most), True, key=suffice)


def partitions_advised(cluster: Cluster) -> int:
    """Return the cluster's number of partitions, or a quarter, half or double of it if an epoch is clearly shorter.

    Fewer partitions mean fewer rounds and less traffic; with more partitions more workers train at the same time.
    """
    own = cluster.partitions
    fewest = min(own, 2 * cluster.workers)  # every worker still gets a block in each round
    choices = [p for p in (own // 4, own // 2, 2 * own) if fewest <= p <= cluster.words <= p * MAX_PARTITION_ROWS]
    seconds = {p: forecast(replace(cluster, partitions=p)).seconds for p in (own, *choices)}
    best = min(seconds, key=lambda partitions: seconds[partitions])
    return best if seconds[best] * ENOUGH < seconds[own] else own


@dataclass(eq=False)
class _Task:
    """A block leased to a worker: parts of rows that are missing, and partitions taken from the worker's cache."""

    lease: int
    block: Block
    missing: int = 0
    cached: set[int] = field(default_factory=set)

    @property
    def partitions(self) -> set[int]:
        """Return the block's one or two partitions."""
        return {self.block.a, self.block.b}


class _Epochs:
    """A discrete-event simulation of one or two epochs; a queue is stored as the time at which it is free again."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.epochs = EPOCHS if cluster.partitions < MANY_PARTITIONS else 1
        self._schedule = Schedule(cluster.partitions, self.epochs, 0)
        self._goodput = cluster.bytes_per_second * LINK_SHARE
        self._number = itertools.count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._free: dict[Resource, float] = defaultdict(float)
        self._version = [0] * cluster.partitions
        self._unpushed: dict[int, int] = {}
        self._waiting_pulls: dict[int, list[tuple[int, _Task]]] = defaultdict(list)
        self._tasks: list[list[_Task]] = [[] for _ in range(cluster.workers)]
        self._asking = [False] * cluster.workers
        self._waiting_leases: list[int] = []  # workers whose request shard 0 could not answer yet
        self._computing = [False] * cluster.workers
        size = cluster.words * cluster.row_bytes // cluster.partitions
        self._kept: list[PartitionCache[None]] = [PartitionCache(cache_capacity(size)) for _ in range(cluster.workers)]
        self._ahead = [PrefetchWindow(size) for _ in range(cluster.workers)]
        self.now = 0.0
        self.pulled = self.pushed = 0
        self.busy: dict[Resource, float] = defaultdict(float)
        self.links = Links(lambda: self.now, self._after)
        sharding = Sharding(cluster.words, cluster.servers)
        bounds = [cluster.words * p // cluster.partitions for p in range(cluster.partitions + 1)]
        self._parts = [
            [(part.shard, (part.last - part.first) * cluster.row_bytes) for part in sharding.split(*span)]
            for span in itertools.pairwise(bounds)
        ]

    def run(self) -> None:
        """Process events until every block is trained."""
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

    def _ask(self, worker: int) -> None:
        """Send a lease request, unless the worker has one unanswered or holds enough blocks."""
        pulled = sum(len(task.partitions - task.cached) for task in self._tasks[worker])
        if not self._asking[worker] and len(self._tasks[worker]) < self._ahead[worker].tasks(pulled):
            self._asking[worker] = True
            self._after(self._cluster.round_trip_s / 2, partial(self._asked, worker))

    def _asked(self, worker: int) -> None:
        self._waiting_leases.append(worker)
        self._grant()

    def _grant(self) -> None:
        """Grant blocks to waiting workers, as shard 0, in the order of their requests."""
        for worker in list(self._waiting_leases):
            if granted := self._schedule.grant(str(worker)):
                self._waiting_leases.remove(worker)
                self._after(self._cluster.round_trip_s / 2, partial(self._take, worker, _Task(*granted)))

    def _take(self, worker: int, task: _Task) -> None:
        """Pull the rows of a block, except those in the worker's cache or to be added there by an earlier block."""
        before = [t.partitions for t in self._tasks[worker] if t.block.round == task.block.round - 1]
        for partition in task.partitions:
            if self._kept[worker].has((partition, task.block.round)) or any(partition in those for those in before):
                task.cached.add(partition)
            else:
                task.missing += 1
                self._after(self._cluster.round_trip_s / 2, partial(self._pull, worker, task, partition))
        self._tasks[worker].append(task)
        self._asking[worker] = False
        self._ask(worker)
        self._compute(worker)

    def _pull(self, worker: int, task: _Task, partition: int) -> None:
        """Answer a pull that has reached the shards, once the partition's version is the block's round."""
        if self._version[partition] < task.block.round:
            self._waiting_pulls[partition].append((worker, task))
            return
        parts = self._parts[partition]
        task.missing += len(parts) - 1
        for shard, size in parts:
            self.pulled += size
            link = ("server link, out", shard), ("worker link, in", worker)
            arrived = partial(self._after, self._cluster.round_trip_s / 2, partial(self._arrived, worker, task))
            sent = partial(self.links.send, *link, size / self._goodput, arrived)
            self._use(("server", shard), size / self._cluster.served_per_second, sent)

    def _arrived(self, worker: int, task: _Task) -> None:
        task.missing -= 1
        self._compute(worker)

    def _compute(self, worker: int) -> None:
        """Train the first block whose rows have arrived, if the worker is idle."""
        kept = self._kept[worker]
        ready = [
            t for t in self._tasks[worker] if not t.missing and all(kept.has((p, t.block.round)) for p in t.cached)
        ]
        if self._computing[worker] or not ready:
            return
        task = min(ready, key=lambda task: task.block)
        entries = self._cluster.entries / self._cluster.partitions**2 * len(task.partitions)
        self._computing[worker] = True
        for partition in task.cached:
            kept.take((partition, task.block.round))
        seconds = entries / self._cluster.entries_per_second
        self._ahead[worker].trained(seconds)
        self._use(("worker", worker), seconds, partial(self._computed, worker, task))

    def _computed(self, worker: int, task: _Task) -> None:
        self._computing[worker] = False
        answered = partial(self._answered, worker, task, self.now)
        self._tasks[worker].remove(task)
        needed = {(partition, other.block.round) for other in self._tasks[worker] for partition in other.cached}
        for partition in task.partitions:
            self._kept[worker].put((partition, task.block.round + 1), None, needed)
        left = [sum(len(self._parts[partition]) for partition in task.partitions)]
        for partition in task.partitions:
            for shard, size in self._parts[partition]:
                self.pushed += size
                served = partial(
                    self._use, ("server", shard), size / self._cluster.served_per_second,
                    partial(self._pushed, partition, left, answered),
                )  # fmt: skip
                came = partial(self._after, self._cluster.round_trip_s / 2, served)
                self.links.send(("worker link, out", worker), ("server link, in", shard), size / self._goodput, came)
        self._ask(worker)
        self._compute(worker)

    def _pushed(self, partition: int, left: list[int], answered: Callable[[], None]) -> None:
        """Apply one part of a push; answer the worker after the last part, and pulls that waited for this version."""
        left[0] -= 1
        unpushed = self._unpushed.pop(partition, len(self._parts[partition])) - 1
        if unpushed:
            self._unpushed[partition] = unpushed
        else:
            self._version[partition] += 1
            for waiting, its_task in self._waiting_pulls.pop(partition, []):
                self._pull(waiting, its_task, partition)
        if not left[0]:
            self._after(self._cluster.round_trip_s / 2, answered)

    def _answered(self, worker: int, task: _Task, pushed: float) -> None:
        """Report a block whose push is answered; the report ends the block's lease."""
        self._ahead[worker].pushed(self.now - pushed)
        self._after(self._cluster.round_trip_s / 2, partial(self._reported, task))
        self._ask(worker)

    def _reported(self, task: _Task) -> None:
        self._schedule.finish(task.lease)
        self._grant()
