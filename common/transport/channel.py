"""Keep the pending requests of one shard, and retransmit them.

Retransmitted requests keep their order. Apart from pulls and pushes, a channel treats all messages alike.
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
"""A pull is retransmitted after this many round trips at the earliest."""
DECAY = 0.7
"""A faster reply does not lower the estimated round trip below this fraction of its last value."""
MAX_AMBIGUOUS = 64
MAX_DOUBLINGS = 8
UNSENT = 0.0

OnReply = Callable[[m.Message], None]


@dataclass
class PendingRequest:
    """An unanswered request: sent `times` times, at `first` and last at `sent` (seconds of time.monotonic)."""

    message: m.Message
    frames: list[wire.Frame]
    on_reply: OnReply
    sent: float = UNSENT
    times: int = 0
    first: float = 0.0

    def is_due(self, now: float, round_trip_s: float) -> bool:
        """Return whether to send the request (again).

        A small request is due after RESEND_FIRST_S, then at doubling intervals; a big one every RESEND_BIG_S. A pull is
        not due before ROUND_TRIPS x `round_trip_s`, because a retransmission makes a slow network send the rows twice.
        """
        if self.sent == UNSENT:
            return True
        if wire.bytes_of(self.frames) > sockets.BIG_FRAME_BYTES:
            return now - self.sent > RESEND_BIG_S
        rows_s = min(ROUND_TRIPS * round_trip_s, RESEND_MAX_S) if isinstance(self.message, m.Pull) else 0.0
        first_s = max(RESEND_FIRST_S, rows_s)
        return now - self.sent > min(first_s * 2.0 ** min(self.times - 1, MAX_DOUBLINGS), max(RESEND_BIG_S, first_s))


class Channel:
    """The connection to one shard: socket, pending requests, and when the shard was last heard."""

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
        """Return the address, followed by a guess at why no server answers there, if there is one."""
        return self.address + self.handshakes.doubt

    @property
    def owes_reply(self) -> bool:
        """Return whether a request is pending that waits neither for other workers nor for the server to start."""
        return any(not isinstance(each.message, m.Hello | m.Pull | m.Lease) for each in self.pending.values())

    def send(self, message: m.Message, on_reply: OnReply) -> int:
        """Send a request, or queue it behind unsent ones; return its size in bytes."""
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
        """Remove the request that `reply` answers; after `Applied`, a push with `then_pull` stays pending as a pull.

        The round trip of a pull that was sent once updates `round_trip_s`. That of a retransmitted pull is ambiguous
        (Karn's algorithm): the rows were slow, or the first request was lost. Counting losses as slowness would make
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
        """Count the ambiguous round trip of pull `number` after all: its rows came twice, so nothing was lost."""
        self.round_trip_s = max(self.round_trip_s, self._ambiguous.pop(number, 0.0))

    def end_session(self, _: m.Message) -> None:
        """Forget every pending request; called with the server's reply to `Leave`."""
        self.welcome = None
        self.pending.clear()

    def resend(self, now: float) -> None:
        """Retransmit, in order, every request that has waited too long for its reply."""
        for pending in self.pending.values():
            if pending.is_due(now, self.round_trip_s) and not self._transmit(pending):
                return

    def mark_unsent(self, last: PendingRequest | None = None) -> None:
        """Mark pending requests to be sent again at once: all, or those up to `last` that were last sent no later."""
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
