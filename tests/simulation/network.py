"""A network between processes that delays, loses, duplicates and reorders messages, and whose links can be cut.

A client has a connection to every shard. When a link is cut, messages in flight are lost; afterwards the server knows
the client under another routing id, as ZeroMQ's ROUTER does.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import msgpack
from world import Broken, World

from glovewire.common.errors import UnknownSession
from glovewire.common.protocol import messages as m
from glovewire.common.protocol import wire
from glovewire.common.protocol.wire import Frame

if TYPE_CHECKING:
    from visitors import Subscription

Way = tuple[str, str, str]
"""A client, an address, and "request", "reply" or "stream"."""

WELCOME, REFUSED = b"\xa7Welcome", b"\xa7Refused"
"""Names of messages as they are encoded in headers."""
LIAR = "liar"
"""The client that does not keep to the protocol."""
OVERTAKEN_S, SLOW_S = 0.2, 10.0
FULL = 0.7
"""The share of messages that a full queue rejects."""
STEP_S = 0.0005
"""What a check for messages costs: training between two checks takes time."""


@dataclass
class Weather:
    """How bad the network is: seconds of delay, and the probabilities of what may happen to a message."""

    delay_s: float = 0.0005
    jitter_s: float = 0.0005
    loss: float = 0.0
    repeat: float = 0.0
    overtake: float = 0.0


class Listener(Protocol):
    """A shard that serves an address."""

    def arrive(self, peer: bytes, frames: list[Frame]) -> None:
        """Take a message."""


class Network:
    """Carries messages; `weather` applies to all of them, `cut_until` says until when links are cut."""

    def __init__(self, world: World) -> None:
        self.world, self.weather = world, Weather()
        self.listeners: dict[str, Listener] = {}
        self.cut_until: dict[tuple[str, str], float] = {}
        self.counts = {"sent": 0, "lost": 0, "repeated": 0}
        self.subscriptions: list[Subscription] = []
        self._clients: dict[bytes, tuple[SimulatedLinks, int]] = {}
        self._last: dict[tuple[bytes, Way], float] = {}
        self._streams: dict[tuple[str, Way], random.Random] = {}
        self._slow: dict[tuple[str, str], tuple[float, float]] = {}
        self._lost_until: dict[Way, float] = {}
        self._full_until: dict[tuple[str, str], float] = {}
        self._bad_until: dict[tuple[str, str], float] = {}
        self._unheard_until: dict[tuple[str, str], float] = {}
        self._lossy_until = -1.0
        self._peers = 0

    def new_peer(self, links: SimulatedLinks, shard: int) -> bytes:
        """Return the routing id of a new connection."""
        self._peers += 1
        peer = f"peer-{self._peers}".encode()
        self._clients[peer] = links, shard
        return peer

    def cut(self, client: str, address: str, seconds: float) -> None:
        """Cut the link between a client and an address."""
        self.world.tell(f"cuts {client} from {address} for {seconds:.2f} s")
        self.cut_until[client, address] = self.world.now + seconds
        self._is_bad(client, address, seconds)
        for peer, (links, shard) in list(self._clients.items()):
            if links.name == client and links.addresses[shard] == address:
                del self._clients[peer]
                links.peers[shard] = self.new_peer(links, shard)

    def slow_down(self, client: str, address: str, seconds: float) -> None:
        """Delay every message between a client and an address by `seconds`, for SLOW_S."""
        self.world.tell(f"slows {client} to {address} down by {seconds:.2f} s")
        self._slow[client, address] = self.world.now + SLOW_S, seconds
        self._is_bad(client, address, SLOW_S + seconds)

    def lose(self, way: Way, seconds: float) -> None:
        """Lose every message in one direction for a time; the connection stays."""
        self.world.tell(f"loses each {way[2]} between {way[0]} and {way[1]} for {seconds:.2f} s")
        self._lost_until[way] = self.world.now + seconds
        self._is_bad(*way[:2], seconds, is_heard=way[2] == "reply")

    def fill(self, client: str, address: str, seconds: float) -> None:
        """Fill a client's queue to an address for a time; now and then it has room for a message."""
        self.world.tell(f"fills the queue of {client} to {address} for {seconds:.2f} s")
        self._full_until[client, address] = self.world.now + seconds
        self._is_bad(client, address, seconds)

    def has_room(self, client: str, address: str) -> bool:
        """Return whether a client's queue to an address has room for a message."""
        if self._full_until.get((client, address), 0.0) <= self.world.now:
            return True
        return not self._happens("full", FULL, (client, address, "request"))

    def clear_up(self) -> None:
        """Let the weather be good from now on."""
        self._lossy_until = self.world.now if self.weather.loss else self._lossy_until
        self.weather = Weather()

    def was_good(self, client: str, address: str, since: float) -> bool:
        """Return whether no message between a client and an address was lost or held up since a time."""
        return self.was_heard(client, address, since) and self._bad_until.get((client, address), 0.0) < since

    def was_heard(self, client: str, address: str, since: float) -> bool:
        """Return whether no request of a client to an address was lost or held up since a time."""
        lossy = self.weather.loss != 0.0 or self._lossy_until >= since
        return not lossy and self._unheard_until.get((client, address), 0.0) < since

    def _is_bad(self, client: str, address: str, seconds: float, *, is_heard: bool = False) -> None:
        for known in (self._bad_until, *([] if is_heard else [self._unheard_until])):
            known[client, address] = max(known.get((client, address), 0.0), self.world.now + seconds)

    def knows(self, peer: bytes) -> bool:
        """Return whether a routing id is that of an open connection."""
        return peer in self._clients

    def to_server(self, links: SimulatedLinks, shard: int, frames: list[Frame]) -> None:
        """Carry a request."""
        peer, address = links.peers[shard], links.addresses[shard]

        def arrive() -> None:
            if self.knows(peer) and not self._is_cut(links.name, address) and (there := self.listeners.get(address)):
                there.arrive(peer, frames)
            else:
                self.counts["lost"] += 1

        self._carry(arrive, peer, (links.name, address, "request"))

    def to_client(self, peer: bytes, frames: list[Frame]) -> bool:
        """Carry a reply; return whether the client is connected."""
        if (found := self._clients.get(peer)) is None:
            return False
        links, shard = found

        def arrive() -> None:
            if self.knows(peer) and not self._is_cut(links.name, links.addresses[shard]):
                links.arrive(shard, frames)
            else:
                self.counts["lost"] += 1

        self._carry(arrive, peer, (links.name, links.addresses[shard], "reply"))
        return True

    # ---- the stream

    def subscribe(self, subscription: Subscription) -> None:
        """Begin a subscription."""
        self.subscriptions.append(subscription)

    def unsubscribe(self, subscription: Subscription) -> None:
        """End a subscription."""
        self.subscriptions = [each for each in self.subscriptions if each is not subscription]

    def publish(self, address: str, frames: list[bytes]) -> None:
        """Carry a sample to the subscribers of the shard at `address` that are connected."""
        for each in self.subscriptions:
            if each.address == address and not self._is_cut(each.name, address):
                self._carry_sample(each, frames)

    def _carry_sample(self, subscription: Subscription, frames: list[bytes]) -> None:
        way = subscription.name, subscription.address, "stream"

        def arrive() -> None:
            if subscription in self.subscriptions and not self._is_cut(*way[:2]):
                subscription.arrive(frames, self.world.now)

        self._carry(arrive, b"", way)

    def name_of(self, peer: bytes) -> str:
        """Return the name of the client at the other end of a connection, "" if the client has gone."""
        links, _ = self._clients.get(peer, (None, 0))
        return "" if links is None else links.name

    def said_by(self, peer: bytes) -> int:
        """Return how many pushes a client had transmitted to a shard before its goodbye, -1 if it is not connected."""
        links, shard = self._clients.get(peer, (None, 0))
        return -1 if links is None else links.said[shard]

    def forget(self, links: SimulatedLinks) -> None:
        """Close the connections of a client."""
        for peer in links.peers:
            self._clients.pop(peer, None)

    def _is_cut(self, client: str, address: str) -> bool:
        return self.cut_until.get((client, address), 0.0) > self.world.now

    def _carry(self, arrive: Callable[[], None], peer: bytes, way: Way) -> None:
        """Deliver a message after the earlier ones of its connection, unless the weather changes that."""
        weather, now = self.weather, self.world.now
        if not way[0].startswith("shard-"):  # traffic between shards depends on time more than on training
            self.counts["sent"] += 1
            self.world.changes += 1
        if self._happens("loss", weather.loss, way) or self._lost_until.get(way, 0.0) > now:
            self.counts["lost"] += 1
            return
        again = self._happens("repeat", weather.repeat, way)
        self.counts["repeated"] += again
        for _ in range(1 + again):
            at = now + weather.delay_s + self._stream("delay", way).random() * weather.jitter_s
            until, longer = self._slow.get(way[:2], (0.0, 0.0))
            at += longer if until > now else 0.0
            if self._happens("overtake", weather.overtake, way):
                at += self._stream("overtake", way).random() * OVERTAKEN_S
            else:
                at = self._last[peer, way] = max(at, self._last.get((peer, way), 0.0))
            self.world.at(at, arrive)

    def _happens(self, question: str, probability: float, way: Way) -> bool:
        return probability > 0 and self._stream(question, way).random() < probability

    def _stream(self, question: str, way: Way) -> random.Random:
        if (stream := self._streams.get((question, way))) is None:
            stream = self._streams[question, way] = self.world.chance(f"{question} {' '.join(way)}")
        return stream


