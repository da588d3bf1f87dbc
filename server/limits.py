"""What was sent and has not left this process yet, in bytes: who does not read what he asked for gets no more of it.

ZeroMQ bounds its queues in messages, and a reply may have 64 MiB. So a pull is put off while too much is on its way to
its peer, or to all; it is answered when that has left. Peers that have stopped reading do not count against the others.
No sockets; `now` is an argument.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from glovewire.common.protocol.messages import Pull

from .sessions import Peer

PER_PEER_BYTES = 8 << 20
IN_ALL_BYTES = 32 << 20
STUCK_S = 1.0
MOST_PUT_OFF = 32
"""Pulls of one peer that wait for room; further ones are dropped, and come again if their sender lives."""


class Leaving(Protocol):
    """A frame on its way out."""

    @property
    def done(self) -> bool:
        """Whether it has left."""


@dataclass
class Way:
    """What is on its way to one peer, oldest first."""

    frames: deque[tuple[Leaving, int, float]] = field(default_factory=deque)
    nbytes: int = 0
    put_off: deque[tuple[int, Pull]] = field(default_factory=deque)

    def settle(self) -> None:
        """Forget what has left."""
        while self.frames and self.frames[0][0].done:
            self.nbytes -= self.frames.popleft()[1]

    def stuck(self, now: float) -> bool:
        """Whether nothing has left for a while."""
        return bool(self.frames) and now - self.frames[0][2] > STUCK_S


class Outbox:
    """Every big frame that is on its way, and the pulls that are put off."""

    def __init__(self) -> None:
        self._ways: dict[Peer, Way] = {}

    def has_room(self, peer: Peer, now: float) -> bool:
        """Whether a pull of `peer` may be answered: little is on its way to it, and to all who read."""
        own = self._ways.get(peer)
        if own is None:
            return sum(way.nbytes for way in self._ways.values() if not way.stuck(now)) < IN_ALL_BYTES
        own.settle()
        moving = sum(way.nbytes for way in self._ways.values() if way is not own and not way.stuck(now))
        return own.nbytes < PER_PEER_BYTES and own.nbytes + moving < IN_ALL_BYTES

    def is_full(self, peer: Peer) -> bool:
        """Whether nothing big at all may be sent to `peer`, also not what it has waited for."""
        own = self._ways.get(peer)
        return own is not None and own.nbytes > 4 * PER_PEER_BYTES

    def sent(self, peer: Peer, frames: Sequence[tuple[Leaving, int]], now: float) -> None:
        """Big frames were given to ZeroMQ: (whether they have left, bytes)."""
        way = self._ways.setdefault(peer, Way())
        way.frames.extend((leaving, nbytes, now) for leaving, nbytes in frames)
        way.nbytes += sum(nbytes for _, nbytes in frames)

    def put_off(self, peer: Peer, number: int, pull: Pull) -> None:
        """Keep a pull for later, once however often it comes."""
        waiting = self._ways.setdefault(peer, Way()).put_off
        if len(waiting) < MOST_PUT_OFF and all(number != other for other, _ in waiting):
            waiting.append((number, pull))

    def ready(self, now: float) -> list[tuple[Peer, int, Pull]]:
        """A pull of each peer for which there is room now; they are put off no longer."""
        if not self._ways:
            return []
        found = []
        for peer, way in list(self._ways.items()):
            way.settle()
            if way.put_off and self.has_room(peer, now):
                found.append((peer, *way.put_off.popleft()))
            elif not way.put_off and not way.frames:
                del self._ways[peer]
        return found

    @property
    def waits(self) -> bool:
        """Whether a pull is put off."""
        return any(way.put_off for way in self._ways.values())


# ---- How many bytes of pushes each worker may have on their way: so much each, and so much together. Pure.
#
# A promise counts from when it is made until another one is told, or its worker leaves. So a newcomer gets what others
# have left of the whole, be it nothing, and its even share once they have heard of theirs. Whoever has nothing may
# still
# send one message at a time.
#

EACH_BYTES = 64 << 20
CREDIT_IN_ALL_BYTES = 1 << 30


class Credit:
    """What each worker was told last, by its number."""

    def __init__(self) -> None:
        self._of: dict[int, int] = {}
        self._promised = 0

    def grant(self, worker: int) -> int:
        """What to tell `worker` now; nothing to who is none (-1)."""
        if worker < 0:
            return 0
        others = self._promised - self._of.setdefault(worker, 0)
        self._of[worker] = min(EACH_BYTES, CREDIT_IN_ALL_BYTES // len(self._of), CREDIT_IN_ALL_BYTES - others)
        self._promised = others + self._of[worker]
        return self._of[worker]

    def of(self, worker: int) -> int:
        """What `worker` was told last."""
        return self._of.get(worker, 0)

    def take_back(self, worker: int) -> None:
        """A worker has left."""
        self._promised -= self._of.pop(worker, 0)


# ---- Who has sent too much that is no message: from then on unheard. Memory is bounded; no sockets, no clock, no I/O.

MAX_ERRORS = 64
MAX_PEERS = 4096


@dataclass
class Offenders:
    """Counts unreadable messages by peer; a peer has MAX_ERRORS of them, each with an answer, and then is out.

    A peer is one connection: who connects anew begins anew. Of more than MAX_PEERS the oldest are forgotten.
    """

    _errors: OrderedDict[Peer, int] = field(default_factory=OrderedDict)
    _out: OrderedDict[Peer, bool] = field(default_factory=OrderedDict)

    def __contains__(self, peer: Peer) -> bool:
        return peer in self._out

    def note(self, peer: Peer) -> None:
        """One more message of `peer` could not be read."""
        count = self._errors.pop(peer, 0) + 1
        if count < MAX_ERRORS:
            self._errors[peer] = count
        else:
            self._out[peer] = False
        for kept in (self._errors, self._out):
            while len(kept) > MAX_PEERS:
                kept.popitem(last=False)

    def leaves(self, peer: Peer) -> bool:
        """Whether this is the first time that `peer` is heard of after it was put out; its connection ends once."""
        before, self._out[peer] = self._out[peer], True
        return not before
