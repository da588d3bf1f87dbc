"""The only place that makes sockets and sets their options. Knows addresses and frames, nothing of messages.

A `Context` belongs to one process role and is closed by it; a socket never leaves the thread that made it. Every
queue has a bound and every socket is closed without lingering unless its owner asks for a last word to be sent.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket as plain
import stat
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import zmq

from ..errors import BindError, DeadlineExceeded, UsageError
from ..protocol.wire import MAX_FRAME_BYTES, MAX_FRAMES, Frame
from .curve_keys import ClientKeys, ServerKeys
from .zap import Attempts, Door, hide_names

BIG_FRAME_BYTES = 64 << 10
KEPT_FRAMES = MAX_FRAMES + 2
HANDSHAKE_MS = 5_000
KEEPALIVE_S = 5
"""After twice this without a sign of life the system ends a connection, and it is made again. Not by heartbeats of
ZeroMQ: libzmq 4.3.5 aborts the process when one is due to a peer that died with messages that nobody has read yet."""
QUEUE_MESSAGES = 1_000
UNREAD_MESSAGES = 3
"""Of each peer of a server; the rest stays in its sender's memory, not ours. With 2, libzmq wakes its thread for each
frame that is read, not for every other message: a fifth of a server's work where messages are small. With 1, no peer
with keys gets in."""
STREAM_QUEUE_MESSAGES = 10_000
IDENTITY = bytes  # of a peer, as its ROUTER made it
# As plain integers: looking up a member of an enumeration costs as much as the call that it is for. Asking a socket for
# an option looks one up, so that polling is half as dear; and `Socket.send` looks for options of draft sockets first.
_POLLIN, _NOBLOCK = int(zmq.POLLIN), int(zmq.NOBLOCK)
_NOBLOCK_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
_send = zmq.backend.Socket.send


class Context:
    """Owns a ZeroMQ context and every socket made from it; `close()` twice is fine.

    With `keys`, every connection is encrypted and both ends prove who they are (CURVE). A server must then poll
    `door.socket` and let `door` answer, or nobody gets in.
    """

    def __init__(self, keys: ServerKeys | ClientKeys | None = None) -> None:
        self._zmq: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._sockets: list[zmq.Socket[bytes]] = []
        self._attempts: dict[zmq.Socket[bytes], Attempts] = {}
        self._keys = keys
        self.door = Door(self._own(zmq.REP), keys.allowed) if isinstance(keys, ServerKeys) else None

    def router(self, address: str) -> tuple[zmq.Socket[bytes], str]:
        """A bound ROUTER and the address it got (port 0 becomes a real one); BindError if it cannot be had."""
        hide_names()
        router = self._make(zmq.ROUTER)
        router.set(zmq.ROUTER_MANDATORY, 1)
        router.set(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
        router.set(zmq.SNDHWM, QUEUE_MESSAGES)
        router.set(zmq.RCVHWM, UNREAD_MESSAGES)
        return router, _bind(router, address)

    def dealer(self, address: str) -> zmq.Socket[bytes]:
        """A DEALER that connects to `address`, now or whenever somebody listens there."""
        dealer = self._make(zmq.DEALER)
        dealer.set(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
        dealer.set(zmq.SNDHWM, QUEUE_MESSAGES)
        dealer.set(zmq.RCVHWM, QUEUE_MESSAGES)
        self._connect(dealer, address)
        return dealer

    def publisher(self, address: str) -> tuple[zmq.Socket[bytes], str]:
        """A bound PUB and its address; a slow subscriber loses samples, never the publisher time."""
        publisher = self._make(zmq.PUB)
        publisher.set(zmq.SNDHWM, STREAM_QUEUE_MESSAGES)
        publisher.set(zmq.MAXMSGSIZE, BIG_FRAME_BYTES)
        return publisher, _bind(publisher, address)

    def subscriber(self, address: str, topics: Sequence[str] = ("",)) -> zmq.Socket[bytes]:
        """A SUB for `topics` (prefixes; "" is everything) that connects to `address`."""
        subscriber = self._make(zmq.SUB)
        subscriber.set(zmq.RCVHWM, STREAM_QUEUE_MESSAGES)
        subscriber.set(zmq.MAXMSGSIZE, BIG_FRAME_BYTES)
        for topic in topics:
            subscriber.subscribe(topic)
        self._connect(subscriber, address)
        return subscriber

    def attempts(self, socket: zmq.Socket[bytes]) -> Attempts:
        """How the handshakes of a connecting socket end."""
        return self._attempts[socket]

    def drop(self, socket: zmq.Socket[bytes]) -> None:
        """Close one socket before the rest."""
        self._end_attempts(socket)
        socket.close(0)
        self._sockets.remove(socket)

    def close(self, last_words_ms: int = 0) -> None:
        """Close every socket, giving what is queued `last_words_ms` milliseconds to leave."""
        for socket in reversed(self._sockets):  # the door last
            self._end_attempts(socket)
            socket.close(last_words_ms)
        self._sockets.clear()
        self._zmq.term()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def _own(self, kind: int) -> zmq.Socket[bytes]:
        socket = self._zmq.socket(kind)
        self._sockets.append(socket)
        socket.set(zmq.LINGER, 0)
        return socket

    def _make(self, kind: int) -> zmq.Socket[bytes]:
        socket = self._own(kind)
        socket.set(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        # Without a ZAP domain libzmq falls back to a handshake of 2010 and delivers a stranger's bytes as messages.
        socket.setsockopt_string(zmq.ZAP_DOMAIN, "glovewire")
        socket.set(zmq.TCP_KEEPALIVE, 1)
        for option in (zmq.TCP_KEEPALIVE_IDLE, zmq.TCP_KEEPALIVE_CNT):
            socket.set(option, KEEPALIVE_S)
        socket.set(zmq.TCP_KEEPALIVE_INTVL, 1)
        socket.set(zmq.TCP_MAXRT, 2_000 * KEEPALIVE_S)
        socket.set(zmq.RECONNECT_IVL, 50)
        socket.set(zmq.RECONNECT_IVL_MAX, 1_000)
        self._lock(socket)
        return socket

    def _lock(self, socket: zmq.Socket[bytes]) -> None:
        if self._keys is None:
            return
        if isinstance(self._keys, ServerKeys):
            socket.set(zmq.CURVE_SERVER, 1)
        else:
            socket.set(zmq.CURVE_SERVERKEY, self._keys.server)
        socket.set(zmq.CURVE_PUBLICKEY, self._keys.pair.public)
        socket.set(zmq.CURVE_SECRETKEY, self._keys.pair.secret)

    def _connect(self, socket: zmq.Socket[bytes], address: str) -> None:
        check_address(address)
        socket.set(zmq.IPV6, "[" in address)
        keys = self._keys if isinstance(self._keys, ClientKeys) else None
        self._attempts[socket] = Attempts(socket, address, keys)
        try:
            socket.connect(address)
        except zmq.ZMQError as error:
            raise UsageError(f"cannot connect to {address}: {zmq.strerror(error.errno or 0).lower()}") from error

    def _end_attempts(self, socket: zmq.Socket[bytes]) -> None:
        if (attempts := self._attempts.pop(socket, None)) is not None:
            socket.disable_monitor()
            attempts.close()


def has_message(socket: zmq.Socket[bytes]) -> bool:
    """Whether a message is there; a sixth of what it costs to try and be refused."""
    return bool(zmq.zmq_poll([(socket, _POLLIN)], 0))


def receive(socket: zmq.Socket[bytes]) -> list[Frame]:
    """One message that is there already; big frames are views of ZeroMQ's own memory. Raises zmq.Again if none.

    Frames beyond those that any message may have are not kept, but for one that shows that they were there.
    """
    frames: list[Frame] = []
    more = True
    while more:
        frame = socket.recv(_NOBLOCK, copy=False)  # this knows whether more follow; to ask after a copy costs more
        if len(frames) < KEPT_FRAMES:
            frames.append(frame.buffer if len(frame) > BIG_FRAME_BYTES else frame.bytes)
        more = frame.more
    return frames


def skip(socket: zmq.Socket[bytes], *, hang_up: bool = False) -> str:
    """Throw away the rest of a message; the address that it came from.

    With `hang_up` the connection that brought it ends. libzmq has no call for that, but names the descriptor. Should
    that connection be gone and its descriptor another's by now, that other peer has to connect again.
    """
    frame = socket.recv(_NOBLOCK, copy=False)
    if hang_up:
        _shut_down(int(frame.get(zmq.SRCFD)))
    where = str(frame.get("Peer-Address"))
    while frame.more:
        frame = socket.recv(_NOBLOCK, copy=False)
    return where


def _shut_down(descriptor: int) -> None:
    with contextlib.suppress(OSError), plain.fromfd(descriptor, plain.AF_INET, plain.SOCK_STREAM) as connection:
        connection.shutdown(plain.SHUT_RDWR)


def send(
    socket: zmq.Socket[bytes], frames: Sequence[Frame], *, track: bool = False
) -> list[tuple[zmq.MessageTracker, int]]:
    """Queue one message at once. Raises zmq.Again when the queue is full, zmq.ZMQError for an unknown peer.

    Frames over 64 KiB are not copied: they must not change until they have left. With `track`, returns for each of them
    something that tells when (`done`), and its bytes.
    """
    leaving = []
    for number, frame in enumerate(frames):
        flags = _NOBLOCK_MORE if number < len(frames) - 1 else _NOBLOCK
        if len(frame) <= BIG_FRAME_BYTES:
            _send(socket, frame, flags)
        elif (tracker := _send(socket, frame, flags, False, track)) is not None and track:
            leaving.append((tracker, len(frame)))
    return leaving


def send_if_room(socket: zmq.Socket[bytes], frames: Sequence[Frame]) -> bool:
    """`send`, or False when the queue is full: nothing of the message is in it then. To ask first would cost more."""
    try:
        send(socket, frames)
    except zmq.Again:
        return False
    return True


def wait_readable(socket: zmq.Socket[bytes], deadline: float, whom: str) -> None:
    """Block until `socket` has a message; DeadlineExceeded naming `whom` at `deadline` (time.monotonic seconds)."""
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            raise DeadlineExceeded(f"no answer from {whom} in time")
        if socket.poll(min(int(left * 1e3) + 1, 60_000), zmq.POLLIN):
            return


def check_address(address: str) -> str:
    """`address` if it looks like tcp://HOST:PORT or ipc://PATH; UsageError otherwise."""
    scheme, _, rest = address.partition("://")
    host, _, port = rest.rpartition(":")
    if scheme == "ipc" and rest:
        return address
    if scheme != "tcp" or not host or not (port.isascii() and port.isdecimal() and int(port) < 1 << 16):
        raise UsageError(f"{address!r} is not an address: write tcp://HOST:PORT")
    return address


