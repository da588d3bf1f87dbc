"""Keep the pending requests to one shard, and decide when each is transmitted or retransmitted.

Retransmitted requests keep their order. Apart from pulls and pushes, a channel treats all messages alike.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ..protocol import messages as m
from ..protocol import wire

RESEND_FIRST_S = 0.5
RESEND_BIG_S = 5.0
RESEND_MAX_S = 10.0
BIG_BYTES = 64 << 10
"""A request above this size is retransmitted after RESEND_BIG_S, not before."""
ROUND_TRIPS = 2.0
"""A pull is retransmitted after this many round trips at the earliest."""
DECAY = 0.7
"""A faster reply does not lower the estimated round trip below this fraction of its last value."""
MAX_AMBIGUOUS = 64
MAX_DOUBLINGS = 8
UNSENT = -math.inf

OnReply = Callable[[m.Message], None]


@dataclass
class Request:
    """An unanswered request, sent `times` times: first at `first`, last at `sent` (seconds of the caller's clock)."""

    message: m.Message
    frames: list[wire.Frame]
    on_reply: OnReply
    sent: float = UNSENT
    times: int = 0
    first: float = 0.0
    size: int = field(init=False)

    def __post_init__(self) -> None:
        self.size = wire.bytes_of(self.frames)

    def due_at(self, round_trip_s: float) -> float:
        """Return when the request is to be transmitted or retransmitted.

        A small request is due after RESEND_FIRST_S, then at doubling intervals; a big one every RESEND_BIG_S. A pull is
        not due before ROUND_TRIPS x `round_trip_s`, because a retransmission makes a slow network send the rows twice.
        """
        if self.sent == UNSENT:
            return UNSENT
        if self.size > BIG_BYTES:
            return self.sent + RESEND_BIG_S
        rows_s = min(ROUND_TRIPS * round_trip_s, RESEND_MAX_S) if isinstance(self.message, m.Pull) else 0.0
        first_s = max(RESEND_FIRST_S, rows_s)
        return self.sent + min(first_s * 2.0 ** min(self.times - 1, MAX_DOUBLINGS), max(RESEND_BIG_S, first_s))


class Channel:
    """The requests to one shard; `heard` is when its last message came. `now` is the time of the caller's clock."""

    def __init__(self, address: str, now: float) -> None:
        self.address = address
        self.pending: dict[int, Request] = {}
        self.heard = now
        self.last_heartbeat = UNSENT
        self.welcome: m.Welcome | None = None
        self.pushes = 0  # sent, repeats included
        self.credit = 0  # bytes of pushes that the server allows in flight
        self.in_flight = 0  # bytes of unanswered pushes
        self.round_trip_s = 0.0  # estimate for a pull: the slowest of the recent ones
        self._ambiguous: dict[int, float] = {}  # round trips of pulls that were sent more than once
        self._number = 0
        self._holds_back = False  # whether there are UNSENT requests, which no later request may overtake

    @property
    def owes_reply(self) -> bool:
        """Return whether a request is pending that waits neither for other workers nor for the server to start."""
        return any(not isinstance(each.message, m.Hello | m.Pull | m.Lease) for each in self.pending.values())

    def add(self, message: m.Message, on_reply: OnReply, now: float) -> Request:
        """Add a request and return it; `due` yields it after the requests that are UNSENT already."""
        if not self.pending:
            self.heard = now
        self._number += 1
        request = Request(message, [b"", *wire.encode(self._number, message)], on_reply)
        self.pending[self._number] = request
        self._holds_back = True
        self.in_flight += message.values.nbytes if isinstance(message, m.Push) else 0
        return request

    def send(self, message: m.Message, on_reply: OnReply, now: float) -> Request:
        """Add a request and return it, for the caller to transmit; if it is UNSENT, it waits for others until `due`."""
        must_wait = self._holds_back
        request = self.add(message, on_reply, now)
        if not must_wait:
            self._holds_back = False
            self._note_sent(request, now)
        return request

    def complete(self, number: int, reply: m.Message, now: float) -> None:
        """Remove the request that `reply` answers; after `Applied`, a push with `then_pull` stays pending as a pull.

        The round trip of a pull that was sent once updates `round_trip_s`. That of a retransmitted pull is ambiguous
        (Karn's algorithm): the rows were slow, or the first request was lost. Counting losses as slowness would make
        the wait for each retransmission longer than the one before.
        """
        request = self.pending[number]
        if isinstance(reply, (m.Welcome, m.Applied)):
            self.credit = reply.credit
        if isinstance(request.message, m.Push):
            self.in_flight -= request.message.values.nbytes
            if request.message.then_pull and isinstance(reply, m.Applied):
                request.message = request.message.pull
                request.frames = [b"", *wire.encode(number, request.message)]
                request.size = wire.bytes_of(request.frames)
                return
        del self.pending[number]
        if not isinstance(request.message, m.Pull):
            return
        took_s = now - request.first
        if request.times == 1:
            self.round_trip_s = max(took_s, DECAY * self.round_trip_s)
            return
        self._ambiguous[number] = took_s
        if len(self._ambiguous) > MAX_AMBIGUOUS:
            del self._ambiguous[next(iter(self._ambiguous))]

    def note_duplicate(self, number: int) -> None:
        """Count the ambiguous round trip of pull `number` after all: its rows came twice, so nothing was lost."""
        self.round_trip_s = max(self.round_trip_s, self._ambiguous.pop(number, 0.0))

    def end_session(self, _: m.Message) -> None:
        """Forget every pending request; called with the server's reply to `Leave`."""
        self.welcome = None
        self.pending.clear()

    def due(self, now: float) -> Iterator[Request]:
        """Yield, in order, every request to transmit now: it is UNSENT, or has waited too long for its reply."""
        self._holds_back = False
        for request in self.pending.values():
            if request.due_at(self.round_trip_s) < now:
                self._note_sent(request, now)
                yield request

    def next_due(self) -> float:
        """Return when the next request is due, infinity if none is pending."""
        return min((request.due_at(self.round_trip_s) for request in self.pending.values()), default=math.inf)

    def mark_unsent(self, last: Request | None = None) -> None:
        """Mark requests for immediate retransmission: all, or those up to `last` that were not sent after it."""
        self._holds_back = True
        for request in self.pending.values():
            if last is None or request.sent <= last.sent:
                request.sent = UNSENT
            if request is last:
                return

    def repeat(self, message: m.Message) -> bool:
        """Mark the pending request with this message for immediate retransmission; return False if there is none."""
        found = next((request for request in self.pending.values() if request.message == message), None)
        if found is not None:
            self._holds_back = True
            found.sent = UNSENT
        return found is not None

    def awaits(self, kind: type[m.Message]) -> bool:
        """Return whether a request of one kind is pending."""
        return any(isinstance(each.message, kind) for each in self.pending.values())

    def drop(self, kind: type[m.Message]) -> None:
        """Forget pending requests of one kind; their replies are ignored."""
        self.pending = {number: each for number, each in self.pending.items() if not isinstance(each.message, kind)}

    def has_earlier(self, request: Request) -> bool:
        """Return whether an earlier request of the same type as `request` is pending."""
        first = next(each for each in self.pending.values() if type(each.message) is type(request.message))
        return first is not request

    def note_blocked(self, request: Request) -> None:
        """Mark `request` UNSENT: it could not be transmitted, because the connection's queue was full."""
        self._holds_back = True
        request.sent = UNSENT
        request.times -= 1
        self.pushes -= isinstance(request.message, m.Push)

    def _note_sent(self, request: Request, now: float) -> None:
        request.first = request.first if request.times else now
        request.sent = now
        request.times += 1
        self.pushes += isinstance(request.message, m.Push)
