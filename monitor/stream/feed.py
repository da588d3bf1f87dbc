"""Subscribe to servers' PUB streams and yield their samples.

A Feed starts with the samples sent before it connected, requests samples that a slow or cut connection has missed,
detects a restarted server, and validates everything that it receives. Use it only in the thread that created it; it
starts none. It does not slow servers down, because it only subscribes and requests missing samples.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import zmq

from glovewire.common.addresses import check_address, with_port
from glovewire.common.client.pending import Pending, expect
from glovewire.common.errors import (
    DeadlineExceeded,
    GlovewireError,
    NotFinite,
    ProtocolError,
    VersionMismatch,
    require,
)
from glovewire.common.protocol.messages import TOPICS, GetHistory, History, Message
from glovewire.common.protocol.wire import decode_sample
from glovewire.common.roles import Role
from glovewire.common.transport.client import RequestClient
from glovewire.common.transport.curve_keys import load_client_keys
from glovewire.common.transport.sockets import Context, receive
from glovewire.common.transport.zap import HandshakeMonitor

from .reassembly import Reassembly, ReceivedSample

__all__ = ["Feed", "ReceivedSample", "RunFailed"]

TICK_S = 0.25
STALL_S = 1.0
LAST_WORD_S = 10.0
MAX_PER_POLL = 2_000
"""Most samples received from one address in one poll, so that a flood of samples cannot block the caller."""


class RunFailed(GlovewireError, code="run-failed"):
    """The watched run has failed."""


@dataclass
class _Subscription:
    """State of one publish address: its socket, its Reassembly, and a client while samples are requested."""

    socket: zmq.Socket[bytes]
    stream: Reassembly
    attempts: HandshakeMonitor
    client: RequestClient | None = None
    requested: Pending[Message] | None = None
    requested_after: int = 0

    def close_client(self) -> None:
        if self.client is not None:
            self.client.close()
            self.client = self.requested = None


class Feed(AbstractContextManager["Feed"]):
    """Subscribes to the publish addresses of one or more servers; iterate, or call `poll` from a loop of your own.

    Yields samples of `topics` (from `messages.TOPICS`), each once, in order for each address. With `history`, requests
    and yields samples that were sent before it connected or while it was disconnected. Iteration ends when every one of
    the addresses has sent `finished`, or one has sent `failed`.

    Raises DeadlineExceeded when an address sends nothing in the first `timeout_s` seconds, or when, later, no address
    sends anything for `silence_s` seconds; None sets no limit. Time in which this process does not call `poll`, because
    it is busy or stopped, does not count. `keys` is as in `--keys`; NotAdmitted when a server does not accept the keys.
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
        problems = [] if self.addresses else ["give at least one publish address, such as tcp://127.0.0.1:5556"]
        unknown = [topic for topic in topics if topic not in TOPICS]
        require(problems + [f"there is no topic {topic!r}: use {', '.join(TOPICS)}" for topic in unknown])
        for address in self.addresses:
            check_address(address)
        self._topics = frozenset(topics)
        self._timeout_s, self._silence_s = timeout_s, silence_s
        self._now, self._polled_at = 0.0, time.monotonic()
        self.keys = None if keys is None else load_client_keys(keys, Role.MONITOR)
        self._context = Context(self.keys)
        self._poller = zmq.Poller()
        self._subscriptions: list[_Subscription] = []
        for address in self.addresses:  # subscribes to every topic, because samples are numbered across all topics
            socket = self._context.subscriber(address)
            self._poller.register(socket, zmq.POLLIN)
            stream = Reassembly(address, history=history)
            self._subscriptions.append(_Subscription(socket, stream, self._context.handshakes(socket)))

    @property
    def silent(self) -> tuple[str, ...]:
        """Return the addresses that have not sent anything yet."""
        return tuple(stream.address for stream in self._streams if not stream.heard)

    @property
    def lost(self) -> int:
        """Return the number of samples of all addresses that are missing now; the number falls when a gap is filled."""
        return sum(stream.lost for stream in self._streams)

    @property
    def filled(self) -> int:
        """Return the number of samples that were missed and later received from the servers' history."""
        return sum(stream.filled for stream in self._streams)

    @property
    def requests(self) -> tuple[str, ...]:
        """Return the request addresses of the shards that have published one."""
        return tuple(with_port(stream.address, stream.port) for stream in self._streams if stream.port)

    @property
    def refused(self) -> int:
        """Return the number of messages that were rejected because they were not valid samples or replies."""
        return sum(stream.refused for stream in self._streams)

    @property
    def failed(self) -> str | None:
        """Return the reason for the run's failure, or None."""
        return next((stream.failed for stream in self._streams if stream.failed is not None), None)

    @property
    def over(self) -> bool:
        """Return whether the stream has ended: every address has finished, or one has failed.

        Shards end together: once one has finished, another counts as finished after it was silent for LAST_WORD_S.
        """
        since = self._now - LAST_WORD_S
        return self.failed is not None or (
            self._ending and all(stream.finished or stream.heard_at <= since for stream in self._streams)
        )

    def poll(self, wait_s: float = 0.0) -> list[ReceivedSample]:
        """Wait at most `wait_s` seconds for samples; return those that have arrived. Raises the errors of the class."""
        ready = dict(self._poller.poll(max(0, int(wait_s * 1e3))))
        now = time.monotonic()
        self._now, self._polled_at = self._now + min(now - self._polled_at, STALL_S), now
        for each in self._subscriptions:
            each.attempts.check()
        found: list[ReceivedSample] = []
        for each in self._subscriptions:
            if each.socket in ready:
                found += _drain(each.socket, each.stream, self._now)
        for each in self._subscriptions:
            found += self._fill(each)
        self._check_silence()
        return [received for received in found if received.message.topic in self._topics]

    def close(self) -> None:
        """Close every connection; may be called twice."""
        for each in self._subscriptions:
            if not each.socket.closed:
                self._poller.unregister(each.socket)
            each.close_client()
        self._context.close()

    def __iter__(self) -> Iterator[ReceivedSample]:
        while not self.over:
            yield from self.poll(TICK_S)

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _streams(self) -> Iterator[Reassembly]:
        return (each.stream for each in self._subscriptions)

    @property
    def _ending(self) -> bool:
        return any(stream.finished for stream in self._streams)

    def _fill(self, each: _Subscription) -> Iterator[ReceivedSample]:
        """Process a reply with missing samples, give up on overdue gaps, request missing samples; yield new ones."""
        stream = each.stream
        try:
            if each.client is not None:
                each.client.poll(0, silence=False)
            if each.requested is not None and each.requested.done:
                answer, each.requested = each.requested.get(), None
                yield from stream.fill(expect(answer, History), each.requested_after, self._now)
        except GlovewireError:
            stream.refused += 1
            each.close_client()
            yield from stream.give_up(self._now, at_once=True)
        yield from stream.give_up(self._now)
        if stream.missing_after is None:
            each.close_client()
            return
        if each.client is None:
            each.client = RequestClient([with_port(stream.address, stream.port)], "monitor", keys=self.keys)
        if each.requested is None:
            each.requested, each.requested_after = Pending(), stream.missing_after
            each.client.request(0, GetHistory(stream.missing_after), each.requested)

    def _check_silence(self) -> None:
        silent = [each.stream.address + each.attempts.doubt for each in self._subscriptions if not each.stream.heard]
        if self._timeout_s is not None and self._now >= self._timeout_s and silent:
            raise DeadlineExceeded(
                f"no sample from {', '.join(silent)} within {self._timeout_s:g} s: is this the publish address of a "
                "running server?"
            )
        heard_at = max(stream.heard_at for stream in self._streams)
        if self._silence_s is not None and self._now - heard_at >= self._silence_s and not (silent or self._ending):
            raise DeadlineExceeded(
                f"nothing from {', '.join(self.addresses)} for {self._silence_s:g} s, and no finished event: the "
                "servers are gone or unreachable"
            )


def _drain(socket: zmq.Socket[bytes], stream: Reassembly, now: float) -> Iterator[ReceivedSample]:
    for _ in range(MAX_PER_POLL):
        try:
            frames = receive(socket)
        except zmq.Again:
            return
        try:
            sample = decode_sample(frames)
        except VersionMismatch as error:
            raise VersionMismatch(f"{stream.address}: {error}") from error
        except (ProtocolError, NotFinite):
            stream.refused += 1
            continue
        yield from stream.receive(sample, now)
