"""Requests that wait for something to change: pulls for a version, leases for a block, creators for first values.

Bounded; no clock, no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from glovewire.common.errors import LimitExceeded
from glovewire.common.protocol.messages import Create, Lease, Message, Pull, Rows

from ..sessions import Peer, Session

MAX_PARKED = 4096
MAX_PARKED_PER_SESSION = 256

MayWait = Pull | Lease | Create


class Parked(NamedTuple):
    """A request that waits, and where its answer goes."""

    peer: Peer
    number: int
    session: Session
    message: MayWait


@dataclass
class Parking:
    """Every request that waits, in the order of arrival."""

    _waiting: list[Parked] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, parked: Parked) -> None:
        """Let a request wait, once however often it is asked; LimitExceeded when too many wait already."""
        if self._waiting and any((other.peer, other.number) == (parked.peer, parked.number) for other in self._waiting):
            return
        self.require_room(parked.session)
        self._waiting.append(parked)

    def require_room(self, session: Session) -> None:
        """LimitExceeded unless one more request of a session may wait."""
        if len(self._waiting) >= MAX_PARKED:
            raise LimitExceeded(f"{MAX_PARKED} requests wait at this server already")
        if len(self._waiting) >= MAX_PARKED_PER_SESSION and (
            sum(other.session is session for other in self._waiting) >= MAX_PARKED_PER_SESSION
        ):
            raise LimitExceeded(f"{MAX_PARKED_PER_SESSION} requests of yours wait already")

    def retry(self, answer: Callable[[Parked], Message | None]) -> Iterator[tuple[Parked, Message]]:
        """Ask `answer` about each; those that have one leave and are yielded with it."""
        waiting, self._waiting = self._waiting, []
        for parked in waiting:
            reply = answer(parked)
            if reply is None:
                self._waiting.append(parked)
            else:
                yield parked, reply


# ---- Replies on their way out, in their order; a word that rows will say as well waits for them a little while. Pure.


class Outgoing(NamedTuple):
    """A reply on its way."""

    peer: Peer
    number: int
    message: Message


@dataclass
class Replies:
    """What goes out next, and what waits.

    A push that asks for rows is answered by them: where workers go in step they come when the others have pushed,
    mostly within a millisecond. To tell before that the push is in costs both ends as much again. Whoever would have to
    wait longer is told by `let_go`.
    """

    _out: list[Outgoing] = field(default_factory=list)
    _held: dict[tuple[Peer, int], Outgoing] = field(default_factory=dict)

    def hold(self, applied: Outgoing) -> None:
        """Keep the word that a push is in: the rows that it asks for may come soon, and say it as well."""
        self._held[applied.peer, applied.number] = applied

    def send(self, reply: Outgoing) -> None:
        """Send a reply now: rows in place of the word that waits for them, anything else behind it."""
        if self._held:
            held = self._held.pop((reply.peer, reply.number), None)
            if held is not None and not isinstance(reply.message, Rows):
                self._out.append(held)
        self._out.append(reply)

    def let_go(self) -> None:
        """Some time has passed: what waits is sent without the rows."""
        self._out.extend(self._held.values())
        self._held.clear()

    def take(self) -> list[Outgoing]:
        """What has to be sent now."""
        out, self._out = self._out, []
        return out
