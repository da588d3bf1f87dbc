"""How long an epoch takes on machines that one does not have yet: the block schedule, played through with a clock.

Everybody does in the model what they do in training: the real `Schedule` grants blocks, a worker keeps as many of them
to train as `Ahead` says, pulls the rows that it has not got, computes one block at a time and pushes; a pull waits for
its partition's version.
Shards and workers are queues that serve at a rate, links are shared by connections. Pure: no network, clock or files.
"""

from __future__ import annotations

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

from .links import Flows

Resource = tuple[str, int]

EPOCHS = 2
MANY_PARTITIONS = 48
"""With so many, one epoch has rounds enough to say how long it takes."""
LINK_SHARE = 0.95
"""What TCP's headers leave of a link."""
ENOUGH = 1.1
MAX_SERVERS = 64


@dataclass(frozen=True)
class Cluster:
    """What is trained and on what; an epoch covers `entries` of the full matrix.

    `row_bytes` is a row on the wire. `entries_per_second` is one worker's kernel, `bytes_per_second` of a link in each
    direction, `served_per_second` the bytes that a shard can copy, `round_trip_s` between a worker and a shard.
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
    """Seconds and bytes of an epoch, and which part of it each kind of resource was busy, the busiest of its kind."""

    seconds: float
    bytes_pulled: float
    bytes_pushed: float
    busy: dict[str, float]

    @property
    def bottleneck(self) -> str:
        """What is busiest; `rounds` when everybody waits for rows that others have."""
        name = max(self.busy, key=lambda kind: self.busy[kind])
        return name if self.busy[name] > 0.6 else "rounds"


def forecast(cluster: Cluster) -> Forecast:
    """Play a few epochs; the mean of them."""
    play = _Play(cluster)
    play.run()
    busy: dict[str, float] = defaultdict(float)
    for (kind, _), seconds in [*play.busy.items(), *play.flows.busy.items()]:
        busy[kind] = max(busy[kind], seconds / play.now)
    return Forecast(play.now / play.epochs, play.pulled / play.epochs, play.pushed / play.epochs, dict(busy))


def servers_needed(cluster: Cluster) -> int:
    """The fewest shards with which more would not help: within 10 % of what very many give."""
    most = min(MAX_SERVERS, cluster.partitions)
    enough = forecast(replace(cluster, servers=most)).seconds * ENOUGH

    def suffice(servers: int) -> bool:
        return forecast(replace(cluster, servers=servers)).seconds <= enough

    return 1 + bisect_left(range(1, most), True, key=suffice)


def partitions_advised(cluster: Cluster) -> int:
    """Those of the cluster, or a half, a quarter or twice as many where an epoch would be clearly shorter.

    Fewer make fewer rounds and less to send, more let more workers train at the same time.
    """
    own = cluster.partitions
    fewest = min(own, 2 * cluster.workers)  # with these, every worker still has a block in each round
    choices = [p for p in (own // 4, own // 2, 2 * own) if fewest <= p <= cluster.words <= p * MAX_PARTITION_ROWS]
    seconds = {p: forecast(replace(cluster, partitions=p)).seconds for p in (own, *choices)}
    best = min(seconds, key=lambda partitions: seconds[partitions])
    return best if seconds[best] * ENOUGH < seconds[own] else own


@dataclass(eq=False)
class _Task:
    """A block that a worker holds: how many parts of its rows are on their way, which partitions need not come."""

    lease: int
    block: Block
    missing: int = 0
    own: set[int] = field(default_factory=set)

    @property
    def partitions(self) -> set[int]:
        """One or two."""
        return {self.block.a, self.block.b}


class _Play:
    """One training in the model: events in the order of their time; a queue remembers when it is free again."""

    def __init__(self, cluster: Cluster) -> None:
        self._of = cluster
        self.epochs = EPOCHS if cluster.partitions < MANY_PARTITIONS else 1
        self._schedule = Schedule(cluster.partitions, self.epochs, 0)
        self._goodput = cluster.bytes_per_second * LINK_SHARE
        self._number = itertools.count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._free: dict[Resource, float] = defaultdict(float)
        self._version = [0] * cluster.partitions
        self._unpushed: dict[int, int] = {}
        self._parked: dict[int, list[tuple[int, _Task]]] = defaultdict(list)
        self._tasks: list[list[_Task]] = [[] for _ in range(cluster.workers)]
        self._asking = [False] * cluster.workers
        self._waiting: list[int] = []  # workers whose question shard 0 could not answer yet
        self._computing = [False] * cluster.workers
        size = cluster.words * cluster.row_bytes // cluster.partitions
        self._kept: list[PartitionCache[None]] = [PartitionCache(cache_capacity(size)) for _ in range(cluster.workers)]
        self._ahead = [PrefetchWindow(size) for _ in range(cluster.workers)]
        self.now = 0.0
        self.pulled = self.pushed = 0
        self.busy: dict[Resource, float] = defaultdict(float)
        self.flows = Flows(lambda: self.now, self._after)
        sharding = Sharding(cluster.words, cluster.servers)
        bounds = [cluster.words * p // cluster.partitions for p in range(cluster.partitions + 1)]
        self._parts = [
            [(part.shard, (part.last - part.first) * cluster.row_bytes) for part in sharding.split(*span)]
            for span in itertools.pairwise(bounds)
        ]

    def run(self) -> None:
        """Until everything is trained."""
        for worker in range(self._of.workers):
            self._ask(worker)
        while self._events:
            self.now, _, happens = heapq.heappop(self._events)
            happens()

    def _after(self, seconds: float, happens: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._number), happens))

    def _use(self, resource: Resource, seconds: float, happens: Callable[[], None]) -> None:
        """Something happens when a job is done that takes a resource so long."""
        self._free[resource] = max(self.now, self._free[resource]) + seconds
        self.busy[resource] += seconds
        self._after(self._free[resource] - self.now, happens)

    def _ask(self, worker: int) -> None:
        """A worker keeps one question open while it has few blocks to train."""
        pulled = sum(len(task.partitions - task.own) for task in self._tasks[worker])
        if not self._asking[worker] and len(self._tasks[worker]) < self._ahead[worker].tasks(pulled):
            self._asking[worker] = True
            self._after(self._of.round_trip_s / 2, partial(self._asked, worker))

    def _asked(self, worker: int) -> None:
        self._waiting.append(worker)
        self._grant()

    def _grant(self) -> None:
        """Shard 0 hands out what it may, first to those who have waited longest."""
        for worker in list(self._waiting):
            if granted := self._schedule.grant(str(worker)):
                self._waiting.remove(worker)
                self._after(self._of.round_trip_s / 2, partial(self._take, worker, _Task(*granted)))

    def _take(self, worker: int, task: _Task) -> None:
        """Ask for the rows of a block, except those that the worker has, or will have from an earlier one."""
        before = [t.partitions for t in self._tasks[worker] if t.block.round == task.block.round - 1]
        for partition in task.partitions:
            if self._kept[worker].has((partition, task.block.round)) or any(partition in those for those in before):
                task.own.add(partition)
            else:
                task.missing += 1
                self._after(self._of.round_trip_s / 2, partial(self._pull, worker, task, partition))
        self._tasks[worker].append(task)
        self._asking[worker] = False
        self._ask(worker)
        self._compute(worker)

    def _pull(self, worker: int, task: _Task, partition: int) -> None:
        """A pull is at the shards: they answer when the partition has come to the block's round."""
        if self._version[partition] < task.block.round:
            self._parked[partition].append((worker, task))
            return
        parts = self._parts[partition]
        task.missing += len(parts) - 1
        for shard, size in parts:
            self.pulled += size
            link = ("server link, out", shard), ("worker link, in", worker)
            arrived = partial(self._after, self._of.round_trip_s / 2, partial(self._arrived, worker, task))
            sent = partial(self.flows.send, *link, size / self._goodput, arrived)
            self._use(("server", shard), size / self._of.served_per_second, sent)

    def _arrived(self, worker: int, task: _Task) -> None:
        task.missing -= 1
        self._compute(worker)

    def _compute(self, worker: int) -> None:
        """Train the first block whose rows are here, if none is being trained."""
        kept = self._kept[worker]
        ready = [t for t in self._tasks[worker] if not t.missing and all(kept.has((p, t.block.round)) for p in t.own)]
        if self._computing[worker] or not ready:
            return
        task = min(ready, key=lambda task: task.block)
        entries = self._of.entries / self._of.partitions**2 * len(task.partitions)
        self._computing[worker] = True
        for partition in task.own:
            kept.take((partition, task.block.round))
        seconds = entries / self._of.entries_per_second
        self._ahead[worker].trained(seconds)
        self._use(("worker", worker), seconds, partial(self._computed, worker, task))

    def _computed(self, worker: int, task: _Task) -> None:
        self._computing[worker] = False
        answered = partial(self._answered, worker, task, self.now)
        self._tasks[worker].remove(task)
        needed = {(partition, other.block.round) for other in self._tasks[worker] for partition in other.own}
        for partition in task.partitions:
            self._kept[worker].put((partition, task.block.round + 1), None, needed)
        left = [sum(len(self._parts[partition]) for partition in task.partitions)]
        for partition in task.partitions:
            for shard, size in self._parts[partition]:
                self.pushed += size
                served = partial(
                    self._use, ("server", shard), size / self._of.served_per_second,
                    partial(self._pushed, partition, left, answered),
                )  # fmt: skip
                came = partial(self._after, self._of.round_trip_s / 2, served)
                self.flows.send(("worker link, out", worker), ("server link, in", shard), size / self._goodput, came)
        self._ask(worker)
        self._compute(worker)

    def _pushed(self, partition: int, left: list[int], answered: Callable[[], None]) -> None:
        """A part of a push is in the table; the worker hears of the last one."""
        left[0] -= 1
        unpushed = self._unpushed.pop(partition, len(self._parts[partition])) - 1
        if unpushed:
            self._unpushed[partition] = unpushed
        else:
            self._version[partition] += 1
            for waiting, its_task in self._parked.pop(partition, []):
                self._pull(waiting, its_task, partition)
        if not left[0]:
            self._after(self._of.round_trip_s / 2, answered)

    def _answered(self, worker: int, task: _Task, pushed: float) -> None:
        """All of a block is in the tables: the report ends its lease."""
        self._ahead[worker].pushed(self.now - pushed)
        self._after(self._of.round_trip_s / 2, partial(self._reported, task))
        self._ask(worker)

    def _reported(self, task: _Task) -> None:
        self._schedule.finish(task.lease)
        self._grant()
