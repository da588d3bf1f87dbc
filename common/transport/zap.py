"""Admit clients by their CURVE keys (ZAP), and find out in a client why it was not admitted.

libzmq asks the server's `ZapHandler` about each client that has proven its key (https://rfc.zeromq.org/spec/27/). In
the client, it reports no refusal and may never reconnect; the client's `HandshakeMonitor` finds the reason.
"""

import ctypes
import secrets
from collections.abc import Callable

import zmq
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

from ..errors import NotAdmitted
from .curve_keys import PUBLIC, ClientKeys

_ZAP = "inproc://zeromq.zap.01"
_VERSION, _CURVE = b"1.0", b"CURVE"
_FRAMES = 7
"""Frames of a ZAP request: version, number, domain, address, identity, mechanism, key."""
_WATCHED = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_DISCONNECTED
)


def randomize_routing_ids() -> None:
    """Seed the random numbers from which libzmq makes routing ids for the peers of later ROUTERs.

    libzmq 4.3.5 takes its first id from `rand()`, unseeded by default, and aborts (`Assertion failed: ok`) if a peer
    has chosen the next id for itself. A hostile peer could predict that id.
    """
    ctypes.CDLL(None).srand(secrets.randbits(32))


class ZapHandler:
    """Admits clients whose public key `admits` accepts. It has no thread: poll `socket` and call `answer`.

    The public key of an admitted client, in Z85, is the `User-Id` of each of its messages.
    """

    def __init__(self, socket: zmq.Socket[bytes], admits: Callable[[str], object]) -> None:
        self.socket, self._admits = socket, admits
        socket.bind(_ZAP)

    def answer(self) -> list[tuple[str, str]]:
        """Answer all waiting requests of libzmq; return the address ("" without IP) and key of each refused client."""
        refused = []
        while self.socket.poll(0):
            frames = self.socket.recv_multipart(zmq.NOBLOCK)
            number, address, key = frames[1], frames[3].decode("ascii", "replace"), _key_in(frames)
            verdict = [b"200", b"", key.encode()]
            if not self._admits(key):
                refused.append((address, key))
                verdict = [b"400", b"unknown key", b""]
            self.socket.send_multipart([_VERSION, number, *verdict, b""], zmq.NOBLOCK)
        return refused


def _key_in(frames: list[bytes]) -> str:
    """Return the public key in a ZAP request, in Z85; "" if there is none."""
    if len(frames) != _FRAMES or frames[0] != _VERSION or frames[5] != _CURVE or len(frames[6]) != 32:
        return ""
    return z85.encode(frames[6]).decode()


class HandshakeMonitor:
    """Watches the handshakes of one connecting socket."""

    def __init__(self, socket: zmq.Socket[bytes], address: str, keys: ClientKeys | None) -> None:
        self._events = socket.get_monitor_socket(_WATCHED)
        self._address, self._keys = address, keys
        self._connected = False
        self.doubt = ""
        """A guess at why no server answers, in parentheses after a space, or ""."""

    def check(self) -> None:
        """Read handshake events and update `doubt`; NotAdmitted if the server will never accept this client."""
        while self._events.poll(0):
            event = recv_monitor_message(self._events, zmq.NOBLOCK)
            kind, value = event["event"], event["value"]
            if kind == zmq.EVENT_HANDSHAKE_FAILED_AUTH and self._keys is not None:
                raise NotAdmitted(
                    f"{self._address} does not know the key in {self._keys.path}: add it to the allowed.toml of "
                    "that server"
                )
            if value == zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH:
                ours = "has no keys to prove who it is: start it with --keys, or leave --keys out here"
                raise NotAdmitted(f"{self._address} {'asks for keys: say --keys' if self._keys is None else ours}")
            if kind == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._connected, self.doubt = True, ""
            elif not self._connected:
                self.doubt = (
                    " (no Glovewire server listens there, or not yet)"
                    if self._keys is None
                    else f" (it does not seem to be the server whose key is in {self._keys.path.parent / PUBLIC})"
                )
            else:  # a connection was lost, which needs no guess
                self._connected = False

    def close(self) -> None:
        """Stop watching; the socket must still be open."""
        self._events.close(0)
