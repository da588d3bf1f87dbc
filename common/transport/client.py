"""Send requests to shards and match replies to them.

`RequestClient`, for workers and observers, has a session with every shard; `QueryClient`, for monitors, sends one query
at a time to one shard. Both retransmit a request until it is answered; the server recognises repeats, so nothing is
applied twice. One thread, no locks.
"""

import math
import secrets
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Self, TypeVar

import zmq

from .. import errors
from ..endings import RunEnd
from ..protocol import messages as m
from ..protocol import wire
from . import sockets
from .channel import Channel, OnReply
from .curve_keys import ClientKeys

HEARTBEAT_AFTER_S = 1.0
STALL_S = 1.0
SILENCE_S = 30.0
PARTING_S = 3.0
POLL_MS = 100
KEEP_ALIVE_EVERY_S = 0.01
HELLO_AGAIN_S = 0.5

APART = "the shards are not in the same run: do they share the run folder?"

M = TypeVar("M", bound=m.Message)


class RequestClient:
    """A session with every shard as the worker (or observer) called `name`; use it as a context manager.

    `dataset` is the dataset's checksum, "" for observers. Every wait ends at a deadline with DeadlineExceeded, which
    names the silent shard; a `Refused` reply is raised as the GlovewireError of its code. `keys` are required if the
    servers have keys; the session's name then begins with theirs. Replies are handled inside `poll`. Programs that
    train tensors use `worker.dense.Client` instead.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        name: str,
        dataset: str = "",
        silence_s: float = SILENCE_S,
        keys: ClientKeys | None = None,
    ) -> None:
        if not addresses:
            raise errors.UsageError("no server address was given")
        self._name = name if keys is None else keys.session_name(name)
        self._dataset, self._silence_s = dataset, silence_s
        self._incarnation = secrets.randbits(62)
        self._joined = False
        self._not_ready: errors.NotReady | None = None
        self._kept_alive = 0.0
        self._polled = time.monotonic()
        self._context = sockets.Context(keys)
        self.bytes_sent = 0
        self.on_sent: Callable[[m.Message, int], None] = lambda _, __: None
        self.failed: errors.GlovewireError | None = None
        try:
            self.channels = [Channel(self._context, address) for address in addresses]
            self._poller = zmq.Poller()
            self._channel_of = {channel.socket: channel for channel in self.channels}
            for socket in self._channel_of:
                self._poller.register(socket, zmq.POLLIN)
        except errors.GlovewireError:
            self.close()
            raise

    def connect(self, role: str = "worker", timeout_s: float | None = None) -> m.Welcome:
        """Open a session with every shard and return the Welcome of shard 0.

        Raises UsageError unless the addresses are those of all shards of one training, in order; DatasetMismatch,
        VersionMismatch; after `timeout_s` DeadlineExceeded, or NotReady if another process still has the name.
        """
        self._role = role
        self._send_hello(self.channels[0])  # its welcome has the worker's number, which the other shards are told
        others = self.channels[1:]
        deadline, greeted = time.monotonic() + (timeout_s or self._silence_s), time.monotonic()
        while (silent := [each.where for each in self.channels if each.welcome is None]) or self._runs_differ():
            self.poll(POLL_MS, silence=False)
            if (now := time.monotonic()) > deadline:
                where = f"no server answers at {', '.join(silent)}"
                raise self._not_ready or errors.DeadlineExceeded(where if silent else APART)
            if others and self.channels[0].welcome is not None:
                for channel in others:
                    self._send_hello(channel)
                others = []
            if (not silent or self._not_ready is not None) and now - greeted > HELLO_AGAIN_S:
                greeted = now
                for channel in [each for each in self.channels if each not in others]:
                    self._send_hello(channel)
        self._joined = True
        return self._welcomes()[0]

    def send(self, shard: int, message: m.Message, on_reply: OnReply) -> None:
        """Send a request; a later `poll` calls `on_reply` with the reply. `on_reply` must not call `poll`."""
        size = self.channels[shard].send(message, on_reply)
        self.bytes_sent += size
        self.on_sent(message, size)

    def wait_for_credit(self, nbytes: int) -> None:
        """Wait until a push of `nbytes` fits in the credit of every shard, or no push is in flight."""
        while in_flight := sum(channel.in_flight for channel in self.channels):
            if in_flight + nbytes <= min(channel.credit for channel in self.channels):
                return
            self.poll(POLL_MS)

    def ask(self, shard: int, message: m.Message, timeout_s: float | None = None) -> m.Message:
        """Send a request and wait for its reply; raises DeadlineExceeded or the error that a refusal names."""
        replies: list[m.Message] = []
        self.send(shard, message, replies.append)
        deadline = time.monotonic() + (timeout_s or self._silence_s)
        while not replies:
            self.poll(POLL_MS, silence=timeout_s is None)
            if time.monotonic() > deadline:
                raise errors.DeadlineExceeded(f"no answer from {self.channels[shard].where} in time")
        return check_reply(replies[0])

    def poll(self, timeout_ms: int, *, silence: bool = True) -> None:
        """Handle received replies, waiting up to `timeout_ms` for the first, and keep the sessions alive.

        Raises DeadlineExceeded when a shard with pending requests has been silent for too long (unless `silence` is
        False), NotAdmitted when a shard refuses this client's keys, and the error of a session that failed.
        """
        for socket, _ in self._poller.poll(timeout_ms):
            self._receive(self._channel_of[socket])
        if self.failed is not None:
            raise self.failed
        now = time.monotonic()
        if (stall := now - self._polled) > STALL_S:  # this process was busy or stopped: no silence of the servers
            for channel in self.channels:
                channel.heard = min(channel.heard + stall, now)
        self._polled = now
        if now - self._kept_alive >= KEEP_ALIVE_EVERY_S:
            self._kept_alive = now
            for channel in self.channels:
                self._keep_alive(channel, now, silence)

    def flush(self, deadline: float = math.inf) -> None:
        """Wait, at most until `deadline`, for all replies except to pulls and leases, which wait for other workers."""
        while any(channel.owes_reply for channel in self.channels) and time.monotonic() < deadline:
            self.poll(POLL_MS)

    def part(self, end: RunEnd, within_s: float | None = None) -> None:
        """Close the session with every shard, after its pushes and reports have been answered.

        Pending pulls and leases are abandoned: the server drops them with the session. A silent server is waited for
        at most `within_s` seconds (default PARTING_S); other workers can redo any work that this loses.
        """
        deadline = time.monotonic() + (within_s or PARTING_S)
        self.flush(deadline)
        for shard, link in enumerate(self.channels):
            if link.welcome is not None:
                self.send(shard, m.Leave(*end, link.pushes), link.end_session)
        self.flush(deadline)

    def close(self) -> None:
        """Close every socket, after up to 200 ms for sending queued messages; may be called twice."""
        self._context.close(last_words_ms=200)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send_hello(self, channel: Channel) -> None:
        first = self.channels[0].welcome
        number, token = (-1, 0) if channel is self.channels[0] or first is None else (first.worker, first.token)
        hello = m.Hello(self._role, self._name, self._incarnation, self._dataset, number, token)
        channel.send(hello, partial(self._take_welcome, channel))

    def _take_welcome(self, channel: Channel, reply: m.Message) -> None:
        try:
            welcome = check_reply(reply)
        except errors.NotReady as error:
            self._not_ready = error  # `connect` says hello again
            if self._joined:
                self.failed = self.failed or errors.UnknownSession(str(error))
            return
        except errors.GlovewireError as error:
            self.failed = self.failed or error
            return
        if isinstance(welcome, m.Welcome):
            before, channel.welcome = channel.welcome or welcome, welcome
            if self._joined and (welcome.run, welcome.worker) != (before.run, before.worker):
                self.failed = errors.UnknownSession(
                    f"{channel.address} has forgotten this worker: it was taken for lost, or the server was restarted"
                )
            elif before is not welcome:
                channel.mark_unsent()

    def _welcomes(self) -> list[m.Welcome]:
        return [channel.welcome for channel in self.channels if channel.welcome is not None]

    def _runs_differ(self) -> bool:
        """Return whether shards are in different generations of the run; UsageError if they do not fit together."""
        welcomes = self._welcomes()
        if [(w.shard, w.shards) for w in welcomes] != [(k, len(welcomes)) for k in range(len(welcomes))]:
            found = [
                f"{channel.address} is shard {w.shard}/{w.shards}"
                for channel, w in zip(self.channels, welcomes, strict=True)
            ]
            raise errors.UsageError(f"give every shard's address once, in order; {', '.join(found)}")
        if any(w.options != welcomes[0].options for w in welcomes):
            raise errors.UsageError("the shards were started with different training options")
        return len({welcome.run for welcome in welcomes}) > 1

    def _receive(self, channel: Channel) -> None:
        """Handle the message that has arrived, and further ones while requests are pending."""
        self._dispatch(channel, sockets.receive(channel.socket))
        while channel.pending and sockets.has_message(channel.socket):
            self._dispatch(channel, sockets.receive(channel.socket))

    def _dispatch(self, channel: Channel, frames: list[wire.Frame]) -> None:
        channel.heard = time.monotonic()
        try:
            reply = wire.decode(frames[1:])
        except errors.GlovewireError as error:
            self.failed = errors.ProtocolError(f"{channel.address} does not answer in this protocol: {error}")
            return
        if reply.number == 0 and isinstance(reply.message, m.Refused):
            self.failed = errors.from_wire(reply.message.code, reply.message.text, reply.message.ending)
            return
        pending = channel.pending.get(reply.number)
        if pending is None or (isinstance(pending.message, m.Pull) and isinstance(reply.message, m.Applied)):
            if isinstance(reply.message, m.Rows):
                channel.note_duplicate(reply.number)
            return  # a repeated `Applied` of a push whose rows are still to come
        refused = reply.message.code if isinstance(reply.message, m.Refused) else ""
        if refused == errors.UnknownSession.code and not isinstance(pending.message, m.Hello):
            if isinstance(pending.message, m.Heartbeat):
                del channel.pending[reply.number]
            if not any(isinstance(other.message, m.Hello) for other in channel.pending.values()):
                self._send_hello(channel)
            return
        if refused == errors.OutOfOrder.code:
            channel.mark_unsent(pending)
            return
        channel.complete(reply.number, reply.message, channel.heard)
        pending.on_reply(reply.message)

    def _keep_alive(self, channel: Channel, now: float, silence: bool) -> None:
        """Retransmit requests, send a heartbeat if one is due, and check that the shard is not silent for too long.

        A worker that waits for one shard sends heartbeats to the others, too, because each of them would time it out.
        """
        channel.handshakes.check()
        silent_s = now - channel.heard
        if channel.pending and silent_s > self._silence_s and silence:
            raise errors.DeadlineExceeded(f"{channel.address} has not answered for {self._silence_s:.0f} s")
        if min(silent_s, now - channel.last_heartbeat) > HEARTBEAT_AFTER_S and channel.welcome is not None:
            channel.last_heartbeat = now
            if not any(isinstance(pending.message, m.Heartbeat) for pending in channel.pending.values()):
                channel.send(m.Heartbeat(), lambda _: None)
        channel.resend(now)


class QueryClient:
    """A connection to the shard at `address` with at most one open query; no method blocks."""

    def __init__(self, address: str, keys: ClientKeys | None = None) -> None:
        self.address = address
        self.sent_at: float | None = None
        self._context = sockets.Context(keys)
        try:
            self._channel = Channel(self._context, address)
        except errors.GlovewireError:
            self._context.close()
            raise

    def ask(self, query: m.Message) -> None:
        """Send a query; a reply to an earlier query is then dropped."""
        self._channel.pending.clear()
        self._channel.send(query, lambda _: None)
        self.sent_at = time.monotonic()

    def answer(self) -> m.Message | None:
        """Return the reply (perhaps `Refused`), None if it has not arrived; ProtocolError or NotFinite if malformed."""
        channel = self._channel
        while channel.pending and sockets.has_message(channel.socket):
            number, reply, _ = wire.decode(sockets.receive(channel.socket)[1:])
            if number in channel.pending:
                channel.complete(number, reply, time.monotonic())
            elif number == 0 and isinstance(reply, m.Refused):  # the server could not read the query
                channel.pending.clear()
            else:  # the reply to an earlier query
                if isinstance(reply, m.Rows):
                    channel.note_duplicate(number)
                continue
            self.sent_at = None
            return reply
        channel.resend(time.monotonic())
        return None

    def waits_s(self) -> float:
        """Return how many seconds the open query has waited for its reply, 0 if no query is open."""
        return 0.0 if self.sent_at is None else time.monotonic() - self.sent_at

    def close(self) -> None:
        """Close the connection; may be called twice."""
        self._context.close()


def check_reply(reply: m.Message) -> m.Message:
    """Return `reply`, or raise the error that it names if it is `Refused`."""
    if isinstance(reply, m.Refused):
        raise errors.from_wire(reply.code, reply.text, reply.ending)
    return reply


def expect(reply: m.Message, kind: type[M]) -> M:
    """Return `reply` if it is a message of type `kind`; otherwise ProtocolError, with the text of a `Refused`."""
    if isinstance(reply, kind):
        return reply
    why = reply.text if isinstance(reply, m.Refused) else f"{type(reply).__name__} does not answer this query"
    raise errors.ProtocolError(why)
