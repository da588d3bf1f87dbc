"""A client core and scripted shards in one thread and in virtual time: no network, no waiting."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fake_server import Heard, Script

from glovewire.common.client.channel import UNSENT, OnReply, Request
from glovewire.common.client.core import ClientCore
from glovewire.common.errors import GlovewireError
from glovewire.common.protocol import messages as m
from glovewire.common.protocol import wire

DELAY_S = 0.001


@dataclass
class Conversation:
    """`scripts[k]` returns the reply of shard k, or None for silence; a reply arrives DELAY_S after its request.

    `now` is the time of the conversation; `heard[k]` is everything that has arrived at shard k.
    """

    scripts: Sequence[Script]
    silence_s: float = math.inf
    dataset: str = "data"
    now: float = 0.0
    heard: list[list[Heard]] = field(default_factory=list)
    _arriving: list[tuple[float, int, list[wire.Frame]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.heard = [[] for _ in self.scripts]
        addresses = [f"tcp://shard-{shard}:1" for shard in range(len(self.scripts))]
        self.core = ClientCore(addresses, "w", self.dataset, 7, self.now)

    def join(self, role: str = "worker") -> None:
        """Open the sessions."""
        self.core.join(role, self.now)
        self.until(lambda: self.core.joined)

    def send(self, message: m.Message, on_reply: OnReply = lambda _: None, shard: int = 0) -> Request:
        """Send a request as a client's loop would."""
        request = self.core.send(shard, message, on_reply, self.now)
        if request.sent != UNSENT:
            self._transmit(shard, request)
        return request

    def ask(self, message: m.Message, shard: int = 0) -> m.Message:
        """Send a request and return its reply."""
        replies: list[m.Message] = []
        self.send(message, replies.append, shard)
        self.until(lambda: bool(replies))
        return replies[0]

    def until(self, happened: Callable[[], bool], within_s: float = 60.0) -> None:
        """Step until `happened()`; raise the error of the sessions; fail after `within_s` seconds of virtual time."""
        deadline = self.now + within_s
        while not happened():
            self.step()
            assert self.now < deadline, "not in time"

    def rest(self, seconds: float) -> None:
        """Step for a number of seconds."""
        until = self.now + seconds
        while self.now < until:
            self.step(until)

    def step(self, latest: float = math.inf) -> None:
        """Advance to the next arrival or tick, at most to `latest`."""
        arrival = min((at for at, _, _ in self._arriving), default=math.inf)
        self.now = max(self.now, min(arrival, math.nextafter(self.core.deadline, math.inf), latest))
        for each in [each for each in self._arriving if each[0] <= self.now]:
            self._arriving.remove(each)
            if (answer := self.core.receive(each[1], each[2], self.now)) is not None:
                answer.request.on_reply(answer.reply)
        if self.core.failed is not None:
            raise self.core.failed
        if self.now >= self.core.deadline:
            for shard, request in self.core.tick(self.now, self.silence_s):
                self._transmit(shard, request)

    def deliver(self, number: int, reply: m.Message, shard: int = 0) -> None:
        """Deliver a reply to request `number` that no script returns."""
        self._arriving.append((self.now + DELAY_S, shard, wire.encode(number, reply)))

    def messages(self, kind: type[m.Message], shard: int = 0) -> list[Heard]:
        """The messages of a kind that have arrived."""
        return [one for one in self.heard[shard] if isinstance(one.message, kind)]

    def _transmit(self, shard: int, request: Request) -> None:
        sent = wire.decode(request.frames[1:])
        before = sum(one.number == sent.number for one in self.heard[shard])
        heard = Heard(b"w", sent.number, sent.message, before)
        self.heard[shard].append(heard)
        if (reply := self.scripts[shard](heard)) is not None:
            self.deliver(sent.number, reply, shard)


def failing(conversation: Conversation) -> GlovewireError:
    """Step until the sessions fail; return the error."""
    try:
        conversation.until(lambda: False)
    except GlovewireError as error:
        return error
    raise AssertionError("nothing failed")