def port(address: str) -> int:
    """The port of a tcp:// address, 0 for any other kind."""
    return int(address.rpartition(":")[2]) if address.startswith("tcp://") else 0


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach `address`; a name other than localhost may lead anywhere."""
    if address.startswith(("ipc://", "inproc://")):
        return True
    host = address.partition("://")[2].rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _bind(socket: zmq.Socket[bytes], address: str) -> str:
    socket.set(zmq.IPV6, "[" in address)
    wanted = check_address(address).replace("://localhost:", "://127.0.0.1:")
    if wanted.endswith(":0"):
        wanted = wanted.removesuffix("0") + "*"
    if wanted.startswith("ipc://") and (why := _taken(wanted.removeprefix("ipc://"))):
        raise BindError(f"cannot listen on {address}: {why}")
    try:
        socket.bind(wanted)
    except zmq.ZMQError as error:
        why = "the port is in use" if error.errno == zmq.EADDRINUSE else zmq.strerror(error.errno or 0).lower()
        raise BindError(f"cannot listen on {address}: {why}") from error
    return socket.getsockopt_string(zmq.LAST_ENDPOINT)


def _taken(path: str) -> str:
    """Why nobody may listen at this path, if so: libzmq removes what is there, be it another's, before it listens."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            return "there is something that is not a socket"
        with plain.socket(plain.AF_UNIX, plain.SOCK_STREAM) as probe:
            probe.setblocking(False)  # where a queue is full, the answer is EAGAIN
            code = probe.connect_ex(path)
    except (OSError, ValueError):  # nothing is there, or libzmq will say what is wrong
        return ""
    if code in (errno.ECONNREFUSED, errno.ENOENT):  # whose it was is gone
        return ""
    return "somebody listens there already" if code in (0, errno.EAGAIN) else os.strerror(code).lower()
