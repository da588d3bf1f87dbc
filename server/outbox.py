"""What was sent and has not left this process yet, in bytes: who does not read what he asked for gets no more of it.

ZeroMQ bounds its queues in messages, and a reply may have 64 MiB. So a pull is put off while too much is on its way to
its peer, or to all; it is answered when that has left. Peers that have stopped reading do not count against the others.
No sockets; `now` is an argument.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from common.messages import Pull

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
