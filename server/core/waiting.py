"""Hold requests that wait for a condition, and replies until they are sent. Bounded; no I/O.

A request waits for one condition: a pull for its partition to change, a lease for a block, a Create for first values.
It is looked at again only when that condition was woken.
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
    """What a request waits for; a pull in exclusive order waits for its partition, by number, instead of ROWS."""

    ROWS = "a change of the table, or of the workers that take part"
    LEASE = "a block to train"
    VALUES = "first values of tensors"


class WaitingRequest(NamedTuple):
    """A request, where its answer goes, and the condition that may allow one."""

    peer: Peer
    number: int
    session: Session
    message: MayWait
    condition: Condition | int


class WaitingRequests:
    """Requests that wait, in the order of arrival; `looks` counts how often one was looked at again."""

    def __init__(self) -> None:
        self.looks = 0
        self._waiting: dict[Key, WaitingRequest] = {}
        self._woken: set[Key] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, request: WaitingRequest, *, woken: bool = False) -> None:
        """Let a request wait, once however often it is repeated; LimitExceeded when too many wait already."""
        key = request.peer, request.number
        if key not in self._waiting:
            self.require_room(request.session)
            self._waiting[key] = request
        if woken:
            self._woken.add(key)

    def require_room(self, session: Session) -> None:
        """Raise LimitExceeded unless one more request of a session may wait."""
        if len(self._waiting) >= MAX_WAITING:
            raise LimitExceeded(f"{MAX_WAITING} requests wait at this server already")
        if len(self._waiting) >= MAX_WAITING_PER_SESSION and (
            sum(other.session is session for other in self._waiting.values()) >= MAX_WAITING_PER_SESSION
        ):
            raise LimitExceeded(f"{MAX_WAITING_PER_SESSION} requests of yours wait already")

    def remove(self, peer: Peer, number: int) -> None:
        """Forget a request that has been answered, if it waits."""
        self._waiting.pop((peer, number), None)

    def drop(self, session: Session, *, kept: Peer | None = None) -> None:
        """Forget what a session that has ended waits for, or, with `kept`, what it asked from another connection."""
        if self._waiting:
            gone = [key for key, each in self._waiting.items() if each.session is session and each.peer != kept]
            for key in gone:
                del self._waiting[key]

    @property
    def has_woken(self) -> bool:
        """Whether `retry` has a request to look at."""
        return bool(self._woken)

    def wake(self, condition: Condition | int) -> None:
        """Mark the requests that wait for a condition now: it may have come true."""
        if self._waiting:
            self._woken.update(key for key, each in self._waiting.items() if each.condition == condition)

    def wake_all(self) -> None:
        """Mark every request."""
        self._woken.update(self._waiting)

    def retry(self, answer: Callable[[WaitingRequest], Message | None]) -> Iterator[tuple[WaitingRequest, Message]]:
        """Ask `answer` about each marked request; yield those that have one with it, which then wait no longer."""
        while self._woken:
            woken, self._woken = self._woken, set()
            for request in [each for key, each in self._waiting.items() if key in woken]:
                self.looks += 1
                if (reply := answer(request)) is not None:
                    self.remove(request.peer, request.number)
                    yield request, reply


# ---- replies


class Outgoing(NamedTuple):
    """A reply on its way."""

    peer: Peer
    number: int
    message: Message


@dataclass
class Replies:
    """Outgoing replies in order. An `Applied` is held back briefly when the `Rows` that follow imply it.

    In synchronous modes those rows mostly come within a millisecond, when the other workers have pushed, and a second
    message would cost both ends as much again. `release` sends what has been held for longer.
    """

    _out: list[Outgoing] = field(default_factory=list)
    _held: dict[Key, Outgoing] = field(default_factory=dict)

    def hold(self, applied: Outgoing) -> None:
        """Hold back an `Applied` whose rows may come soon."""
        self._held[applied.peer, applied.number] = applied

    def send(self, reply: Outgoing) -> None:
        """Send a reply now: rows instead of the `Applied` held for them, anything else after it."""
        if self._held:
            held = self._held.pop((reply.peer, reply.number), None)
            if held is not None and not isinstance(reply.message, Rows):
                self._out.append(held)
        self._out.append(reply)

    def release(self) -> None:
        """Send what is held back without the rows."""
        self._out.extend(self._held.values())
        self._held.clear()

    def take(self) -> list[Outgoing]:
        """Return the replies to send now, and forget them."""
        out, self._out = self._out, []
        return out
