"""Make all ZeroMQ sockets and set their options; send and receive frames, without decoding them.

A socket is used only in the thread that made it. Every queue is bounded, and closing a socket drops what is queued
unless `Context.close` is given time to send it.
"""

import errno
import os
import socket as plain
import stat
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager

import zmq

from ..addresses import check_address
from ..errors import BindError, SystemLimit, UsageError
from ..protocol.wire import MAX_FRAME_BYTES, MAX_FRAMES, Frame
from .connections import ConnectionMonitor
from .curve_keys import ClientKeys, ServerKeys
from .zap import HandshakeMonitor, ZapHandler, randomize_routing_ids

BIG_FRAME_BYTES = 64 << 10
KEPT_FRAMES = MAX_FRAMES + 2
HANDSHAKE_MS = 5_000
KEEPALIVE_S = 5
"""TCP keep-alive: a connection whose peer does not react for twice this time is closed and re-established. ZeroMQ's own
heartbeats are off: libzmq 4.3.5 aborts the process when one is due to a peer that died with unread messages."""
QUEUE_MESSAGES = 1_000
UNREAD_MESSAGES = 3
"""Unread messages that a server queues from each peer; the rest stays in the sender's memory. With 2, libzmq wakes its
thread for every frame read instead of every other message, which takes a fifth of a server's time if messages are
small. With 1, no peer with keys can connect."""
STREAM_QUEUE_MESSAGES = 10_000
ENCRYPTION_BYTES = 64
"""Upper bound of the bytes that CURVE adds to a frame; they count towards MAXMSGSIZE."""
UNREAD_SUBSCRIPTIONS = 16
MAX_SUBSCRIPTION_BYTES = 1024
"""A topic takes about 50 times its length in libzmq, until its connection ends. The handshake's messages fit, too."""
# Plain integers, and the C backend's method of the socket: looking up an enumeration member costs as much as the call
# that uses it, and `Socket.send` first looks for options of draft sockets.
_POLLIN, _NOBLOCK = int(zmq.POLLIN), int(zmq.NOBLOCK)
_NOBLOCK_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
_send = zmq.backend.Socket.send


