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
"""Deferred pulls per peer; further ones are dropped, and the peer sends them again."""


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
    deferred: deque[tuple[int, Pull]] = field(default_factory=deque)

    def settle(self) -> None:
        """Forget frames that have been sent."""
        while self.frames and self.frames[0][0].done:
            self.nbytes -= self.frames.popleft()[1]

    def is_stuck(self, now: float) -> bool:
        """Return whether ZeroMQ has held the oldest frame for longer than STUCK_S."""
        return bool(self.frames) and now - self.frames[0][2] > STUCK_S


class Outbox:
    """Back-pressure in bytes: a pull is deferred while too much is on its way to its peer, or to all peers.

    ZeroMQ bounds its queues only by the number of messages, and one reply may have 64 MiB. Bytes for peers that have
    stopped reading do not count against the other peers.
    """

    def __init__(self) -> None:
        self._queues: dict[Peer, PeerQueue] = {}

    def has_room(self, peer: Peer, now: float) -> bool:
        """Return whether a pull of `peer` may be answered now."""
        own = self._queues.get(peer)
        if own is None:
            return sum(queue.nbytes for queue in self._queues.values() if not queue.is_stuck(now)) < TOTAL_BYTES
        own.settle()
        moving = sum(q.nbytes for q in self._queues.values() if q is not own and not q.is_stuck(now))
        return own.nbytes < PEER_BYTES and own.nbytes + moving < TOTAL_BYTES

    def is_full(self, peer: Peer) -> bool:
        """Return whether no big reply may be sent to `peer`, not even to a request that has waited for a condition."""
        own = self._queues.get(peer)
        return own is not None and own.nbytes > 4 * PEER_BYTES

    def sent(self, peer: Peer, frames: Sequence[tuple[Tracker, int]], now: float) -> None:
        """Record big frames, each as (tracker, size in bytes), that were handed to ZeroMQ at `now`."""
        queue = self._queues.setdefault(peer, PeerQueue())
        queue.frames.extend((tracker, nbytes, now) for tracker, nbytes in frames)
        queue.nbytes += sum(nbytes for _, nbytes in frames)

    def defer(self, peer: Peer, number: int, pull: Pull) -> None:
        """Keep a pull until there is room; ignore repeats of it, and pulls beyond MAX_DEFERRED."""
        deferred = self._queues.setdefault(peer, PeerQueue()).deferred
        if len(deferred) < MAX_DEFERRED and all(number != other for other, _ in deferred):
            deferred.append((number, pull))

    def ready(self, now: float) -> list[tuple[Peer, int, Pull]]:
        """Remove and return one deferred pull of each peer that has room now."""
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
        """Return whether any pull is deferred."""
        return any(queue.deferred for queue in self._queues.values())


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
        """Return True once for a banned peer: the first message after the ban ends its connection."""
        before, self._banned[peer] = self._banned[peer], True
        return not before
