"""Listens to servers' loss streams and hands over their samples. The only module of the monitor that knows zmq.

    with Feed("tcp://127.0.0.1:5556", topics=["loss"], timeout_s=60) as feed:
        for received in feed:
            print(received.message)

It counts what was missed, notices a server that starts anew, and believes nothing that it hears. No threads: a Feed
belongs to the thread that made it. It must never slow or stop a server: it only listens.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import zmq

from common.errors import DeadlineExceeded, GlovewireError, LimitExceeded, NotFinite, ProtocolError, VersionMismatch
from common.handshakes import Attempts
from common.keys import of_client
from common.messages import TOPICS, Event, Message
from common.settings import require
from common.sockets import Context, check_address, receive
from common.wire import Numbered, decode_sample

TICK_S = 0.25
AT_ONCE = 2_000
"""Samples taken from one address in one poll, so that a flood cannot keep the caller from its other work."""


class RunFailed(GlovewireError):
    """The run that was watched ended with a failure."""

    code: ClassVar[str] = "run-failed"


@dataclass(frozen=True)
class Received:
    """A sample, whence it came, how many before it were lost, and whether its publisher has started anew."""

    address: str
    run: str
    number: int
    message: Message
    lost: int = 0
    restarted: bool = False


class Feed:
    """Subscribes to the publish addresses of one or more servers; iterate, or `poll` from a loop of your own.

    `topics` (of common.messages.TOPICS) choose what is handed over. Iteration ends when every address has said
    `finished`, or one has said `failed`. With `timeout_s`, every address must say something within that many seconds
    from now, or DeadlineExceeded names those that did not; None waits for ever. `keys` is as in `--keys`; a server
    that does not accept them raises NotAdmitted.
    """

    def __init__(
        self,
        addresses: str | Sequence[str], topics: Sequence[str] = TOPICS, *,
        timeout_s: float | None = None, keys: Path | None = None,
    ) -> None:  # fmt: skip
        self.addresses = tuple(dict.fromkeys([addresses] if isinstance(addresses, str) else addresses))
        require(_problems(self.addresses, topics))
        for address in self.addresses:
            check_address(address)
        self._topics = frozenset(topics)
        self._timeout_s = timeout_s
        self._deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self._context = Context(None if keys is None else of_client(keys))
        self._poller = zmq.Poller()
        self._sources: dict[zmq.Socket[bytes], _Source] = {}
        for address in self.addresses:  # every topic: numbers count samples of all of them
            socket = self._context.subscriber(address)
            self._poller.register(socket, zmq.POLLIN)
            self._sources[socket] = _Source(address, self._context.attempts(socket))

    @property
    def silent(self) -> tuple[str, ...]:
        """Addresses that have not said anything yet."""
        return tuple(source.address for source in self._sources.values() if source.number is None)

    @property
    def lost(self) -> int:
        """Samples known to be lost, from all addresses."""
        return sum(source.lost for source in self._sources.values())

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
        """Whether nothing more is to come: every address has finished, or one has failed."""
        return self.failed is not None or all(source.finished for source in self._sources.values())

    def poll(self, wait_s: float = 0.0) -> list[Received]:
        """What has arrived, waiting at most `wait_s` seconds for something; raises as promised above."""
        ready = dict(self._poller.poll(max(0, int(wait_s * 1e3))))
        for source in self._sources.values():
            source.attempts.check()
        found = [
            received
            for socket, source in self._sources.items()
            if socket in ready
            for received in _drain(socket, source)
        ]
        self._check_deadline()
        return [received for received in found if received.message.topic in self._topics]

    def close(self) -> None:
        """Stop listening; twice is fine."""
        for socket in self._sources:
            if not socket.closed:
                self._poller.unregister(socket)
        self._context.close()

    def __iter__(self) -> Iterator[Received]:
        while not self.over:
            yield from self.poll(TICK_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_deadline(self) -> None:
        if self._deadline is None or time.monotonic() < self._deadline:
            return
        self._deadline = None
        if self.silent:
            silent = [s.address + s.attempts.doubt for s in self._sources.values() if s.number is None]
            raise DeadlineExceeded(
                f"no sample from {', '.join(silent)} within {self._timeout_s:g} s: is this the publish address of a "
                "server that runs?"
            )


class _Source:
    """What is known of one address: its run, its last number, what it lost and how it ended."""

    def __init__(self, address: str, attempts: Attempts) -> None:
        self.address, self.attempts = address, attempts
        self.run = ""
        self.number: int | None = None
        self.lost = 0
        self.refused = 0
        self.finished = False
        self.failed: str | None = None

    def take(self, sample: Numbered) -> Received:
        """Count `sample`, compare it with the one before, and note an ending."""
        last, self.number = self.number, sample.number
        restarted = last is not None and (sample.run != self.run or sample.number <= last)
        lost = 0 if last is None or restarted else sample.number - last - 1
        self.run = sample.run
        self.lost += lost
        if restarted:
            self.finished, self.failed = False, None
        self._note_ending(sample.message)
        return Received(self.address, sample.run, sample.number, sample.message, lost, restarted)

    def _note_ending(self, message: Message) -> None:
        if isinstance(message, Event) and message.kind == "finished":
            self.finished = True
        elif isinstance(message, Event) and message.kind == "failed":
            self.failed = message.text or message.subject or "no reason given"


def _drain(socket: zmq.Socket[bytes], source: _Source) -> Iterator[Received]:
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
        yield source.take(sample)


def _problems(addresses: Sequence[str], topics: Sequence[str]) -> list[str]:
    found = [] if addresses else ["give at least one address to listen to, such as tcp://127.0.0.1:5556"]
    return found + [f"there is no topic {topic!r}: use {', '.join(TOPICS)}" for topic in topics if topic not in TOPICS]
