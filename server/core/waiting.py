"""Hold requests that wait for a condition, and replies until they are sent. Bounded; no I/O.

A request waits for one condition: a pull for its partition to change, a lease for a block, a Create for first values.
It is tried again only after `wake` was called for that condition.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from glovewire.common.errors import LimitExceeded
from glovewire.common.protocol.messages import Create, Lease, Message, Pull, Rows

from ..sessions import Peer, Session

MAX_WAITING = 4096
MAX_WAITING_PER_SESSION = 256

MayWait = Pull | Lease | Create
Key = tuple[Peer, int]
"""The peer and the number of a request."""


class Condition(Enum):
    """What a request waits for; in exclusive order a pull waits for a partition number instead of ROWS."""

    ROWS = "a change of the table, or of the workers that take part"
    LEASE = "a block to train"
    VALUES = "first values of tensors"


class WaitingRequest(NamedTuple):
    """A request, the peer and session that sent it, and the condition that it waits for."""

    peer: Peer
    number: int
    session: Session
    message: MayWait
    condition: Condition | int


class WaitingRequests:
    """Requests that wait, in the order of arrival; `looks` counts how often one was tried again."""

    def __init__(self) -> None:
        self.looks = 0
        self._waiting: dict[Key, WaitingRequest] = {}
        self._woken: set[Key] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, request: WaitingRequest, *, woken: bool = False) -> None:
        """Add a request unless it waits already; `woken`: mark it for `retry`. LimitExceeded when too many wait."""
        key = request.peer, request.number
        if key not in self._waiting:
            self.require_room(request.session)
            self._waiting[key] = request
        if woken:
            self._woken.add(key)

    def require_room(self, session: Session) -> None:
        """Raise LimitExceeded if no further request of `session` may wait."""
        if len(self._waiting) >= MAX_WAITING:
            raise LimitExceeded(f"{MAX_WAITING} requests wait at this server already")
        if len(self._waiting) >= MAX_WAITING_PER_SESSION and (
            sum(other.session is session for other in self._waiting.values()) >= MAX_WAITING_PER_SESSION
        ):
            raise LimitExceeded(f"{MAX_WAITING_PER_SESSION} requests of yours wait already")

    def remove(self, peer: Peer, number: int) -> None:
        """Forget a request that has been answered; do nothing if it does not wait."""
        self._waiting.pop((peer, number), None)

    def drop(self, session: Session, *, kept: Peer | None = None) -> None:
        """Forget the waiting requests of a session, except those from the connection `kept`."""
        if self._waiting:
            gone = [key for key, each in self._waiting.items() if each.session is session and each.peer != kept]
            for key in gone:
                del self._waiting[key]

    @property
    def has_woken(self) -> bool:
        """Return whether any request is marked for `retry`."""
        return bool(self._woken)

    def wake(self, condition: Condition | int) -> None:
        """Mark for `retry` all requests that wait for `condition`, because it may have come true."""
        if self._waiting:
            self._woken.update(key for key, each in self._waiting.items() if each.condition == condition)

    def wake_all(self) -> None:
        """Mark every waiting request for `retry`."""
        self._woken.update(self._waiting)

    def retry(self, answer: Callable[[WaitingRequest], Message | None]) -> Iterator[tuple[WaitingRequest, Message]]:
        """Call `answer` for each marked request; remove and yield, with the reply, those for which it returns one."""
        while self._woken:
            woken, self._woken = self._woken, set()
            for request in [each for key, each in self._waiting.items() if key in woken]:
                self.looks += 1
                if (reply := answer(request)) is not None:
                    self.remove(request.peer, request.number)
                    yield request, reply


# ---- replies


class Outgoing(NamedTuple):
    """A reply to request `number` of `peer`; 0 if it replies to none."""

    peer: Peer
    number: int
    message: Message


@dataclass
class Replies:
    """Outgoing replies in order. An `Applied` is held back briefly when the `Rows` that follow imply it.

    In synchronous modes those rows are mostly ready within a millisecond, once the other workers have pushed, and a
    separate `Applied` would double the cost at both ends. `release` sends what is still held at the next tick.
    """

    _out: list[Outgoing] = field(default_factory=list)
    _held: dict[Key, Outgoing] = field(default_factory=dict)

    def hold(self, applied: Outgoing) -> None:
        """Hold back an `Applied` whose `Rows` may follow soon."""
        self._held[applied.peer, applied.number] = applied

    def send(self, reply: Outgoing) -> None:
        """Queue a reply: `Rows` replace the `Applied` held for the same request, any other reply follows it."""
        if self._held:
            held = self._held.pop((reply.peer, reply.number), None)
            if held is not None and not isinstance(reply.message, Rows):
                self._out.append(held)
        self._out.append(reply)

    def release(self) -> None:
        """Queue every held `Applied`, without waiting for its `Rows`."""
        self._out.extend(self._held.values())
        self._held.clear()

    def take(self) -> list[Outgoing]:
        """Return the replies to send now, and forget them."""
        out, self._out = self._out, []
        return out
