"""Requests that wait for something to change: pulls for a version, leases for a block, creators for first values.

Bounded; no clock, no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from common.errors import LimitExceeded
from common.messages import Create, Lease, Message, Pull

from .sessions import Peer, Session

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
