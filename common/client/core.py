"""Decide what a client sends to the shards of a run, and when; without sockets, clocks and threads.

A loop around `ClientCore` transmits the requests that `send` and `tick` return, passes every message that arrives to
`receive`, and calls `tick` when `deadline` has come. `transport.client` is that loop for ZeroMQ. This module decides
on retransmissions, credit, heartbeats, joining and rejoining.
"""

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from .. import errors
from ..protocol import messages as m
from ..protocol import wire
from .channel import UNSENT, Channel, OnReply, Request
from .pending import check_reply

HEARTBEAT_AFTER_S = 1.0
HELLO_AGAIN_S = 0.5
TICK_S = 0.01
"""Shortest time between two ticks, except when something is to be sent at once."""

APART = "the shards are not in the same run: do they share the run folder?"


class Answer(NamedTuple):
    """A reply and the request that it answers; the loop calls `request.on_reply(reply)`."""

    request: Request
    reply: m.Message


class ClientCore:
    """The sessions of one client, called `name`, with the shards at `addresses`.

    `incarnation` is a random number that distinguishes this process from others with its name. Every `now` is the time
    of one clock, in seconds. Once the session has failed, `failed` is the reason; the loop raises it.
    """

    def __init__(self, addresses: Sequence[str], name: str, dataset: str, incarnation: int, now: float) -> None:
        self._name, self._dataset, self._incarnation = name, dataset, incarnation
        self._role: str | None = None
        self._greeted_at = now
        self.deadline = math.inf
        """When `tick` has to be called next."""
        self.channels = [Channel(address, now) for address in addresses]
        self.joined = False
        self.not_ready: errors.NotReady | None = None
        self.failed: errors.GlovewireError | None = None

    def send(self, shard: int, message: m.Message, on_reply: OnReply, now: float) -> Request:
        """Return a new request to transmit now; if it is UNSENT, it waits for others until `tick` returns it."""
        self.deadline = min(self.deadline, now + TICK_S)
        return self.channels[shard].send(message, on_reply, now)

    def receive(self, shard: int, frames: list[wire.Frame], now: float) -> Answer | None:
        """Process a message from `shard`, without its envelope; return it with the request that it answers, if any."""
        channel = self.channels[shard]
        channel.heard = now
        try:
            reply = wire.decode(frames)
        except errors.GlovewireError as error:
            self.failed = errors.ProtocolError(f"{channel.address} does not answer in this protocol: {error}")
            return None
        if reply.number == 0 and isinstance(reply.message, m.Refused):
            self.failed = errors.from_wire(reply.message.code, reply.message.text, reply.message.ending)
            return None
        request = channel.pending.get(reply.number)
        if request is None or (isinstance(request.message, m.Pull) and isinstance(reply.message, m.Applied)):
            if isinstance(reply.message, m.Rows):
                channel.note_duplicate(reply.number)
            return None  # a repeated `Applied` of a push whose rows are still to come
        refused = reply.message.code if isinstance(reply.message, m.Refused) else ""
        if refused == errors.UnknownSession.code and self._role and not isinstance(request.message, m.Hello):
            if isinstance(request.message, m.Heartbeat):
                del channel.pending[reply.number]
            if self.joined and self.channels[0].welcome is None:  # it has left shard 0, which gave it its number
                self.failed = _forgotten(channel)
                return None
            if not channel.awaits(m.Hello):
                self._greet(channel, now)
            return None
        if refused == errors.OutOfOrder.code:
            if channel.has_earlier(request):
                channel.mark_unsent(request)
                self.deadline = UNSENT
            return None  # no earlier request can be sent again, so this one waits until it is due
        channel.complete(reply.number, reply.message, now)
        return Answer(request, reply.message)

    def tick(self, now: float, silence_s: float = math.inf) -> list[tuple[int, Request]]:
        """Return (shard, request) for every request to transmit now, new or overdue, in this order.

        A worker that waits for one shard sends heartbeats to the others, too, because each of them would time it out.
        Raises DeadlineExceeded when a shard with pending requests has been silent for `silence_s`.
        """
        for channel in self.channels:
            if channel.pending and now - channel.heard > silence_s:
                raise errors.DeadlineExceeded(
                    f"{channel.address} has not answered for {silence_s:.0f} s: see that it runs and can be reached"
                )
            if self._heartbeat_at(channel) < now:
                channel.last_heartbeat = now
                if not channel.repeat(m.Heartbeat()):  # one without a reply is due too late for the lease
                    channel.add(m.Heartbeat(), partial(self._take_beat, channel, now), now)
        if self._role and not self.joined and now - self._greeted_at > HELLO_AGAIN_S:
            self._greet_again(now)
        due = [(shard, request) for shard, channel in enumerate(self.channels) for request in channel.due(now)]
        self.deadline = max(now + TICK_S, min(self._deadlines(silence_s)))
        return due

    def note_blocked(self, shard: int, request: Request, now: float) -> None:
        """Take back a request that could not be transmitted because a queue was full; a later `tick` returns it."""
        self.channels[shard].note_blocked(request)
        self.deadline = min(self.deadline, now + TICK_S)

    def note_stall(self, stall_s: float, now: float) -> None:
        """Exclude `stall_s`, during which this process was busy or stopped, from the silence of the servers."""
        for channel in self.channels:
            channel.heard = min(channel.heard + stall_s, now)

    def has_credit(self, nbytes: int) -> bool:
        """Return whether a push of `nbytes` fits in the credit of every shard, or no push is in flight."""
        in_flight = sum(channel.in_flight for channel in self.channels)
        return not in_flight or in_flight + nbytes <= min(channel.credit for channel in self.channels)

    # ---- joining

    def join(self, role: str, now: float) -> None:
        """Open a session with every shard; `joined` once all have answered and are in one run.

        `failed` is then UsageError unless the addresses are those of all shards of one training, in order.
        """
        self._role, self._greeted_at = role, now
        self._greet(self.channels[0], now)  # its Welcome has the worker's number, which the other shards must be told

    def stop_joining(self) -> None:
        """Send no more Hello, because this client leaves; no effect once every shard has welcomed it."""
        if not self.joined:
            self._role = None

    @property
    def strangers(self) -> list[int]:
        """Return the shards that have not welcomed this client yet."""
        return [shard for shard, channel in enumerate(self.channels) if channel.welcome is None]

    def _greet(self, channel: Channel, now: float) -> None:
        """Send a Hello, or retransmit an unanswered one: a slow shard must not receive more and more of them."""
        first = self.channels[0].welcome
        number, token = (-1, 0) if channel is self.channels[0] or first is None else (first.worker, first.token)
        hello = m.Hello(str(self._role), self._name, self._incarnation, self._dataset, number, token)
        if not channel.repeat(hello):
            channel.add(hello, partial(self._take_welcome, channel, now), now)
        self.deadline = UNSENT

    def _greet_again(self, now: float) -> None:
        """Send Hello again if a shard was not ready, or if the shards were in different generations of the run."""
        self._greeted_at = now
        if not self.strangers or self.not_ready is not None:
            for channel in self.channels[: 1 if self.channels[0].welcome is None else None]:
                self._greet(channel, now)

    def _take_beat(self, channel: Channel, now: float, reply: m.Message) -> None:
        """Send Hello if the shard's run is over while this client waits for another's welcome: it ends the session.

        Otherwise the shard would wait for this client to leave, and the other shards for that shard.
        """
        waits = not self.joined or any(each.awaits(m.Hello) for each in self.channels)
        if isinstance(reply, m.HeartbeatAck) and reply.stop and self._role and waits:
            self._greet(channel, now)

    def _take_welcome(self, channel: Channel, now: float, reply: m.Message) -> None:
        try:
            welcome = check_reply(reply)
        except errors.NotReady as error:
            self.not_ready = error  # `tick` sends Hello again
            if self.joined:
                self.failed = self.failed or errors.UnknownSession(str(error))
            return
        except errors.GlovewireError as error:
            if isinstance(error, errors.RunOver) and not self.joined and self._is_welcome_elsewhere(channel):
                self.not_ready = errors.NotReady(f"{channel.address}: {error}")
            else:
                self.failed = self.failed or error
            return
        if not isinstance(welcome, m.Welcome):
            return
        before, channel.welcome = channel.welcome, welcome
        if self.joined and before is not None and (welcome.run, welcome.worker) != (before.run, before.worker):
            self.failed = _forgotten(channel)
        elif before is not None:
            channel.mark_unsent()
            self.deadline = UNSENT
        elif channel is self.channels[0] and self._role:
            for other in self.channels[1:]:
                self._greet(other, now)
        if not self.joined and not self.strangers and self.failed is None:
            try:
                self.joined = not self._runs_differ()
            except errors.UsageError as error:
                self.failed = error
            if self.joined:
                for each in self.channels:
                    each.drop(m.Hello)  # a late one would tell a shard that this client is still waiting to join

    def _is_welcome_elsewhere(self, channel: Channel) -> bool:
        """Return whether shard 0 has welcomed this client; a shard that ended the run is then a generation behind."""
        return channel is not self.channels[0] and self.channels[0].welcome is not None

    def _runs_differ(self) -> bool:
        """Return whether shards are in different generations of the run; UsageError if they do not fit together."""
        welcomes = [channel.welcome for channel in self.channels if channel.welcome is not None]
        if [(w.shard, w.shards) for w in welcomes] != [(k, len(welcomes)) for k in range(len(welcomes))]:
            found = [
                f"{channel.address} is shard {w.shard}/{w.shards}"
                for channel, w in zip(self.channels, welcomes, strict=True)
            ]
            raise errors.UsageError(f"give every shard's address once, in order; {', '.join(found)}")
        if any(w.options != welcomes[0].options for w in welcomes):
            raise errors.UsageError("the shards were started with different training options")
        return len({welcome.run for welcome in welcomes}) > 1

    def _heartbeat_at(self, channel: Channel) -> float:
        """Return when a heartbeat is due, infinity without a session."""
        return max(channel.heard, channel.last_heartbeat) + HEARTBEAT_AFTER_S if channel.welcome else math.inf

    def _deadlines(self, silence_s: float) -> Iterator[float]:
        if self._role and not self.joined:
            yield self._greeted_at + HELLO_AGAIN_S
        for channel in self.channels:
            yield self._heartbeat_at(channel)
            yield channel.next_due()
            if channel.pending:
                yield channel.heard + silence_s


def _forgotten(channel: Channel) -> errors.UnknownSession:
    return errors.UnknownSession(
        f"{channel.address} has forgotten this worker: it was taken for lost, or the server was restarted"
    )
