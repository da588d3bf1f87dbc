"""One channel per shard: the requests that are pending there, and when to send them again.

Requests keep their order, also when they are sent again. What they mean matters only for pushes, which are counted.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from ..protocol import messages as m
from ..protocol import wire
from . import sockets

RESEND_FIRST_S = 0.5
RESEND_BIG_S = 5.0
RESEND_MAX_S = 10.0
ROUND_TRIPS = 2.0
"""A pull is sent again after this many round trips."""
DECAY = 0.7
"""Of the measured round trip, with every faster reply."""
MAX_AMBIGUOUS = 64
UNSENT = 0.0

OnReply = Callable[[m.Message], None]


@dataclass
class PendingRequest:
    """A request that has not been answered: when it was first and last sent, and how often."""

    message: m.Message
    frames: list[wire.Frame]
    on_reply: OnReply
    sent: float = UNSENT
    times: int = 0
    first: float = 0.0

    def is_due(self, now: float, round_trip_s: float) -> bool:
        """Return whether to send it (again): a small one soon, then ever less often; a big one after RESEND_BIG_S.

        A pull waits at least ROUND_TRIPS x `round_trip_s`: asked for again before they can be here, rows come twice and
        keep a slow network busy for nothing.
        """
        if self.sent == UNSENT:
            return True
        if wire.bytes_of(self.frames) > sockets.BIG_FRAME_BYTES:
            return now - self.sent > RESEND_BIG_S
        rows_s = min(ROUND_TRIPS * round_trip_s, RESEND_MAX_S) if isinstance(self.message, m.Pull) else 0.0
        first_s = max(RESEND_FIRST_S, rows_s)
        return now - self.sent > min(first_s * 2.0 ** (self.times - 1), max(RESEND_BIG_S, first_s))


class Channel:
    """The connection to one shard: its socket, its pending requests and when it was last heard."""

    def __init__(self, context: sockets.Context, address: str) -> None:
        self.address = address
        self.socket = context.dealer(address)
        self.handshakes = context.handshakes(self.socket)
        self.pending: dict[int, PendingRequest] = {}
        self.heard = time.monotonic()
        self.last_heartbeat = 0.0
        self.welcome: m.Welcome | None = None
        self.pushes = 0  # sent, repeats included
        self.credit = 0  # bytes of pushes that the server allows in flight
        self.in_flight = 0  # bytes of pushes that have not been answered
        self.round_trip_s = 0.0  # of a pull, the slowest of late
        self._ambiguous: dict[int, float] = {}  # round trips of pulls that were sent more than once
        self._number = 0

    @property
    def where(self) -> str:
        """The address, followed by what may be wrong there."""
        return self.address + self.handshakes.doubt

    @property
    def owes_reply(self) -> bool:
        """Whether a request is pending that waits neither for other workers nor for the server to start."""
        return any(not isinstance(each.message, m.Hello | m.Pull | m.Lease) for each in self.pending.values())

    def send(self, message: m.Message, on_reply: OnReply) -> int:
        """Send a request; returns its bytes."""
        if not self.pending:
            self.heard = time.monotonic()
        self._number += 1
        frames: list[wire.Frame] = [b"", *wire.encode(self._number, message)]
        must_queue = any(pending.sent == UNSENT for pending in self.pending.values())  # nothing may overtake these
        self.pending[self._number] = PendingRequest(message, frames, on_reply)
        self.in_flight += message.values.nbytes if isinstance(message, m.Push) else 0
        if not must_queue:
            self._transmit(self.pending[self._number])
        return wire.bytes_of(frames)

    def complete(self, number: int, reply: m.Message, now: float) -> None:
        """End a pending request, except that an applied push which also pulls stays pending as that pull.

        The round trip of a pull that was sent once is known. Of one that was sent again it is ambiguous (Karn's
        algorithm): either the rows were slow or the first request was lost, and counting losses as slowness would make
        the wait for each retransmission longer than the one before.
        """
        pending = self.pending[number]
        if isinstance(reply, (m.Welcome, m.Applied)):
            self.credit = reply.credit
        if isinstance(pending.message, m.Push):
            self.in_flight -= pending.message.values.nbytes
            if pending.message.then_pull and isinstance(reply, m.Applied):
                pending.message = pending.message.pull
                pending.frames = [b"", *wire.encode(number, pending.message)]
                return
        del self.pending[number]
        if not isinstance(pending.message, m.Pull):
            return
        took_s = now - pending.first
        if pending.times == 1:
            self.round_trip_s = max(took_s, DECAY * self.round_trip_s)
            return
        self._ambiguous[number] = took_s
        if len(self._ambiguous) > MAX_AMBIGUOUS:
            del self._ambiguous[next(iter(self._ambiguous))]

    def note_duplicate(self, number: int) -> None:
        """Take the round trip of pull `number` as measured: its rows came twice, so nothing was lost."""
        self.round_trip_s = max(self.round_trip_s, self._ambiguous.pop(number, 0.0))

    def end_session(self, _: m.Message) -> None:
        """Forget every pending request; called with the server's reply to the goodbye."""
        self.welcome = None
        self.pending.clear()

    def resend(self, now: float) -> None:
        """Retransmit, in order, every request that has waited too long for its reply."""
        for pending in self.pending.values():
            if pending.is_due(now, self.round_trip_s) and not self._transmit(pending):
                return

    def mark_unsent(self, last: PendingRequest | None = None) -> None:
        """Have pending requests sent again at once: all of them, or those sent no later than `last`."""
        for pending in self.pending.values():
            if last is None or pending.sent <= last.sent:
                pending.sent = UNSENT
            if pending is last:
                return

    def _transmit(self, pending: PendingRequest) -> bool:
        if not sockets.send_if_room(self.socket, pending.frames):  # the queue is full: `resend` tries again
            pending.sent = UNSENT
            return False
        pending.sent = time.monotonic()
        pending.first = pending.first or pending.sent
        pending.times += 1
        self.pushes += isinstance(pending.message, m.Push)
        return True
