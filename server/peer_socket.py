"""Answer the other shards of a run on a ROUTER socket of its own, at any time, also while the daemon writes results."""

import contextlib
import logging
import time
from collections.abc import Callable

import zmq

from glovewire.common import log
from glovewire.common.addresses import is_loopback, port_of
from glovewire.common.protocol import messages as m
from glovewire.common.protocol import wire
from glovewire.common.transport import sockets
from glovewire.common.transport.connections import Connection, cut, received_bytes, source_of
from glovewire.common.transport.curve_keys import ServerKeys

from .limits import Connections, ErrorBudget, Outbox, Unfinished, note_changes
from .sessions import Peer

POLL_MS = 50
MAX_REQUEST_BYTES = 4096
CONNECTIONS_PER_SHARD = 8
"""A shard has two at a time, and for a while those that it has just closed."""
TRACKED_BYTES = 512

Answer = Callable[[list[wire.Frame]], tuple[int, m.Message]]
"""Takes the frames of a request, with its envelope, and returns its number, 0 if it is unreadable, and the reply."""

logger = logging.getLogger(__name__)


class PeerSocket:
    """A socket at `address`, which a thread serves: `answer` is called in it. With keys, shards alone may connect.

    What one connection costs is bounded as at the daemon: messages that do not end, unreadable ones, unread replies.
    """

    def __init__(self, address: str, keys: ServerKeys | None, shards: int, answer: Answer) -> None:
        self._answer = answer
        self._context = sockets.Context(keys, only_shards=True)
        try:
            # `address` is where the others reach this shard: a machine may not know its own name
            listening = address if is_loopback(address) else f"tcp://0.0.0.0:{port_of(address)}"
            self._router, self.address = self._context.router(listening, MAX_REQUEST_BYTES)
            self._monitor = self._context.watch(self._router)
        except BaseException:
            self.close()
            raise
        self._connections = Connections(CONNECTIONS_PER_SHARD * shards)
        self._unfinished = Unfinished(source_of, MAX_REQUEST_BYTES, frozenset())
        self._heard: set[Peer] = set()
        self._outbox, self._errors = Outbox(self._heard), ErrorBudget()

    def serve(self, is_over: Callable[[], bool]) -> None:
        """Answer requests until `is_over()`."""
        poller, zap, measured = zmq.Poller(), self._context.zap, 0.0
        for socket in (self._router, self._monitor.socket, *([] if zap is None else [zap.socket])):
            poller.register(socket, zmq.POLLIN)
        while not is_over():
            poller.poll(POLL_MS)
            if zap is not None:
                zap.answer()
            self._watch()
            while sockets.has_message(self._router):
                self._take()
                if is_over():
                    return
            if time.monotonic() - measured > POLL_MS / 1e3:
                measured = time.monotonic()
                for each in self._unfinished.surplus([each.descriptor for each in self._connections], received_bytes):
                    self._cut(self._connections.remove(each), "a message that does not end")

    def close(self) -> None:
        """Release the socket; its thread has ended."""
        self._context.close()

    def _watch(self) -> None:
        """Note connections that have come and gone, and cut the oldest if there are too many."""
        note_changes(self._monitor.changes(), self._connections, self._unfinished, self._heard)
        for each in self._connections.take_surplus(lambda _: False):
            self._cut(each, "too many connections")

    def _cut(self, connection: Connection | None, why: str) -> None:
        if connection is not None:
            cut(connection)
            logger.warning(log.line("cut_off", where=connection.host, why=why, socket="peers"))

    def _take(self) -> None:
        """Answer the request that has arrived, unless its sender reads no replies: then it may ask again."""
        peer = self._router.recv(zmq.NOBLOCK)
        if self._errors.is_banned(peer):
            source = source_of(sockets.discard_message(self._router))
            if source in self._connections and self._errors.must_disconnect(peer):
                self._cut(self._connections.remove(source), "too many unreadable messages")
            return
        frames, last = sockets.receive_from(self._router)
        if not self._unfinished.knows(peer):
            self._watch()
        self._unfinished.heard(peer, last)
        self._heard.add(peer)  # every connection is bounded by itself, so that no other keeps a shard from copying
        self._outbox.ready(time.monotonic())
        if self._outbox.is_full(peer):
            return
        number, reply = self._answer(frames)
        if not number:
            self._errors.record(peer)
        with contextlib.suppress(zmq.ZMQError):  # the peer is gone, or asks again
            leaving = sockets.send(
                self._router, [peer, b"", *wire.encode(number, reply)], track=True, big=TRACKED_BYTES
            )
            self._outbox.sent(peer, leaving, time.monotonic())
