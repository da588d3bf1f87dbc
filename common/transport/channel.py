"""A worker's connection to one shard: what was asked and not answered yet, and when it has to be asked again.

Requests leave in their order, also the second time. Knows nothing of what they mean, but for counting pushes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from ..protocol import messages as m
from ..protocol import wire
from . import sockets

RESEND_FIRST_S = 0.5
RESEND_AFTER_S = 5.0
RESEND_MOST_S = 10.0
PATIENCE = 2.0
FORGETTING = 0.7
MOST_DOUBTFUL = 64
UNSENT = 0.0

OnReply = Callable[[m.Message], None]


@dataclass
class Pending:
    """A request without an answer yet: when it was last sent, and how often."""

    message: m.Message
    frames: list[wire.Frame]
    on_reply: OnReply
    sent: float = UNSENT
    times: int = 0
    first: float = 0.0

    def due(self, now: float, usual_s: float) -> bool:
        """Whether it has to be sent (again): a small one soon and then less and less often, a big one after a while.

        Answers with rows take `usual_s` on this link. Who asks again before they can be there gets them twice, and a
        slow link is then busy with rows that nobody needs.
        """
        if self.sent == UNSENT:
            return True
        big = wire.bytes_of(self.frames) > sockets.BIG_FRAME_BYTES
        rows_s = min(PATIENCE * usual_s, RESEND_MOST_S) if isinstance(self.message, m.Pull) else 0.0
        soon = max(RESEND_FIRST_S, rows_s)
        return now - self.sent > (
            RESEND_AFTER_S if big else min(soon * 2.0 ** (self.times - 1), max(RESEND_AFTER_S, soon))
        )


class Link:
    """One shard: its socket, what is pending there, when it was heard."""

    def __init__(self, context: sockets.Context, address: str) -> None:
        self.address = address
        self.socket = context.dealer(address)
        self.attempts = context.attempts(self.socket)
        self.pending: dict[int, Pending] = {}
        self.heard = time.monotonic()
        self.beaten = 0.0
        self.welcome: m.Welcome | None = None
        self.pushes = 0  # how many were sent, repeats included
        self.credit = 0  # bytes of pushes that the server lets us have on their way
        self.on_their_way = 0  # bytes of pushes without an answer
        self.usual_s = 0.0  # that an answer with rows takes, the slowest of late
        self._doubtful: dict[int, float] = {}  # seconds until rows came that had been asked for more than once
        self._number = 0

    @property
    def where(self) -> str:
        """The address, and what may be wrong there."""
        return self.address + self.attempts.doubt

    @property
    def owed(self) -> bool:
        """Whether something is pending that does not wait for other workers, nor for a server to come."""
        return any(not isinstance(each.message, m.Hello | m.Pull | m.Lease) for each in self.pending.values())

    def send(self, message: m.Message, on_reply: OnReply) -> int:
        """Send a request; returns its bytes."""
        if not self.pending:
            self.heard = time.monotonic()
        self._number += 1
        frames: list[wire.Frame] = [b"", *wire.encode(self._number, message)]
        behind = bool(self.pending) and any(pending.sent == UNSENT for pending in self.pending.values())
        self.pending[self._number] = Pending(message, frames, on_reply)
        self.on_their_way += message.values.nbytes if isinstance(message, m.Push) else 0
        if not behind:  # nothing may overtake what waits for room in the queue
            self._transmit(self.pending[self._number])
        return wire.bytes_of(frames)

    def answered(self, number: int, reply: m.Message, now: float) -> None:
        """A request is pending no longer, but for the rows that a push may ask for.

        Rows tell how fast the link is, if they were asked for once. Otherwise they may have been slow, or the first
        question lost: who asks later and later where messages get lost waits longer and longer for nothing.
        """
        pending = self.pending[number]
        if isinstance(reply, (m.Welcome, m.Applied)):
            self.credit = reply.credit
        if isinstance(pending.message, m.Push):
            self.on_their_way -= pending.message.values.nbytes
            if pending.message.then_pull and isinstance(reply, m.Applied):
                pending.message = pending.message.pull
                pending.frames = [b"", *wire.encode(number, pending.message)]
                return
        del self.pending[number]
        if not isinstance(pending.message, m.Pull):
            return
        took_s = now - pending.first
        if pending.times == 1:
            self.usual_s = max(took_s, FORGETTING * self.usual_s)
            return
        self._doubtful[number] = took_s
        if len(self._doubtful) > MOST_DOUBTFUL:
            del self._doubtful[next(iter(self._doubtful))]

    def answered_again(self, number: int) -> None:
        """The same rows once more: nothing was lost, the link is as slow as the first answer was."""
        self.usual_s = max(self.usual_s, self._doubtful.pop(number, 0.0))

    def parted(self) -> None:
        """The goodbye was answered: nobody is there for anything else."""
        self.welcome = None
        self.pending.clear()

    def resend(self, now: float) -> None:
        """Repeat, in their order, what has waited too long for an answer."""
        for pending in self.pending.values():
            if pending.due(now, self.usual_s) and not self._transmit(pending):
                return

    def again(self, last: Pending | None = None) -> None:
        """Send once more what is pending: all of it, or what was sent up to the request `last`."""
        for pending in self.pending.values():
            if last is None or pending.sent <= last.sent:
                pending.sent = UNSENT
            if pending is last:
                return

    def _transmit(self, pending: Pending) -> bool:
        if not sockets.send_if_room(self.socket, pending.frames):  # nobody reads: `resend` tries until the deadline
            pending.sent = UNSENT
            return False
        pending.sent = time.monotonic()
        pending.first = pending.first or pending.sent
        pending.times += 1
        self.pushes += isinstance(pending.message, m.Push)
        return True
