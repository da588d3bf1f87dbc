"""Bound what one peer may cost: connections, bytes of replies to it and of pushes from it, unreadable messages.

No sockets; `now` is an argument.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, Protocol

from glovewire.common.protocol.messages import Create, Lease, Pull
from glovewire.common.roles import Client
from glovewire.common.transport.connections import Connection

from .sessions import Peer

# ---- replies

PEER_BYTES = 8 << 20
TOTAL_BYTES = 32 << 20
STUCK_S = 1.0
OTHERS_BYTES = 8 << 20
"""Bytes on their way to all clients other than workers, reading or not, from which on none gets a big reply."""
MAX_DEFERRED = 32
DEFERRED_BYTES, TOTAL_DEFERRED_BYTES = 4 << 20, 64 << 20
"""Deferred pulls per peer, and the bytes of row numbers that they hold, per peer (or a single pull) and in all; further
ones are dropped, and the peer sends them again."""


class Tracker(Protocol):
    """Tells whether ZeroMQ has sent a frame."""

    @property
    def done(self) -> bool:
        """Return whether the frame has been sent."""


@dataclass
class PeerQueue:
    """Frames that ZeroMQ still holds for one peer, oldest first, and the pulls deferred until they are sent."""

    frames: deque[tuple[Tracker, int, float]] = field(default_factory=deque)
    nbytes: int = 0
    deferred: deque[tuple[int, Pull, Client | None]] = field(default_factory=deque)

    def settle(self) -> None:
        """Forget frames that have been sent."""
        while self.frames and self.frames[0][0].done:
            self.nbytes -= self.frames.popleft()[1]

    def is_stuck(self, now: float) -> bool:
        """Return whether ZeroMQ has held the oldest frame for longer than STUCK_S."""
        return bool(self.frames) and now - self.frames[0][2] > STUCK_S


class Outbox:
    """Back-pressure in bytes: a pull is deferred while too much is on its way to its peer, or to all peers.

    ZeroMQ bounds its queues only by the number of messages, and one reply may have 64 MiB. Bytes for workers that have
    stopped reading do not count against other workers. Clients other than the present `workers` share OTHERS_BYTES.
    """

    def __init__(self, workers: AbstractSet[Peer]) -> None:
        self._queues: dict[Peer, PeerQueue] = {}
        self._workers = workers
        self._deferred_bytes = 0

    def has_room(self, peer: Peer, now: float) -> bool:
        """Return whether a pull of `peer` may be answered now."""
        if self._is_crowded(peer):
            return False
        moving = sum(queue.nbytes for other, queue in self._queues.items() if other != peer and not queue.is_stuck(now))
        own = self._queues.get(peer)
        if own is None:
            return moving < TOTAL_BYTES
        own.settle()
        return own.nbytes < PEER_BYTES and own.nbytes + moving < TOTAL_BYTES

    def is_full(self, peer: Peer) -> bool:
        """Return whether no big reply may be sent to `peer`, not even to a request that has waited for a condition."""
        own = self._queues.get(peer)
        return (own is not None and own.nbytes > 4 * PEER_BYTES) or self._is_crowded(peer)

    def _is_crowded(self, peer: Peer) -> bool:
        """Return whether `peer` is not a worker, and too much is on its way to all clients that are not."""
        if peer in self._workers or not self._queues:
            return False
        return sum(queue.nbytes for other, queue in self._queues.items() if other not in self._workers) >= OTHERS_BYTES

    def sent(self, peer: Peer, frames: Sequence[tuple[Tracker, int]], now: float) -> None:
        """Record big frames, each as (tracker, size in bytes), that were handed to ZeroMQ at `now`."""
        queue = self._queues.setdefault(peer, PeerQueue())
        queue.frames.extend((tracker, nbytes, now) for tracker, nbytes in frames)
        queue.nbytes += sum(nbytes for _, nbytes in frames)

    def defer(self, peer: Peer, number: int, pull: Pull, client: Client | None = None) -> None:
        """Keep a pull of `client` until there is room; ignore repeats of it, and pulls beyond the limits."""
        deferred = self._queues.setdefault(peer, PeerQueue()).deferred
        if len(deferred) >= MAX_DEFERRED or any(number == other for other, _, _ in deferred):
            return
        own, nbytes = sum(held_bytes(other) for _, other, _ in deferred), held_bytes(pull)
        if nbytes and ((own and own + nbytes > DEFERRED_BYTES) or self._deferred_bytes + nbytes > TOTAL_DEFERRED_BYTES):
            return
        self._deferred_bytes += nbytes
        deferred.append((number, pull, client))

    def ready(self, now: float) -> list[tuple[Peer, int, Pull, Client | None]]:
        """Remove and return one deferred pull of each peer that has room now."""
        found = []
        for peer, queue in list(self._queues.items()):
            queue.settle()
            if queue.deferred and self.has_room(peer, now):
                number, pull, client = queue.deferred.popleft()
                self._deferred_bytes -= held_bytes(pull)
                found.append((peer, number, pull, client))
            elif not queue.deferred and not queue.frames:
                del self._queues[peer]
        return found

    @property
    def has_deferred(self) -> bool:
        """Return whether any pull is deferred."""
        return any(queue.deferred for queue in self._queues.values())


def held_bytes(request: Pull | Lease | Create) -> int:
    """Return the bytes of the row numbers or the list of tensors that a request holds while it waits."""
    match request:
        case Pull(rows=array) | Create(spec=array) if array is not None:
            return array.nbytes
    return 0


# ---- pushes

WORKER_CREDIT_BYTES = 64 << 20
TOTAL_CREDIT_BYTES = 1 << 30


class Credit:
    """Credit-based flow control: how many bytes of unanswered pushes each worker, by number, may have.

    A credit counts against the total until its worker is told a new one or leaves. So a new worker gets what is left
    of the total, perhaps nothing, and an even share once the others have been told their smaller credits. A worker
    without credit may still send one message at a time.
    """

    def __init__(self) -> None:
        self._of: dict[int, int] = {}
        self._granted = 0

    def grant(self, worker: int) -> int:
        """Return the credit to tell `worker` now; 0 for observers (-1)."""
        if worker < 0:
            return 0
        others = self._granted - self._of.setdefault(worker, 0)
        share = TOTAL_CREDIT_BYTES // len(self._of)
        self._of[worker] = min(WORKER_CREDIT_BYTES, share, TOTAL_CREDIT_BYTES - others)
        self._granted = others + self._of[worker]
        return self._of[worker]

    def of(self, worker: int) -> int:
        """Return the credit that `worker` was told last."""
        return self._of.get(worker, 0)

    def take_back(self, worker: int) -> None:
        """Release the credit of a worker that has left."""
        self._granted -= self._of.pop(worker, 0)


# ---- unreadable messages

MAX_ERRORS = 64
MAX_PEERS = 4096


@dataclass
class ErrorBudget:
    """Counts unreadable messages by peer; a peer is banned after MAX_ERRORS of them, all of which are answered.

    A peer is one connection: a new connection begins at 0. Beyond MAX_PEERS peers, the oldest are forgotten.
    """

    _errors: OrderedDict[Peer, int] = field(default_factory=OrderedDict)
    _banned: OrderedDict[Peer, bool] = field(default_factory=OrderedDict)

    def is_banned(self, peer: Peer) -> bool:
        """Return whether `peer` has spent its budget."""
        return peer in self._banned

    def record(self, peer: Peer) -> None:
        """Count an unreadable message of `peer`."""
        count = self._errors.pop(peer, 0) + 1
        if count < MAX_ERRORS:
            self._errors[peer] = count
        else:
            self._banned[peer] = False
        for kept in (self._errors, self._banned):
            while len(kept) > MAX_PEERS:
                kept.popitem(last=False)

    def must_disconnect(self, peer: Peer) -> bool:
        """Return True once for a banned peer, whose connection is to be ended then."""
        before, self._banned[peer] = self._banned[peer], True
        return not before


# ---- connections

MAX_CONNECTIONS = 2048
RESERVED_DESCRIPTORS = 64
"""Files that connections leave to checkpoints and results."""
MIN_CONNECTIONS = 16


class Connections:
    """The open connections to both sockets of a shard, and which of them to cut when there are more than `most`.

    A new connection takes the place of the oldest one whose peer has neither opened a session nor subscribed, so
    silent ones keep nothing out. Those with a session stay, of which there is a limit of its own. An address that has
    three quarters of all connections gets no more without a session, and subscribers have at most half.
    """

    def __init__(self, most: int) -> None:
        self._most = max(min(most, MAX_CONNECTIONS), MIN_CONNECTIONS)
        self._new: dict[int, Connection] = {}  # those whose peers have neither subscribed nor opened a session
        self._subscribers: dict[int, Connection] = {}
        self._members: dict[int, Connection] = {}
        self._all = self._new, self._subscribers, self._members
        self._peers: dict[int, Peer] = {}
        self._users: dict[int, str] = {}
        self._from: Counter[str] = Counter()

    def __len__(self) -> int:
        return sum(map(len, self._all))

    def __contains__(self, descriptor: int) -> bool:
        return any(descriptor in connections for connections in self._all)

    def opened(self, connection: Connection) -> None:
        """Count a connection that was accepted."""
        self.remove(connection.descriptor)
        self._new[connection.descriptor] = connection
        self._from[connection.host] += 1

    def __iter__(self) -> Iterator[Connection]:
        return (connection for connections in self._all for connection in connections.values())

    def closed(self, connection: Connection) -> bool:
        """Forget a connection that has ended; return False if its descriptor belongs to another one by now.

        Each socket reports its connections by itself: what another socket accepted meanwhile may be known already.
        """
        if any(each.get(connection.descriptor, connection) != connection for each in self._all):
            return False
        self.remove(connection.descriptor)
        return True

    def remove(self, descriptor: int) -> Connection | None:
        """Forget and return a connection; None if it is unknown, because it was cut."""
        self._peers.pop(descriptor, None)
        self._users.pop(descriptor, None)
        for connections in self._all:
            if (found := connections.pop(descriptor, None)) is not None:
                self._from -= Counter({found.host: 1})  # forgets hosts without connections
                return found
        return None

    def joined(self, descriptor: int, peer: Peer, user: str = "") -> None:
        """Record that `peer` has opened a session over a connection, with the public key `user`."""
        self._users[descriptor] = user
        if (connection := self._new.pop(descriptor, None)) is not None:
            self._members[descriptor] = connection
            self._peers[descriptor] = peer

    def subscribed(self, descriptor: int, user: str = "") -> None:
        """Record that a connection receives the stream, by the right of the public key `user`."""
        self._users[descriptor] = user
        if (connection := self._new.pop(descriptor, None)) is not None:
            self._subscribers[descriptor] = connection

    def take_of(self, users: Collection[str]) -> list[Connection]:
        """Forget and return the connections over which `users` have a session or receive the stream."""
        found = [self.remove(each) for each in [each for each, user in self._users.items() if user in users]]
        return [connection for connection in found if connection is not None]

    def take_surplus(self, session_at: Callable[[Peer], object]) -> list[Connection]:
        """Forget and return the connections to cut; those whose session has ended count as new ones."""
        if len(self) > self._most:
            for descriptor in [each for each, peer in self._peers.items() if not session_at(peer)]:
                self._new[descriptor] = self._members.pop(descriptor)
                del self._peers[descriptor]
        found: list[Connection] = []
        while (connection := self._next_surplus()) is not None:
            self.remove(connection.descriptor)
            found.append(connection)
        return found

    def _next_surplus(self) -> Connection | None:
        new = self._new.values()
        if len(self._subscribers) > self._most // 2:
            return next(iter(self._subscribers.values()))
        if len(self) > self._most:
            return next(iter(new), None)
        host, count = self._from.most_common(1)[0] if self._from else ("", 0)
        crowded = host and count > self._most * 3 // 4
        return next((each for each in new if each.host == host), None) if crowded else None


# ---- messages that do not end

STRANGER_BYTES = 9 << 20
"""More than any message of a client other than a worker: a pull of as many narrow rows as fit in a reply, by number."""
STRANGERS_BYTES = 24 << 20
WORKER_FRAMES = 8
"""Frames of the largest size that ZeroMQ may hold from a worker: four messages of values and their row numbers."""


class Unfinished:
    """Finds the connections to cut because of what they have sent since their last message.

    ZeroMQ keeps the frames of a message until the last one has arrived, however many there are, and delivers none
    of them before. So a peer that never ends a message takes memory that no other limit sees. One of the `workers` may
    have sent WORKER_FRAMES of `largest_frame` bytes, any other client STRANGER_BYTES, all others STRANGERS_BYTES.
    `source_of` returns the descriptor of the connection that a frame came from.
    """

    def __init__(self, source_of: Callable[[Any], int], largest_frame: int, workers: AbstractSet[Peer]) -> None:
        self._source_of, self._workers = source_of, workers
        self._worker_bytes = max(WORKER_FRAMES * largest_frame, STRANGER_BYTES)
        self.pending = 0
        """Bytes from clients other than workers, at the last `surplus`."""
        self._peer_of: dict[int, Peer] = {}
        self._known: set[Peer] = set()
        self._heard: set[Peer] = set()
        self._before: dict[int, int] = {}

    def knows(self, peer: Peer) -> bool:
        """Return whether a message of `peer` has been read."""
        return peer in self._known

    def heard(self, peer: Peer, frame: object) -> None:
        """Record that a message of `peer` has been read, of which `frame` is one."""
        if peer not in self._known:
            self._known.add(peer)
            self._peer_of[self._source_of(frame)] = peer
        self._heard.add(peer)

    def closed(self, descriptor: int) -> Peer | None:
        """Forget a connection; return its peer, if a message of it has been read."""
        self._before.pop(descriptor, None)
        if (peer := self._peer_of.pop(descriptor, None)) is not None:
            self._known.discard(peer)
            self._heard.discard(peer)
        return peer

    def surplus(self, descriptors: Iterable[int], received: Callable[[int], int]) -> list[int]:
        """Return the connections to cut; `received` returns the bytes that have been read from one since it opened."""
        strangers, found = {}, []
        for descriptor in descriptors:
            peer, total = self._peer_of.get(descriptor, b""), received(descriptor)
            if peer in self._heard:
                self._before[descriptor] = total
            since = total - self._before.get(descriptor, 0)
            if peer not in self._workers:
                strangers[descriptor] = since
            if since > (self._worker_bytes if peer in self._workers else STRANGER_BYTES):
                found.append(descriptor)
        self._heard.clear()
        self.pending = sum(strangers.values()) - sum(strangers.get(descriptor, 0) for descriptor in found)
        for descriptor in sorted(strangers.keys() - set(found), key=strangers.__getitem__, reverse=True):
            if self.pending <= STRANGERS_BYTES:
                break
            self.pending -= strangers[descriptor]
            found.append(descriptor)
        return found


def note_changes(
    changes: Iterable[tuple[bool, Connection]], connections: Connections, unfinished: Unfinished, peers: set[Peer]
) -> None:
    """Record connections that have opened (True) or closed (False), and take the peers of closed ones from `peers`.

    Call this before the first message of a peer is handled: an opening that is recorded later takes it from `peers`, as
    the peer of an earlier connection with the same descriptor.
    """
    for is_open, connection in changes:
        if is_open:
            connections.opened(connection)
        elif not connections.closed(connection):
            continue
        if (peer := unfinished.closed(connection.descriptor)) is not None:
            peers.discard(peer)
