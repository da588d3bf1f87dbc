"""What strangers send to a port, by plain sockets: other protocols, noise, and messages that are nearly right."""

from __future__ import annotations

import random
import socket
import struct
import time
from contextlib import suppress

import zmq

from glovewire.common.protocol import messages as m
from glovewire.common.protocol import wire
from glovewire.common.transport import sockets
from glovewire.server.limits import MAX_ERRORS

ANSWER_S = 20.0
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
READY = b"\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x00"

STRANGERS = {
    "http": b"GET / HTTP/1.1\r\nHost: x\r\nUser-Agent: curl/8\r\n\r\n",
    "tls": bytes.fromhex("16030100c8010000c40303") + bytes(range(200)),
    "ssh": b"SSH-2.0-OpenSSH_9.6\r\n",
    "zmtp 1, which delivered junk as messages": b"\x01\x00" + b"\x05\x00junk",
    "zmtp 2": b"\xff" + bytes(8) + b"\x7f\x01\x05\x00\x00",
    "another mechanism": GREETING.replace(b"NULL" + bytes(16), b"CURVE" + bytes(15)),
    "zeros": bytes(500),
}


def frame(payload: bytes, *, more: bool) -> bytes:
    return struct.pack(">BQ", 2 | more, len(payload)) + payload


def mutilated(draw: random.Random, push: list[bytes]) -> list[bytes]:
    """A good message with one thing wrong: a bit, a frame, a length, a type, a number."""
    frames = [bytearray(part) for part in push]
    kind = draw.randrange(8)
    if kind < 2:  # a flipped bit in the greeting or where the header says what it is
        where = draw.randrange(1, 3)
        frames[where][draw.randrange(min(len(frames[where]), 12))] ^= 1 << draw.randrange(8)
    elif kind == 2:
        frames[2] = frames[2][: draw.randrange(len(frames[2]))]
    elif kind == 3:
        del frames[draw.randrange(1, len(frames))]
    elif kind == 4:
        frames += [bytearray(b"x")] * draw.randrange(1, 40)
    elif kind == 5:
        frames[3] = frames[3][:-1]
    elif kind == 6:
        frames[2] = bytearray(b"\x91" * draw.randrange(1, 5000))
    else:
        frames[draw.randrange(1, 3)] = bytearray(draw.randbytes(draw.randrange(300)))
    return [bytes(part) for part in frames]


def exactly(plain: socket.socket, size: int) -> bytes:
    """Receive exactly `size` bytes; ConnectionError if the other side closes before."""
    found = b""
    while len(found) < size:
        more = plain.recv(size - len(found))
        if not more:
            raise ConnectionError("closed early")
        found += more
    return found


def shake_hands(plain: socket.socket) -> None:
    """Perform a ZMTP 3 handshake as a DEALER; in turns, because libzmq drops a client that sends everything at once."""
    plain.sendall(GREETING)
    exactly(plain, 64)
    plain.sendall(bytes([4, len(READY)]) + READY)
    assert exactly(plain, exactly(plain, 2)[1]).startswith(READY[:6])


def shaken(address: str) -> socket.socket:
    """Return a plain connection after the handshake."""
    plain = socket.create_connection(port_of(address), timeout=60)
    shake_hands(plain)
    return plain


def send_until_shut(plain: socket.socket, *pieces: bytes) -> None:
    """Send pieces until the other side accepts no more; Linux may take a minute to report that it has closed."""
    plain.settimeout(5.0)
    with suppress(OSError):
        for piece in pieces:
            plain.sendall(piece)


def is_shut(plain: socket.socket, seconds: float = 20.0) -> bool:
    """Whether the other side closes the connection within `seconds`, whatever it sends meanwhile."""
    deadline = time.monotonic() + seconds
    with suppress(ConnectionError):
        while (left := deadline - time.monotonic()) > 0:
            plain.settimeout(left)
            try:
                if not plain.recv(65536):
                    return True
            except TimeoutError:
                return False
        return False
    return True


def port_of(address: str) -> tuple[str, int]:
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    return host, int(port)


def visited(address: str, connections: int, draw: random.Random) -> None:
    """Open connections one after the other, in turn with noise and other protocols; some leave in the middle."""
    for number in range(connections):
        words = [draw.randbytes(draw.randrange(1, 2000)), *STRANGERS.values()][number % (1 + len(STRANGERS))]
        with socket.create_connection(port_of(address), timeout=60) as stranger, suppress(ConnectionError):
            stranger.sendall(words)


def refused(address: str, push: m.Push, count: int, draw: random.Random) -> int:
    """Send `count` messages, each a good push with something wrong; return how many got a refusal."""
    good = [b"", *(bytes(part) for part in wire.encode(9, push))]
    told = 0
    while count:
        burst = min(MAX_ERRORS - 1, count)  # one more would cost the connection
        count -= burst
        with sockets.Context() as context:
            dealer: zmq.Socket[bytes] = context.dealer(address)
            for _ in range(burst):
                dealer.send_multipart(mutilated(draw, good))
            for _ in range(burst):
                assert dealer.poll(int(1e3 * ANSWER_S)), "the server does not answer"
                told += isinstance(wire.decode(sockets.receive(dealer)[1:]).message, m.Refused)
    return told