class Context(AbstractContextManager["Context"]):
    """Owns a ZeroMQ context and every socket made from it; `close()` may be called twice.

    With `keys`, every connection is encrypted and both ends are authenticated (CURVE). A server with keys must poll
    `zap.socket` and call `zap.answer()`; otherwise no client can connect. With `only_shards`, other shards alone can.
    """

    def __init__(self, keys: ServerKeys | ClientKeys | None = None, *, only_shards: bool = False) -> None:
        self._zmq: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._sockets: list[zmq.Socket[bytes]] = []
        self._handshakes: dict[zmq.Socket[bytes], HandshakeMonitor] = {}
        self._monitors: list[ConnectionMonitor] = []
        self._keys = keys
        self._encryption_bytes = ENCRYPTION_BYTES if keys is not None else 0
        self.zap: ZapHandler | None = None
        if isinstance(keys, ServerKeys):
            self.zap = ZapHandler(self._own(zmq.REP), keys.is_own if only_shards else keys.allowed.admit)

    def router(self, address: str, largest_frame: int = MAX_FRAME_BYTES) -> tuple[zmq.Socket[bytes], str]:
        """Return a bound ROUTER and its address (with the port chosen for 0); BindError if it cannot be bound.

        A peer that sends a frame above `largest_frame` bytes is disconnected.
        """
        randomize_routing_ids()
        router = self._make(zmq.ROUTER)
        router.set(zmq.ROUTER_MANDATORY, 1)
        router.set(zmq.MAXMSGSIZE, largest_frame + self._encryption_bytes)
        router.set(zmq.SNDHWM, QUEUE_MESSAGES)
        router.set(zmq.RCVHWM, UNREAD_MESSAGES)
        return router, _bind(router, address)

    def dealer(self, address: str) -> zmq.Socket[bytes]:
        """Return a DEALER that connects to `address` as soon as a server listens there."""
        dealer = self._make(zmq.DEALER)
        dealer.set(zmq.MAXMSGSIZE, MAX_FRAME_BYTES + self._encryption_bytes)
        dealer.set(zmq.SNDHWM, QUEUE_MESSAGES)
        dealer.set(zmq.RCVHWM, QUEUE_MESSAGES)
        self._connect(dealer, address)
        return dealer

    def publisher(self, address: str) -> tuple[zmq.Socket[bytes], str]:
        """Return a bound PUB and its address; a slow subscriber loses samples instead of delaying the publisher."""
        publisher = self._make(zmq.XPUB)  # PUB would not reveal who subscribes, and to what
        publisher.set(zmq.XPUB_VERBOSE, 1)
        publisher.set(zmq.SNDHWM, STREAM_QUEUE_MESSAGES)
        publisher.set(zmq.RCVHWM, UNREAD_SUBSCRIPTIONS)
        publisher.set(zmq.MAXMSGSIZE, MAX_SUBSCRIPTION_BYTES)
        return publisher, _bind(publisher, address)

    def subscriber(self, address: str) -> zmq.Socket[bytes]:
        """Return a SUB that connects to `address` and subscribes to every topic."""
        subscriber = self._make(zmq.SUB)
        subscriber.set(zmq.RCVHWM, STREAM_QUEUE_MESSAGES)
        subscriber.set(zmq.MAXMSGSIZE, BIG_FRAME_BYTES)
        subscriber.subscribe("")
        self._connect(subscriber, address)
        return subscriber

    def handshakes(self, socket: zmq.Socket[bytes]) -> HandshakeMonitor:
        """Return the HandshakeMonitor of a socket that `dealer` or `subscriber` made."""
        return self._handshakes[socket]

    def watch(self, socket: zmq.Socket[bytes]) -> ConnectionMonitor:
        """Return a new ConnectionMonitor of a socket that `router` or `publisher` made."""
        monitor = ConnectionMonitor(self._zmq, socket, str(len(self._monitors)))
        self._monitors.append(monitor)
        return monitor

    def close(self, last_words_ms: int = 0) -> None:
        """Close every socket, after at most `last_words_ms` milliseconds for sending what is queued."""
        for monitor in self._monitors:
            monitor.close()
        self._monitors.clear()
        for socket in reversed(self._sockets):  # the ZAP handler's last
            if (handshakes := self._handshakes.pop(socket, None)) is not None:
                socket.disable_monitor()
                handshakes.close()
            socket.close(last_words_ms)
        self._sockets.clear()
        self._zmq.term()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _own(self, kind: int) -> zmq.Socket[bytes]:
        try:
            socket = self._zmq.socket(kind)
        except zmq.ZMQError as error:
            raise _lacking(error) from error
        self._sockets.append(socket)
        socket.set(zmq.LINGER, 0)
        return socket

    def _make(self, kind: int) -> zmq.Socket[bytes]:
        socket = self._own(kind)
        socket.set(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        # Without a ZAP domain libzmq accepts ZMTP 1.0 and delivers the bytes of any client as messages.
        socket.setsockopt_string(zmq.ZAP_DOMAIN, "glovewire")
        socket.set(zmq.TCP_KEEPALIVE, 1)
        for option in (zmq.TCP_KEEPALIVE_IDLE, zmq.TCP_KEEPALIVE_CNT):
            socket.set(option, KEEPALIVE_S)
        socket.set(zmq.TCP_KEEPALIVE_INTVL, 1)
        socket.set(zmq.TCP_MAXRT, 2_000 * KEEPALIVE_S)
        socket.set(zmq.RECONNECT_IVL, 50)
        socket.set(zmq.RECONNECT_IVL_MAX, 1_000)
        if self._keys is not None:
            if isinstance(self._keys, ServerKeys):
                socket.set(zmq.CURVE_SERVER, 1)
            else:
                socket.set(zmq.CURVE_SERVERKEY, self._keys.server)
            socket.set(zmq.CURVE_PUBLICKEY, self._keys.pair.public)
            socket.set(zmq.CURVE_SECRETKEY, self._keys.pair.secret)
        return socket

    def _connect(self, socket: zmq.Socket[bytes], address: str) -> None:
        check_address(address)
        socket.set(zmq.IPV6, "[" in address)
        keys = self._keys if isinstance(self._keys, ClientKeys) else None
        try:
            self._handshakes[socket] = HandshakeMonitor(socket, address, keys)
        except zmq.ZMQError as error:
            raise _lacking(error) from error
        try:
            socket.connect(address)
        except zmq.ZMQError as error:
            raise UsageError(f"cannot connect to {address}: {zmq.strerror(error.errno or 0).lower()}") from error


def has_message(socket: zmq.Socket[bytes]) -> bool:
    """Return whether a message can be received, at a sixth of the cost of a `receive` that raises zmq.Again."""
    return bool(zmq.zmq_poll([(socket, _POLLIN)], 0))


def receive(socket: zmq.Socket[bytes]) -> list[Frame]:
    """Return the frames of the next message, as `receive_from` does."""
    return receive_from(socket)[0]


def receive_from(socket: zmq.Socket[bytes]) -> tuple[list[Frame], zmq.Frame]:
    """Return the frames of the next message, big ones as views of ZeroMQ's memory; zmq.Again if there is none.

    Frames after the first KEPT_FRAMES are dropped; `wire.decode` refuses such a message. The last frame is also
    returned as ZeroMQ's object, which knows its connection (`source_of`, `user_of` and `address_of` in `connections`).
    """
    frames: list[Frame] = []
    more = True
    while more:
        frame = socket.recv(_NOBLOCK, copy=False)  # `frame.more` is then cheap
        if len(frames) < KEPT_FRAMES:
            frames.append(frame.buffer if len(frame) > BIG_FRAME_BYTES else frame.bytes)
        more = frame.more
    return frames, frame


def subscriptions(publisher: zmq.Socket[bytes]) -> Iterator[tuple[bytes, zmq.Frame]]:
    """Yield each message that subscribers have sent: 1 and a topic, 0 and a topic that they leave, or anything else."""
    while has_message(publisher):
        frame = publisher.recv(_NOBLOCK, copy=False)
        yield frame.bytes, frame


def discard_message(socket: zmq.Socket[bytes]) -> zmq.Frame:
    """Receive and drop the rest of a message; return its last frame, which knows its connection."""
    frame = socket.recv(_NOBLOCK, copy=False)
    while frame.more:
        frame = socket.recv(_NOBLOCK, copy=False)
    return frame


def send(
    socket: zmq.Socket[bytes], frames: Sequence[Frame], *, track: bool = False, big: int = BIG_FRAME_BYTES
) -> list[tuple[zmq.MessageTracker, int]]:
    """Queue one message without blocking. Raises zmq.Again when the queue is full, zmq.ZMQError for an unknown peer.

    Frames over `big` bytes are not copied and must not change until they have been sent. With `track`, returns
    (tracker, bytes) for each of these frames; `tracker.done` says whether it has been sent.
    """
    leaving = []
    for number, frame in enumerate(frames):
        flags = _NOBLOCK_MORE if number < len(frames) - 1 else _NOBLOCK
        if len(frame) <= big:
            _send(socket, frame, flags)
        elif (tracker := _send(socket, frame, flags, False, track)) is not None and track:
            leaving.append((tracker, len(frame)))
    return leaving


def send_if_room(socket: zmq.Socket[bytes], frames: Sequence[Frame]) -> bool:
    """Queue one message without blocking and return True; if the queue is full, queue nothing and return False."""
    try:
        send(socket, frames)
    except zmq.Again:
        return False
    return True


def _lacking(error: zmq.ZMQError) -> SystemLimit:
    return SystemLimit(f"{zmq.strerror(error.errno or 0).lower()}: raise the limit (ulimit -n)")


def _bind(socket: zmq.Socket[bytes], address: str) -> str:
    socket.set(zmq.IPV6, "[" in address)
    wanted = check_address(address).replace("://localhost:", "://127.0.0.1:")
    if wanted.endswith(":0"):
        wanted = wanted.removesuffix("0") + "*"
    if wanted.startswith("ipc://") and (why := _why_taken(wanted.removeprefix("ipc://"))):
        raise BindError(f"cannot listen on {address}: {why}")
    try:
        socket.bind(wanted)
    except zmq.ZMQError as error:
        why = "the port is in use" if error.errno == zmq.EADDRINUSE else zmq.strerror(error.errno or 0).lower()
        raise BindError(f"cannot listen on {address}: {why}") from error
    return socket.getsockopt_string(zmq.LAST_ENDPOINT)


def _why_taken(path: str) -> str:
    """Return why an ipc socket must not be bound at `path`, "" if it may: libzmq would remove an existing file."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            return "there is something that is not a socket"
        with plain.socket(plain.AF_UNIX, plain.SOCK_STREAM) as probe:
            probe.setblocking(False)  # a full queue answers EAGAIN
            code = probe.connect_ex(path)
    except (OSError, ValueError):  # nothing exists there, or libzmq will report the problem
        return ""
    if code in (errno.ECONNREFUSED, errno.ENOENT):  # its owner has ended
        return ""
    return "another process listens there" if code in (0, errno.EAGAIN) else os.strerror(code).lower()
