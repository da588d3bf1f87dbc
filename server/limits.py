"""Bound what one peer may cost: bytes of replies on their way to it, bytes of pushes from it, unreadable messages.

No sockets; `now` is an argument.
"""

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from glovewire.common.protocol.messages import Pull

from .sessions import Peer

# ---- replies

PEER_BYTES = 8 << 20
TOTAL_BYTES = 32 << 20
STUCK_S = 1.0
MAX_DEFERRED = 32
"""Deferred pulls of one peer; further ones are dropped, and repeated by their sender."""


class Tracker(Protocol):
    """Tells whether ZeroMQ has sent a frame."""

    @property
    def done(self) -> bool:
        """Whether it has been sent."""


@dataclass
class PeerQueue:
    """Frames that ZeroMQ still holds for one peer, oldest first, and the pulls that wait for them to leave."""

    frames: deque[tuple[Tracker, int, float]] = field(default_factory=deque)
    nbytes: int = 0
    deferred: deque[tuple[int, Pull]] = field(default_factory=deque)

    def settle(self) -> None:
        """Forget frames that have been sent."""
        while self.frames and self.frames[0][0].done:
            self.nbytes -= self.frames.popleft()[1]

    def is_stuck(self, now: float) -> bool:
        """Return whether nothing has been sent for STUCK_S."""
        return bool(self.frames) and now - self.frames[0][2] > STUCK_S


class Outbox:
    """Back-pressure in bytes: a pull is deferred while too much is on its way to its peer, or to all peers.

    ZeroMQ bounds its queues in messages, and a reply may have 64 MiB. Peers that have stopped reading do not count
    against the others.
    """

    def __init__(self) -> None:
        self._queues: dict[Peer, PeerQueue] = {}

    def has_room(self, peer: Peer, now: float) -> bool:
        """Return whether a pull of `peer` may be answered."""
        own = self._queues.get(peer)
        if own is None:
            return sum(queue.nbytes for queue in self._queues.values() if not queue.is_stuck(now)) < TOTAL_BYTES
        own.settle()
        moving = sum(q.nbytes for q in self._queues.values() if q is not own and not q.is_stuck(now))
        return own.nbytes < PEER_BYTES and own.nbytes + moving < TOTAL_BYTES

    def is_full(self, peer: Peer) -> bool:
        """Return whether nothing big may be sent to `peer` at all, not even the answer to a request that waited."""
        own = self._queues.get(peer)
        return own is not None and own.nbytes > 4 * PEER_BYTES

    def sent(self, peer: Peer, frames: Sequence[tuple[Tracker, int]], now: float) -> None:
        """Record big frames, each with its bytes, that were given to ZeroMQ."""
        queue = self._queues.setdefault(peer, PeerQueue())
        queue.frames.extend((tracker, nbytes, now) for tracker, nbytes in frames)
        queue.nbytes += sum(nbytes for _, nbytes in frames)

    def defer(self, peer: Peer, number: int, pull: Pull) -> None:
        """Keep a pull for later, once however often it is repeated."""
        deferred = self._queues.setdefault(peer, PeerQueue()).deferred
        if len(deferred) < MAX_DEFERRED and all(number != other for other, _ in deferred):
            deferred.append((number, pull))

    def ready(self, now: float) -> list[tuple[Peer, int, Pull]]:
        """Take one deferred pull of each peer for which there is room now."""
        if not self._queues:
            return []
        found = []
        for peer, queue in list(self._queues.items()):
            queue.settle()
            if queue.deferred and self.has_room(peer, now):
                found.append((peer, *queue.deferred.popleft()))
            elif not queue.deferred and not queue.frames:
                del self._queues[peer]
        return found

    @property
    def has_deferred(self) -> bool:
        """Whether any pull is deferred."""
        return any(queue.deferred for queue in self._queues.values())


# ---- pushes

WORKER_CREDIT_BYTES = 64 << 20
TOTAL_CREDIT_BYTES = 1 << 30


class Credit:
    """Credit-based flow control: the bytes of unanswered pushes that each worker, by number, was last allowed.

    An allowance counts until the worker is told another one or leaves. So a new worker gets what others have left of
    the total, perhaps nothing, and its even share once they have been told of theirs. A worker without credit may
    still send one message at a time.
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
    """Counts unreadable messages by peer; after MAX_ERRORS, each of which gets an answer, the peer is banned.

    A peer is one connection: a new connection begins at 0. Of more than MAX_PEERS the oldest are forgotten.
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
        """Return True once for a banned peer: the first message after the ban ends its connection."""
        before, self._banned[peer] = self._banned[peer], True
        return not before
