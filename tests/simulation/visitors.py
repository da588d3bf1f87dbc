"""Monitors and administrators of a simulated cluster: the program's own code on simulated connections.

A monitor is `monitor.stream.feed.Feed`; its samples are compared with the published ones. An administrator sends
commands and queries in an order that the seed decides, and checks the answers.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import zmq
from oracles import require

from glovewire.cli import admin
from glovewire.common.addresses import with_port
from glovewire.common.client.pending import expect
from glovewire.common.endings import Ending, RunEnd
from glovewire.common.errors import (
    DeadlineExceeded,
    LimitExceeded,
    NotReady,
    RunOver,
    UnknownSession,
)
from glovewire.common.model.sharding import Sharding
from glovewire.common.protocol import messages as m
from glovewire.common.protocol import wire
from glovewire.common.transport.client import RequestClient
from glovewire.monitor.stream.feed import Feed, ReceivedSample

if TYPE_CHECKING:
    from cluster import Cluster
    from network import Network

REQUEST_PORT, PUBLISH_PORT = 5555, 5556
KEEN = 10.0
SILENCE_S = 30.0
ANSWER_S = 20.0
ORDINARY = (DeadlineExceeded, LimitExceeded, NotReady, RunOver, UnknownSession)
"""Errors that a command of an administrator may end with when shards restart, or the run is over."""


# ---- the stream


@dataclass
class SimulatedContext:
    """Stands for the ZeroMQ context, poller and receive function of a Feed, the subscriber called `name`."""

    network: Network
    name: str
    _sockets: list[Subscription] = field(default_factory=list)

    def subscriber(self, address: str) -> Subscription:
        """Subscribe to an address."""
        subscription = Subscription(self.name, with_port(address, REQUEST_PORT))
        self._sockets.append(subscription)
        self.network.subscribe(subscription)
        return subscription

    def handshakes(self, _: object) -> SimulatedContext:
        """Return a stand-in that reports refused handshakes: there are none."""
        return self

    doubt = ""

    def check(self) -> None:
        """Do nothing: no handshake is refused."""

    def register(self, _: object, __: int = 0) -> None:
        """See zmq.Poller."""

    unregister = register

    def poll(self, timeout_ms: int) -> list[tuple[Subscription, int]]:
        """See zmq.Poller."""
        if not any(each.arrived for each in self._sockets):
            waker = self.network.world.waker()
            for each in self._sockets:
                each.wake = waker
            self.network.world.wait(timeout_ms / 1e3)
        return [(each, zmq.POLLIN) for each in self._sockets if each.arrived]

    def close(self) -> None:
        """End every subscription."""
        for each in self._sockets:
            self.network.unsubscribe(each)


@dataclass(eq=False)
class Subscription:
    """The connection of a subscriber to the shard that takes requests at `address`."""

    name: str
    address: str
    arrived: deque[list[bytes]] = field(default_factory=deque)
    seen: dict[tuple[str, int], float] = field(default_factory=dict)
    """Virtual time at which each sample, by run and number, first arrived."""
    closed: bool = False
    wake: Callable[[], object] = lambda: None

    def arrive(self, frames: list[bytes], now: float) -> None:
        """Take a sample."""
        self.arrived.append(frames)
        sample = wire.decode_sample(frames)
        self.seen.setdefault((sample.run, sample.number), now)
        self.wake()


def receive(subscription: Subscription) -> list[bytes]:
    """Return the next message, or raise zmq.Again."""
    if not subscription.arrived:
        raise zmq.Again
    return subscription.arrived.popleft()


class Published(dict[tuple[str, str, int], bytes]):
    """Headers of all samples that were published, by address, run and number."""

    def __init__(self) -> None:
        super().__init__()
        self._newest = Counter[tuple[str, str]]()
        self.newest_of: dict[str, tuple[str, object]] = {}
        """The run of the newest sample of each address, and the daemon that published it."""

    def add(self, address: str, run: str, header: bytes, daemon: object) -> None:
        """Add the next sample of a run at an address."""
        self._newest[address, run] += 1
        self[address, run, self._newest[address, run]] = header
        self.newest_of[address] = run, daemon


@dataclass
class StreamOracle:
    """Requires that a subscriber gets every sample of an address once and in order, or counts those that it misses.

    It misses none if it could request them from the shard: `could_ask(run, number)` returns whether the shard and the
    link to it have been undisturbed since the first sample of the run above `number` arrived.
    """

    published: Published
    could_ask: Callable[[str, int], bool]
    run: str = ""
    last: int = 0
    base: int = 0
    found: int = 0
    former: set[str] = field(default_factory=set)

    def received(self, each: ReceivedSample) -> None:
        """Check a sample that a Feed has yielded."""
        if each.run != self.run:
            require(each.run not in self.former, f"{each.address} goes back to the run {each.run}")
            require(each.restarted == bool(self.run), f"the run {each.run} at {each.address} is new, and not told so")
            self.former.add(self.run)
            self.run, self.last, self.base, self.found = each.run, 0, 0, 0
        told = f"sample {each.number} of the run {each.run} at {each.address}"
        header = self.published.get((with_port(each.address, REQUEST_PORT), each.run, each.number))
        require(header == wire.encode_sample(each.run, each.number, each.message)[-1], f"{told} is not as published")
        require(each.number > self.last, f"{told} came after {self.last}")
        self.last = each.number
        if each.past:
            self.found += each.merged
            return
        gap = each.number - self.base - 1
        late = self.base == 0  # the subscriber joined during the run
        missed = gap - self.found
        require(each.lost == (0 if late else missed), f"before {told} {missed} are missing, and {each.lost} counted")
        require(
            not each.lost or not self.could_ask(each.run, self.base), f"before {told} {each.lost} were not asked for"
        )
        self.base, self.found = each.number, 0


def follow(cluster: Cluster) -> dict[str, Any]:
    """Watch a run to its end."""
    addresses = [with_port(address, PUBLISH_PORT) for address in cluster.addresses]
    oracles = {
        address: StreamOracle(cluster.published, partial(_could_ask, cluster, shard))
        for shard, address in enumerate(addresses)
    }
    with Feed(addresses, timeout_s=SILENCE_S, silence_s=SILENCE_S) as feed:
        while not feed.over:
            for each in feed.poll(0.25):
                oracles[each.address].received(each)
    return RunEnd(Ending.LEFT).as_fields()


def _could_ask(cluster: Cluster, shard: int, run: str, number: int) -> bool:
    """See StreamOracle. Return False once the run ends: shards are busy with its results then.

    A restarted shard does not answer before it serves, nor does a failed one that still waits for a store.
    """
    network, process, address = cluster.network, cluster.shards[shard], cluster.addresses[shard]
    seen = next(each.seen for each in network.subscriptions if each.address == address)
    since = min(time for (of, which), time in seen.items() if of == run and which > number)
    is_same = process.alive and max(process.started, process.stopped_until) < since
    return (
        is_same
        and cluster.published.newest_of[address] == (run, network.listeners.get(address))
        and cluster.ends_at is None
        and network.was_good("monitor", address, since)
    )


# ---- commands


def administer(cluster: Cluster, name: str, connect: Callable[[str], RequestClient]) -> dict[str, Any]:
    """Send commands and queries in an order that the seed decides, until the run is over.

    `connect(name)` makes a client. Each checkpoint that all shards report as written is restored. A keen administrator
    requests nothing but checkpoints, KEEN a second.
    """
    chance = cluster.world.chance(f"commands of {name} after {cluster.started[name]} starts")
    commands = [_checkpoint, _hasty] if cluster.keen else [_status, _words, _history, _score, _checkpoint]
    while True:
        cluster.world.sleep(chance.expovariate(KEEN if cluster.keen else 2.0))
        command = chance.choice(commands)
        with suppress(*ORDINARY), connect(f"{name}.{chance.randrange(1 << 30)}") as client:
            command(cluster, client)


def proceed(cluster: Cluster, connect: Callable[[str], RequestClient]) -> dict[str, Any]:
    """Let a held run continue after every epoch."""
    while True:
        with suppress(*ORDINARY), connect("scorer") as client:
            client.connect("observer", ANSWER_S)
            while True:
                client.ask(0, m.Proceed(_ask_status(client, 0)["epoch"] + 1), ANSWER_S)
                client.poll(200)
        cluster.world.sleep(0.2)


def finish(cluster: Cluster, connect: Callable[[str], RequestClient]) -> dict[str, Any]:
    """Ask every shard to end the run."""
    while True:
        with suppress(*ORDINARY), connect("finisher") as client:
            for shard in range(len(cluster.addresses)):
                expect(client.ask(shard, m.Finish(Ending.ASKED), ANSWER_S), m.Finishing)
            return RunEnd(Ending.LEFT).as_fields()
        cluster.world.sleep(0.2)


def _ask_status(client: RequestClient, shard: int) -> dict[str, Any]:
    status: dict[str, Any] = json.loads(bytes(expect(client.ask(shard, m.GetStatus(), ANSWER_S), m.Status).body))
    return status


def _status(cluster: Cluster, client: RequestClient) -> None:
    for shard in range(len(cluster.addresses)):
        status = _ask_status(client, shard)
        pushes = status["pushes"]
        answered = pushes["applied"] + pushes["repeated"] + pushes["refused"]
        require(status["shard"] == shard, f"shard {shard} calls itself {status['shard']}")
        require(pushes["heard"] == answered, f"shard {shard} counts {pushes}")


def _words(cluster: Cluster, client: RequestClient) -> None:
    if cluster.dataset_words:
        first, last = Sharding(len(cluster.dataset_words), len(cluster.addresses)).range(0)
        words = expect(client.ask(0, m.GetWords(first, last), ANSWER_S), m.Words)
        expected = cluster.dataset_words[first:last]
        require(bytes(words.words).decode().split() == expected, f"rows {first}..{last} have other words")


def _history(cluster: Cluster, client: RequestClient) -> None:
    shard = len(cluster.addresses) - 1
    history = expect(client.ask(shard, m.GetHistory(0), ANSWER_S), m.History)
    for header in wire.split_headers(history.samples.data):
        number = wire.decode_header(header).number
        published = cluster.published.get((cluster.addresses[shard], history.run, number))
        require(published == bytes(header), f"sample {number} of shard {shard} was published otherwise")


def _score(_: Cluster, client: RequestClient) -> None:
    client.connect("observer", ANSWER_S)
    expect(client.ask(0, m.Score("similarity", 50.0), ANSWER_S), m.Recorded)
    client.part(RunEnd(Ending.LEFT))


def _checkpoint(cluster: Cluster, client: RequestClient) -> None:
    client.connect("observer", ANSWER_S)
    labels = admin._cut(client, cluster.addresses, ANSWER_S)
    require(len(labels) == len(cluster.addresses), f"of a checkpoint there are the parts {labels}")
    require(len(set(labels)) == 1, f"a checkpoint has the labels {labels}")
    cluster.checkpoints.answered(labels[0])
    client.part(RunEnd(Ending.LEFT))


def _hasty(_: Cluster, client: RequestClient) -> None:
    """Ask one shard after the other for a checkpoint at the round that training has only just reached."""
    client.connect("observer", ANSWER_S)
    shards = range(len(client.channels))
    reached = max(_ask_status(client, shard)["round"] for shard in shards)
    for shard in shards if reached >= 0 else ():
        client.ask(shard, m.Checkpoint(reached), ANSWER_S)
