"""Hold requests that wait for a condition, and replies until they are sent. Bounded; no I/O.

A request waits for one condition: a pull for a round of its partition, a lease for a block, a Create for first values.
It is tried again only after `wake` was called for that condition.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from glovewire.common.errors import LimitExceeded
from glovewire.common.protocol.messages import Create, Lease, Message, Pull, Rows

from ..limits import held_bytes
from ..sessions import Peer, Session

MAX_WAITING_PER_SESSION = 64
"""An honest worker has at most ten pulls for each of its four leases, and a request for another lease."""
SESSION_BYTES = 8 << 20
"""Maximum bytes held by the waiting requests of one session; a single request may hold more."""
TOTAL_BYTES = 128 << 20
"""Maximum bytes held by all waiting requests of a shard; a single request of each session is always taken."""
REPLY_BYTES = 32 << 20
"""Bytes of replies after which `retry` stops; the other marked requests stay marked."""

MayWait = Pull | Lease | Create
Key = tuple[Peer, int]
"""The peer and the number of a request."""


class Condition(Enum):
    """What a request waits for; in exclusive order a pull waits for a `Round` instead of ROWS."""

    ROWS = "a change of the table, or of the workers that take part"
    LEASE = "a block to train"
    VALUES = "first values of tensors"


class Round(NamedTuple):
    """The condition that a partition has reached a round."""

    partition: int
    round: int


class WaitingRequest(NamedTuple):
    """A request, the peer and session that sent it, and the condition that it waits for."""

    peer: Peer
    number: int
    session: Session
    message: MayWait
    condition: Condition | Round

    @property
    def key(self) -> Key:
        """Return what identifies the request."""
        return self.peer, self.number


class WaitingRequests:
    """Requests that wait, in the order of arrival; `looks` counts how often one was tried again."""

    def __init__(self) -> None:
        self.looks = 0
        self._waiting: dict[Key, tuple[int, WaitingRequest]] = {}
        self._on: defaultdict[Condition | Round, dict[Key, None]] = defaultdict(dict)
        self._of: defaultdict[int, dict[Key, int]] = defaultdict(dict)  # the bytes held, by id of the session
        self._nbytes = 0
        self._arrived = 0
        self._woken: set[Key] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, request: WaitingRequest, *, woken: bool = False) -> None:
        """Add a request unless it waits already; `woken`: mark it for `retry`. LimitExceeded when too many wait."""
        key = request.key
        if key not in self._waiting:
            nbytes = held_bytes(request.message)
            self.require_room(request.session, nbytes)
            self._arrived += 1
            self._waiting[key] = self._arrived, request
            self._on[request.condition][key] = None
            self._of[id(request.session)][key] = nbytes
            self._nbytes += nbytes
        if woken:
            self._woken.add(key)

    def require_room(self, session: Session, nbytes: int = 0) -> None:
        """Raise LimitExceeded if no further request of `session`, which holds `nbytes`, may wait."""
        share = self._of.get(id(session), {})
        if len(share) >= MAX_WAITING_PER_SESSION:
            raise LimitExceeded(f"{MAX_WAITING_PER_SESSION} of your requests are waiting already")
        held = sum(share.values()) if nbytes else 0  # the first one with an array is always taken
        if held and (held + nbytes > SESSION_BYTES or self._nbytes + nbytes > TOTAL_BYTES):
            raise LimitExceeded(f"your waiting requests already hold {held >> 20} MiB: wait for replies")

    def remove(self, peer: Peer, number: int) -> None:
        """Forget a request that has been answered; do nothing if it does not wait."""
        key = peer, number
        found = self._waiting.pop(key, None)
        if found is None:
            return
        request, share = found[1], self._of[id(found[1].session)]
        self._nbytes -= share.pop(key)
        del self._on[request.condition][key]
        if not share:
            del self._of[id(request.session)]
        if not self._on[request.condition]:
            del self._on[request.condition]

    def drop(self, session: Session, *, kept: Peer | None = None) -> None:
        """Forget the waiting requests of a session, except those from the connection `kept`."""
        for key in [key for key in self._of.get(id(session), ()) if key[0] != kept]:
            self.remove(*key)

    @property
    def has_woken(self) -> bool:
        """Return whether any request is marked for `retry`."""
        return bool(self._woken)

    def wake(self, condition: Condition | Round) -> None:
        """Mark for `retry` all requests that wait for `condition`, because it may have come true."""
        if (keys := self._on.get(condition)) is not None:
            self._woken.update(keys)

    def wake_all(self) -> None:
        """Mark every waiting request for `retry`."""
        self._woken.update(self._waiting)

    def retry(self, answer: Callable[[WaitingRequest], Message | None]) -> Iterator[tuple[WaitingRequest, Message]]:
        """Call `answer` for each marked request; remove and yield, with the reply, those for which it returns one.

        Of equal pulls of one session, those after one that must wait are not tried. Stops after REPLY_BYTES of rows.
        """
        left = REPLY_BYTES
        while self._woken:
            woken = sorted(self._waiting[key] for key in self._woken if key in self._waiting)
            self._woken.clear()
            must_wait: set[tuple[int, int]] = set()
            for tried, (_, request) in enumerate(woken):
                if left <= 0:
                    self._woken.update(each.key for _, each in woken[tried:])
                    return
                pull = request.message if isinstance(request.message, Pull) else None
                if pull is not None and (id(request.session), pull.version) in must_wait:
                    continue
                self.looks += 1
                if (reply := answer(request)) is not None:
                    self.remove(*request.key)
                    left -= reply.values.nbytes if isinstance(reply, Rows) else 0
                    yield request, reply
                elif pull is not None and request.condition is Condition.ROWS:
                    must_wait.add((id(request.session), pull.version))


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
