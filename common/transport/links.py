"""Connect a client to the shards of a run: a DEALER socket for each, one poller, one clock."""

import time
from collections.abc import Sequence

import zmq

from ..protocol.wire import Frame
from . import sockets
from .curve_keys import ClientKeys

LAST_WORDS_MS = 200


class Links:
    """The connections of a client to the shards at `addresses`, and its clock; UsageError if one is not an address.

    A simulation has connections of its own, with the same methods.
    """

    def __init__(self, addresses: Sequence[str], keys: ClientKeys | None) -> None:
        self._context = sockets.Context(keys)
        try:
            self._sockets = [self._context.dealer(address) for address in addresses]
        except BaseException:
            self._context.close()
            raise
        self._handshakes = [self._context.handshakes(socket) for socket in self._sockets]
        self._shard_of = {socket: shard for shard, socket in enumerate(self._sockets)}
        self._poller = zmq.Poller()
        for socket in self._sockets:
            self._poller.register(socket, zmq.POLLIN)

    def now(self) -> float:
        """Return the time in seconds."""
        return time.monotonic()

    def send(self, shard: int, frames: list[Frame]) -> bool:
        """Queue a message to a shard and return True; False if the queue is full."""
        return sockets.send_if_room(self._sockets[shard], frames)

    def wait(self, timeout_ms: int) -> list[int]:
        """Wait up to `timeout_ms` for messages; return the shards whose messages have arrived."""
        return [self._shard_of[socket] for socket, _ in self._poller.poll(timeout_ms)]

    def has_message(self, shard: int) -> bool:
        """Return whether another message from a shard has arrived."""
        return sockets.has_message(self._sockets[shard])

    def receive(self, shard: int) -> list[Frame]:
        """Return the next message of a shard, without its envelope; there must be one."""
        return sockets.receive(self._sockets[shard])[1:]

    def check(self) -> None:
        """Raise NotAdmitted if a shard refuses this client's keys."""
        for handshakes in self._handshakes:
            handshakes.check()

    def doubt(self, shard: int) -> str:
        """Return a guess at why no server answers at a shard's address, "" without one."""
        return self._handshakes[shard].doubt

    def close(self) -> None:
        """Close every connection, after a short time for sending what is queued; may be called twice."""
        self._context.close(last_words_ms=LAST_WORDS_MS)
