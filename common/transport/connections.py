"""Watch the connections that a listening socket accepts and loses, and shut them down by their file descriptors.

libzmq accepts every connection and has no call to end one. Its monitor (zmq_socket_monitor(3)) reports the descriptors.
"""

import contextlib
import ctypes
import fcntl
import os
import socket as plain
import struct
import termios
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import zmq

from ..addresses import port_of

_WATCHED = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED
_EVENT = struct.Struct("=HI")
"""First frame of a monitor's message: event and value, here a file descriptor."""
_TCP_INFO_BYTES, _BYTES_RECEIVED, _BYTES_RECEIVED_AT = 256, struct.Struct("=Q"), 128
"""`tcpi_bytes_received` in Linux's struct tcp_info."""
_ATTACH, _DETACH = 26, 27  # SO_ATTACH_FILTER, SO_DETACH_FILTER of Linux
_DROP_ALL = struct.pack("HBBI", 0x06, 0, 0, 0)  # the filter program BPF_RET 0


class Connection(NamedTuple):
    """An accepted connection: its file descriptor, and its peer's host and port ("" and 0 unless it is TCP)."""

    descriptor: int
    host: str
    port: int


class ConnectionMonitor:
    """Reports the connections of one listening socket; poll `socket`."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", watched: "zmq.Socket[bytes]", name: str) -> None:
        address = f"inproc://connections-{name}"
        watched.monitor(address, _WATCHED)
        self.socket: zmq.Socket[bytes] = context.socket(zmq.PAIR)
        self.socket.set(zmq.LINGER, 0)
        self.socket.set(zmq.RCVHWM, 0)  # unbounded: a full queue would block libzmq's thread, and with it all traffic
        self.socket.connect(address)
        self._watched = watched
        self._open: dict[int, Connection] = {}

    def changes(self) -> Iterator[tuple[bool, Connection]]:
        """Yield (True, connection) for each accepted since the last call, (False, connection) for each lost."""
        while self.socket.poll(0):
            event, descriptor = _EVENT.unpack(self.socket.recv_multipart(zmq.NOBLOCK)[0])
            if event == zmq.EVENT_ACCEPTED:
                self._open[descriptor] = Connection(descriptor, *_peer_of(descriptor))
                yield True, self._open[descriptor]
            else:
                yield False, self._open.pop(descriptor, Connection(descriptor, "", 0))

    def close(self) -> None:
        """Stop watching; the watched socket must still be open."""
        self._watched.disable_monitor()
        self.socket.close(0)


def cut(connection: Connection) -> None:
    """Shut a connection down, so that libzmq closes it; do nothing if another one has its descriptor by now."""
    if _peer_of(connection.descriptor) == connection[1:]:
        with contextlib.suppress(OSError), _borrowed(connection.descriptor) as socket:
            socket.shutdown(plain.SHUT_RDWR)


class Listeners:
    """The listening TCP sockets of this process at some addresses; `paused` holds off new connections.

    libzmq cannot stop accepting without ending the connections that it has. The kernel can: a socket filter that drops
    every packet leaves connections alone, and a client that connects retries after a second (tcp(7), socket(7)).
    """

    def __init__(self, addresses: Iterable[str]) -> None:
        wanted = {port_of(address) for address in addresses} - {0}
        self._descriptors = [fd for fd in map(int, os.listdir("/proc/self/fd")) if _listening_port(fd) in wanted]

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Admit no new connections during the block; those that the kernel completed before it are still accepted."""
        for descriptor in self._descriptors:
            with contextlib.suppress(OSError), _borrowed(descriptor) as socket:
                program = ctypes.create_string_buffer(_DROP_ALL)
                socket.setsockopt(plain.SOL_SOCKET, _ATTACH, struct.pack("HL", 1, ctypes.addressof(program)))
        try:
            yield
        finally:
            for descriptor in self._descriptors:
                with contextlib.suppress(OSError), _borrowed(descriptor) as socket:
                    socket.setsockopt(plain.SOL_SOCKET, _DETACH, 0)


def source_of(frame: zmq.Frame) -> int:
    """Return the descriptor of the connection that a received frame came from, -1 if it is unknown."""
    try:
        return int(frame.get(zmq.SRCFD))
    except (zmq.ZMQError, ValueError):
        return -1


def received_bytes(descriptor: int) -> int:
    """Return how many bytes libzmq has read from a connection, 0 if it is closed or not TCP; see Linux's tcp(7)."""
    with contextlib.suppress(OSError), _borrowed(descriptor) as socket:
        info = socket.getsockopt(plain.IPPROTO_TCP, plain.TCP_INFO, _TCP_INFO_BYTES)
        (unread,) = struct.unpack("=i", fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)))
        return int(_BYTES_RECEIVED.unpack_from(info, _BYTES_RECEIVED_AT)[0]) - int(unread)
    return 0


def user_of(frame: zmq.Frame) -> str:
    """Return the public key, in Z85, that the sender of a received frame has proven its own; "" without keys."""
    return _known_of(frame, "User-Id")


def address_of(frame: zmq.Frame) -> str:
    """Return the IP address of the sender of a received frame, "" unless it is connected by TCP."""
    return _known_of(frame, "Peer-Address")


def _known_of(frame: zmq.Frame, what: str) -> str:
    try:
        return str(frame.get(what))
    except zmq.ZMQError:  # it is not known
        return ""


def _listening_port(descriptor: int) -> int:
    """Return the TCP port that a descriptor listens at, 0 if it does not."""
    with contextlib.suppress(OSError), _borrowed(descriptor) as socket:
        if socket.family != plain.AF_UNIX and socket.getsockopt(plain.SOL_SOCKET, plain.SO_ACCEPTCONN):
            return int(socket.getsockname()[1])
    return 0


def _peer_of(descriptor: int) -> tuple[str, int]:
    """Return the host and port of a connection's peer, ("", 0) if it is closed or not TCP."""
    with contextlib.suppress(OSError), _borrowed(descriptor) as socket:
        peer = socket.getpeername()
        if isinstance(peer, tuple):
            return str(peer[0]), int(peer[1])
    return "", 0


@contextlib.contextmanager
def _borrowed(descriptor: int) -> Iterator[plain.socket]:
    """Use a descriptor of libzmq as a socket, without closing it; OSError if it is not a socket."""
    socket = plain.socket(fileno=descriptor)
    try:
        yield socket
    finally:
        socket.detach()