@dataclass
class SimulatedLinks:
    """A client's connections to `addresses`; implements `Links`."""

    network: Network
    name: str
    addresses: tuple[str, ...]
    peers: list[bytes] = field(default_factory=list)
    pushes: list[int] = field(default_factory=list)
    """How many pushes were transmitted to each shard, repeats included."""
    said: list[int] = field(default_factory=list)
    """How many of them were transmitted before the goodbye, -1 if there was none yet."""
    _arrived: list[deque[list[Frame]]] = field(default_factory=list)
    _last: list[int] = field(default_factory=list)
    """The newest request to each shard, by number."""
    _overtaken: list[set[int]] = field(default_factory=list)
    """Numbers of older requests to each shard that have not been transmitted."""
    _greeting: dict[int, int] = field(default_factory=dict)
    """The number of the last hello to each shard, until it is answered."""
    _welcomed: dict[int, str] = field(default_factory=dict)
    """The run of each shard that has welcomed this client, and has not forgotten it since."""
    _wake: Callable[[], object] | None = None

    def __post_init__(self) -> None:
        self._arrived = [deque() for _ in self.addresses]
        self.pushes, self.said = [0 for _ in self.addresses], [-1 for _ in self.addresses]
        self._last, self._overtaken = [0 for _ in self.addresses], [set() for _ in self.addresses]
        self.peers = [self.network.new_peer(self, shard) for shard in range(len(self.addresses))]

    def now(self) -> float:
        """See Links."""
        return self.network.world.time

    def send(self, shard: int, frames: list[Frame]) -> bool:
        """See Links. Frames are copied, since what was sent must not change any more."""
        if not self.network.has_room(self.name, self.addresses[shard]):
            return False
        _, _, header, *_ = sent = [bytes(frame) for frame in frames]
        kind, number, *_ = msgpack.unpackb(header)
        self._check_order(shard, kind, number)
        if kind == "Hello" and self.name != LIAR:
            self._check_hello(shard, number)
        self.pushes[shard] += kind == "Push"
        if kind == "Leave" and self.said[shard] < 0:
            self.said[shard] = self.pushes[shard]
        self.network.to_server(self, shard, sent[1:])
        return True

    def _check_hello(self, shard: int, number: int) -> None:
        """Require that a client that all shards have welcomed says no further hello until one has forgotten it."""
        has_joined = len(self._welcomed) == len(self.addresses) and len(set(self._welcomed.values())) == 1
        self._require(not has_joined, f"says hello again to shard {shard}, and all have welcomed it")
        self._greeting[shard] = number

    def _check_order(self, shard: int, kind: str, number: int) -> None:
        """Require that requests are transmitted in the order in which the client made, and numbered, them."""
        in_order = number not in self._overtaken[shard]
        self._require(in_order, f"has sent {kind} {number} to shard {shard} after later requests")
        self._overtaken[shard].update(range(self._last[shard] + 1, number))
        self._last[shard] = max(self._last[shard], number)

    def wait(self, timeout_ms: int) -> list[int]:
        """See Links."""
        world = self.network.world
        if any(self._arrived):
            world.sleep(STEP_S)
        else:
            self._wake = world.waker()
            world.wait(max(timeout_ms / 1e3, STEP_S))
            self._wake = None
        return [shard for shard, messages in enumerate(self._arrived) if messages]

    def has_message(self, shard: int) -> bool:
        """See Links."""
        return bool(self._arrived[shard])

    def receive(self, shard: int) -> list[Frame]:
        """See Links."""
        frames = self._arrived[shard].popleft()
        if frames[1][1:9] in (WELCOME, REFUSED):
            reply = wire.decode(frames)
            is_first = reply.number == self._greeting.get(shard)
            if is_first:
                del self._greeting[shard]
            if isinstance(reply.message, m.Welcome) and is_first:
                self._welcomed[shard] = reply.message.run
            elif isinstance(reply.message, m.Refused) and reply.message.code == UnknownSession.code:
                self._welcomed.pop(shard, None)
        return frames

    def _require(self, holds: bool, otherwise: str) -> None:
        """See `oracles.require`, but do not interrupt this client."""
        if not holds:
            self.network.world.broken = self.network.world.broken or Broken(f"{self.name} {otherwise}")

    def arrive(self, shard: int, frames: list[Frame]) -> None:
        """Take a reply from the network."""
        self._arrived[shard].append(frames)
        if self._wake is not None:
            self._wake()

    def check(self) -> None:
        """See Links."""

    def doubt(self, shard: int) -> str:
        """See Links."""
        del shard
        return ""

    def close(self) -> None:
        """See Links."""
        self.network.forget(self)
