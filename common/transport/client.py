"""A worker's conversation with every shard: requests in flight, deadlines, safe repeats, hello again after a cut.

The only zmq in this package. One thread, no locks: replies are handled inside `poll`. A request is repeated until it
is answered; the server recognises repeats, so nothing counts twice. Knows nothing of blocks or objectives.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Self

import zmq

from .. import errors
from ..endings import RunEnd
from ..protocol import messages as m
from ..protocol import wire
from . import sockets
from .channel import Link, OnReply
from .curve_keys import ClientKeys

BEAT_AFTER_S = 1.0
STALL_S = 1.0
SILENCE_S = 30.0
PARTING_S = 3.0
ANY_DELAY_MS = 100
TEND_EVERY_S = 0.01
HELLO_AGAIN_S = 0.5
APART = "the shards did not come to be in one run: do they share the run folder?"


class Conversation:
    """Talks to all shards as one worker (or observer) called `name`; use it as a context manager.

    `dataset` is the dataset's checksum, "" for observers. Every wait ends at a deadline with DeadlineExceeded naming
    the shard that is silent; refusals arrive as the GlovewireError that they name. Servers that have `keys` want ours.
    For programs of people's own there is `worker.dense.client.Client`, which speaks of tensors.
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
        self.name, self._dataset, self._silence_s = name, dataset, silence_s
        self._incarnation = secrets.randbits(62)
        self._tended = 0.0
        self._joined = False
        self._looked = time.monotonic()
        self._context = sockets.Context(keys)
        self.bytes_sent = 0
        self.on_sent: Callable[[m.Message, int], None] = lambda _, __: None
        self.failed: errors.GlovewireError | None = None
        try:
            self.links = [Link(self._context, address) for address in addresses]
            self._poller = zmq.Poller()
            self._link_of = {link.socket: link for link in self.links}
            for socket in self._link_of:
                self._poller.register(socket, zmq.POLLIN)
        except errors.GlovewireError:
            self.close()
            raise

    def connect(self, role: str = "worker", timeout_s: float | None = None) -> m.Welcome:
        """Say hello to every shard and return the welcome of shard 0.

        Raises UsageError when the addresses are not all the shards of one training in order, DatasetMismatch,
        VersionMismatch, DeadlineExceeded.
        """
        self._role = role
        self._hello(self.links[0])  # it gives a worker the number that the others are told
        unknown = self.links[1:]
        deadline, asked = time.monotonic() + (timeout_s or self._silence_s), time.monotonic()
        while (waiting := [link.where for link in self.links if link.welcome is None]) or self._apart():
            self.poll(ANY_DELAY_MS, silence=False)
            if (now := time.monotonic()) > deadline:
                raise errors.DeadlineExceeded(f"no server answers at {', '.join(waiting)}" if waiting else APART)
            if unknown and self.links[0].welcome is not None:
                for link in unknown:
                    self._hello(link)
                unknown = []
            if not waiting and now - asked > HELLO_AGAIN_S:
                asked = now
                for link in self.links:
                    self._hello(link)
        self._joined = True
        return self._welcomes()[0]

    def send(self, shard: int, message: m.Message, on_reply: OnReply) -> None:
        """Start a request; `on_reply` is called with the reply inside a later `poll`, and must not poll itself."""
        size = self.links[shard].send(message, on_reply)
        self.bytes_sent += size
        self.on_sent(message, size)

    def make_room(self, nbytes: int) -> None:
        """Return when a push of so many bytes may leave: within the credit of every shard, or alone."""
        while others := sum(link.on_their_way for link in self.links):
            if others + nbytes <= min(link.credit for link in self.links):
                return
            self.poll(ANY_DELAY_MS)

    def ask(self, shard: int, message: m.Message, timeout_s: float | None = None) -> m.Message:
        """Send one request and wait for its reply; a refusal is raised."""
        replies: list[m.Message] = []
        self.send(shard, message, replies.append)
        deadline = time.monotonic() + (timeout_s or self._silence_s)
        while not replies:
            self.poll(ANY_DELAY_MS, silence=timeout_s is None)
            if time.monotonic() > deadline:
                raise errors.DeadlineExceeded(f"no answer from {self.links[shard].where} in time")
        return raised(replies[0])

    def poll(self, timeout_ms: int, *, silence: bool = True) -> None:
        """Handle the replies that are there, waiting up to `timeout_ms` for the first; keep the sessions alive.

        Raises DeadlineExceeded when a shard that owes an answer has been silent for too long, NotAdmitted when one
        does not let us in.
        """
        for socket, _ in self._poller.poll(timeout_ms):  # returns at once when something is there
            self._receive(self._link_of[socket])
        if self.failed is not None:
            raise self.failed
        now = time.monotonic()
        if (stall := now - self._looked) > STALL_S:  # we were busy or stopped: that silence is not the servers'
            for link in self.links:
                link.heard = min(link.heard + stall, now)
        self._looked = now
        if now - self._tended >= TEND_EVERY_S:
            self._tended = now
            for link in self.links:
                self._keep_alive(link, now, silence)

    def flush(self) -> None:
        """Wait until nothing is pending."""
        while any(link.pending for link in self.links):
            self.poll(ANY_DELAY_MS)

    def part(self, end: RunEnd, within_s: float | None = None) -> None:
        """Say goodbye to every shard that knows us, once what was pushed and reported is in.

        What waits for other workers (pulls, leases) is not waited for: the server forgets it with the session. Servers
        that are gone themselves are waited for no longer than `within_s` (PARTING_S): they lose nothing that others
        cannot do.
        """
        deadline = time.monotonic() + (within_s or PARTING_S)
        self._settle(deadline)
        for shard, link in enumerate(self.links):
            if link.welcome is not None:
                self.send(shard, m.Leave(*end, link.pushes), partial(_parted, link))
        self._settle(deadline)

    def _settle(self, deadline: float) -> None:
        while any(link.owed for link in self.links) and time.monotonic() < deadline:
            self.poll(ANY_DELAY_MS)

    def close(self) -> None:
        """Close every socket, letting what was just sent go out; twice is fine."""
        self._context.close(last_words_ms=200)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def _hello(self, link: Link) -> None:
        first = self.links[0].welcome
        number = -1 if link is self.links[0] or first is None else first.worker
        hello = m.Hello(self._role, self.name, self._incarnation, self._dataset, number)
        link.send(hello, lambda reply: self._met(link, reply))

    def _met(self, link: Link, reply: m.Message) -> None:
        try:
            welcome = raised(reply)
        except errors.GlovewireError as error:
            self.failed = self.failed or error
            return
        if isinstance(welcome, m.Welcome):
            before, link.welcome = link.welcome or welcome, welcome
            if self._joined and (welcome.run, welcome.worker) != (before.run, before.worker):
                self.failed = errors.UnknownSession(
                    f"{link.address} has forgotten this worker: it took it for lost, or began again"
                )
            elif before is not welcome:
                link.again()

    def _welcomes(self) -> list[m.Welcome]:
        return [link.welcome for link in self.links if link.welcome is not None]

    def _apart(self) -> bool:
        """Whether the shards are in different lives of the run: the last to be started again is ahead of the others."""
        self._check_shards(self._welcomes())
        return len({welcome.run for welcome in self._welcomes()}) > 1

    def _check_shards(self, welcomes: list[m.Welcome]) -> None:
        found = [f"{link.address} is shard {w.shard}/{w.shards}" for link, w in zip(self.links, welcomes, strict=True)]
        if [(w.shard, w.shards) for w in welcomes] != [(k, len(welcomes)) for k in range(len(welcomes))]:
            raise errors.UsageError(f"give every shard's address once, in order; {', '.join(found)}")
        if any(w.options != welcomes[0].options for w in welcomes):
            raise errors.UsageError("the shards were started with different training options")

    def _receive(self, link: Link) -> None:
        """Handle everything that is there and owed; something is."""
        self._dispatch(link, sockets.receive(link.socket))
        while link.pending and sockets.has_message(link.socket):
            self._dispatch(link, sockets.receive(link.socket))

    def _dispatch(self, link: Link, frames: list[wire.Frame]) -> None:
        link.heard = time.monotonic()
        try:
            reply = wire.decode(frames[1:])
        except errors.GlovewireError as error:
            self.failed = errors.ProtocolError(f"{link.address} answers with something else: {error}")
            return
        if reply.number == 0 and isinstance(reply.message, m.Refused):
            self.failed = errors.from_wire(reply.message.code, reply.message.text, reply.message.ending)
            return
        pending = link.pending.get(reply.number)
        if pending is None or (isinstance(pending.message, m.Pull) and isinstance(reply.message, m.Applied)):
            if isinstance(reply.message, m.Rows):
                link.answered_again(reply.number)
            return  # a push that was repeated is applied, and was before: the rows that it asks for are still to come
        refused = reply.message.code if isinstance(reply.message, m.Refused) else ""
        if refused == errors.UnknownSession.code and not isinstance(pending.message, m.Hello):
            if isinstance(pending.message, m.Heartbeat):
                del link.pending[reply.number]
            if not any(isinstance(other.message, m.Hello) for other in link.pending.values()):
                self._hello(link)
            return
        if refused == errors.OutOfOrder.code:
            link.again(pending)
            return
        link.answered(reply.number, reply.message, link.heard)
        pending.on_reply(reply.message)

    def _keep_alive(self, link: Link, now: float, silence: bool) -> None:
        """Who waits for one shard tells the others, too, that it is alive: all of them watch it."""
        link.attempts.check()
        if link.pending and now - link.heard > self._silence_s and silence:
            raise errors.DeadlineExceeded(f"{link.address} has not answered for {self._silence_s:.0f} s")
        if now - link.heard > BEAT_AFTER_S and now - link.beaten > BEAT_AFTER_S and link.welcome is not None:
            link.beaten = now
            if not any(isinstance(pending.message, m.Heartbeat) for pending in link.pending.values()):
                link.send(m.Heartbeat(), lambda _: None)
        link.resend(now)


def _parted(link: Link, _: m.Message) -> None:
    link.parted()


def raised(reply: m.Message) -> m.Message:
    """The reply, unless it is a refusal: that is raised as the error it names."""
    if isinstance(reply, m.Refused):
        raise errors.from_wire(reply.code, reply.text, reply.ending)
    return reply
