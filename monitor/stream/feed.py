"""Listens to servers' loss streams and hands over their samples. The only module of the monitor that knows zmq.

    with Feed("tcp://127.0.0.1:5556", topics=["loss"], timeout_s=60) as feed:
        for received in feed:
            print(received.message)

It begins with the run's past, fills the holes that a slow or cut connection leaves and counts what is missing all the
same, notices a server that starts anew, and believes nothing that it hears. No threads: a Feed belongs to the thread
that made it. It must never slow or stop a server: it listens, and asks only for what it lacks.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar, Self

import zmq

from glovewire.common.errors import (
    DeadlineExceeded,
    GlovewireError,
    LimitExceeded,
    NotFinite,
    ProtocolError,
    VersionMismatch,
    require,
)
from glovewire.common.protocol.messages import TOPICS, GetHistory, History
from glovewire.common.protocol.wire import decode_sample
from glovewire.common.transport.client import QueryClient, expect
from glovewire.common.transport.curve_keys import load_client_keys
from glovewire.common.transport.sockets import Context, check_address, receive, with_port
from glovewire.common.transport.zap import HandshakeMonitor

from .reassembly import Received, Source

__all__ = ["Feed", "Received", "RunFailed"]

TICK_S = 0.25
STALL_S = 1.0
LAST_WORD_S = 10.0
AT_ONCE = 2_000
"""Samples taken from one address in one poll, so that a flood cannot keep the caller from its other work."""


class RunFailed(GlovewireError):
    """The run that was watched ended with a failure."""

    code: ClassVar[str] = "run-failed"


class Feed:
    """Subscribes to the publish addresses of one or more servers; iterate, or `poll` from a loop of your own.

    `topics` (of `messages.TOPICS`) choose what is handed over. With `history`, samples that were sent before it
    came, or while it was cut off, come first, in order, each once. Iteration ends when every address has said
    `finished`, or one has said `failed`. With `timeout_s`, every address must say something within that many seconds
    from now, or DeadlineExceeded names those that did not; with `silence_s`, so does silence of them all for so long
    later on, whose reason may be an end that nobody here was told of. None waits for ever. Time in which nobody polls,
    be the process busy or stopped, is nobody's silence. `keys` is as in `--keys`; a server that does not accept them
    raises NotAdmitted.
    """

    def __init__(
        self,
        addresses: str | Sequence[str],
        topics: Sequence[str] = TOPICS,
        *,
        timeout_s: float | None = None,
        silence_s: float | None = None,
        history: bool = True,
        keys: Path | None = None,
    ) -> None:
        self.addresses = tuple(dict.fromkeys([addresses] if isinstance(addresses, str) else addresses))
        require(_problems(self.addresses, topics))
        for address in self.addresses:
            check_address(address)
        self._topics = frozenset(topics)
        self._timeout_s, self._silence_s = timeout_s, silence_s
        self._now, self._looked = 0.0, time.monotonic()
        self.keys = None if keys is None else load_client_keys(keys)
        self._context = Context(self.keys)
        self._poller = zmq.Poller()
        self._lines: dict[Source, QueryClient] = {}
        self._attempts: dict[zmq.Socket[bytes], HandshakeMonitor] = {}
        self._sources: dict[zmq.Socket[bytes], Source] = {}
        for address in self.addresses:  # every topic: numbers count samples of all of them
            socket = self._context.subscriber(address)
            self._poller.register(socket, zmq.POLLIN)
            self._sources[socket] = Source(address, history=history)
            self._attempts[socket] = self._context.handshakes(socket)

    @property
    def silent(self) -> tuple[str, ...]:
        """Addresses that have not said anything yet."""
        return tuple(source.address for source in self._sources.values() if not source.heard)

    @property
    def lost(self) -> int:
        """Samples that are known to be missing now, from all addresses; less again when a hole was filled."""
        return sum(source.lost for source in self._sources.values())

    @property
    def filled(self) -> int:
        """Samples that were missed and then found in the servers' past."""
        return sum(source.filled for source in self._sources.values())

    @property
    def requests(self) -> tuple[str, ...]:
        """Where the shards that have said so answer requests."""
        return tuple(with_port(source.address, source.port) for source in self._sources.values() if source.port)

    @property
    def refused(self) -> int:
        """Messages that were not samples of this protocol."""
        return sum(source.refused for source in self._sources.values())

    @property
    def failed(self) -> str | None:
        """What the run said when it failed, or None."""
        said = [source.failed for source in self._sources.values() if source.failed is not None]
        return said[0] if said else None

    @property
    def over(self) -> bool:
        """Whether nothing more is to come: every address has finished, or one has failed.

        Shards end together: when one has finished, others that say nothing for LAST_WORD_S have, too.
        """
        since = self._now - LAST_WORD_S
        return self.failed is not None or (
            self._ending and all(source.finished or source.heard_at <= since for source in self._sources.values())
        )

    @property
    def _ending(self) -> bool:
        return any(source.finished for source in self._sources.values())

    def poll(self, wait_s: float = 0.0) -> list[Received]:
        """What has arrived, waiting at most `wait_s` seconds for something; raises as promised above."""
        ready = dict(self._poller.poll(max(0, int(wait_s * 1e3))))
        now = time.monotonic()
        self._now, self._looked = self._now + min(now - self._looked, STALL_S), now
        for attempts in self._attempts.values():
            attempts.check()
        found = [
            received
            for socket, source in self._sources.items()
            if socket in ready
            for received in _drain(socket, source, self._now)
        ]
        for source in self._sources.values():
            found += self._fill(source)
        self._check_silence()
        return [received for received in found if received.message.topic in self._topics]

    def close(self) -> None:
        """Stop listening; twice is fine."""
        for socket in self._sources:
            if not socket.closed:
                self._poller.unregister(socket)
        for line in self._lines.values():
            line.close()
        self._lines.clear()
        self._context.close()

    def __iter__(self) -> Iterator[Received]:
        while not self.over:
            yield from self.poll(TICK_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _fill(self, source: Source) -> list[Received]:
        """Ask for what is missing, take in what was answered, and go on without it when nobody does."""
        found: list[Received] = []
        line = self._lines.get(source)
        try:
            if line is not None and (answer := line.answer()) is not None:
                found += source.fill(expect(answer, History), self._now)
        except (ProtocolError, LimitExceeded, NotFinite, VersionMismatch):
            source.refused += 1
            found += source.give_up(self._now, at_once=True)
        found += source.give_up(self._now)
        self._ask(source, line)
        return found

    def _ask(self, source: Source, line: QueryClient | None) -> None:
        wanted = source.wanted
        if wanted is None or source.port is None:
            if line is not None:
                self._lines.pop(source).close()
            return
        if line is None:
            line = self._lines[source] = QueryClient(with_port(source.address, source.port), self.keys)
        if line.asked is None:
            line.ask(GetHistory(wanted))

    def _check_silence(self) -> None:
        silent = [each.address + self._attempts[at].doubt for at, each in self._sources.items() if not each.heard]
        if self._timeout_s is not None and self._now >= self._timeout_s and silent:
            raise DeadlineExceeded(
                f"no sample from {', '.join(silent)} within {self._timeout_s:g} s: is this the publish address of a "
                "server that runs?"
            )
        heard_at = max(source.heard_at for source in self._sources.values())
        if self._silence_s is not None and self._now - heard_at >= self._silence_s and not (silent or self._ending):
            raise DeadlineExceeded(
                f"nothing from {', '.join(self.addresses)} for {self._silence_s:g} s, and nobody has said that the run "
                "is over: its servers are gone or cut off"
            )


def _drain(socket: zmq.Socket[bytes], source: Source, now: float) -> Iterator[Received]:
    for _ in range(AT_ONCE):
        try:
            frames = receive(socket)
        except zmq.Again:
            return
        try:
            sample = decode_sample(frames)
        except VersionMismatch as error:
            raise VersionMismatch(f"{source.address}: {error}") from error
        except (ProtocolError, LimitExceeded, NotFinite):
            source.refused += 1
            continue
        yield from source.take(sample, now)


def _problems(addresses: Sequence[str], topics: Sequence[str]) -> list[str]:
    found = [] if addresses else ["give at least one address to listen to, such as tcp://127.0.0.1:5556"]
    return found + [f"there is no topic {topic!r}: use {', '.join(TOPICS)}" for topic in topics if topic not in TOPICS]
