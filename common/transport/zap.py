"""What happens before a connection stands: a server decides whom it lets in, a client learns why it was not.

libzmq asks the `Door` about each newcomer whose key is proven (ZAP, https://rfc.zeromq.org/spec/27/). A client that is
turned away hears nothing by itself, and libzmq may never try again: its `Attempts` know why.
"""

from __future__ import annotations

import ctypes
import secrets

import zmq
from zmq.utils.monitor import recv_monitor_message

from ..errors import NotAdmitted
from .curve_keys import PUBLIC, AllowList, ClientKeys

_ZAP = "inproc://zeromq.zap.01"
_VERSION, _CURVE = b"1.0", b"CURVE"
_FRAMES = 7
"""Version, number, domain, address, identity, mechanism, key."""
_WATCHED = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_DISCONNECTED
)


def hide_names() -> None:
    """Let the names that ROUTERs made from now on give their peers begin anywhere, not where they do in every process.

    libzmq 4.3.5 takes them from `rand()`, which nobody seeds, and ends the process when one that is due belongs to a
    peer that has chosen it (`Assertion failed: ok`).
    """
    ctypes.CDLL(None).srand(secrets.randbits(32))


class Door:
    """Lets in those whose public key is allowed; owns no thread: poll `socket` and call `answer`."""

    def __init__(self, socket: zmq.Socket[bytes], allowed: AllowList) -> None:
        self.socket, self._allowed = socket, allowed
        socket.bind(_ZAP)

    def answer(self) -> int:
        """Decide about everybody who waits; how many were turned away."""
        refused = 0
        while self.socket.poll(0):
            frames = self.socket.recv_multipart(zmq.NOBLOCK)
            number, name = frames[1] if len(frames) > 1 else b"", self._known(frames)
            refused += name is None
            verdict = [b"400", b"unknown key", b""] if name is None else [b"200", b"", name.encode()]
            self.socket.send_multipart([_VERSION, number, *verdict, b""], zmq.NOBLOCK)
        return refused

    def _known(self, frames: list[bytes]) -> str | None:
        if len(frames) != _FRAMES or frames[0] != _VERSION or frames[5] != _CURVE:
            return None
        return self._allowed.name_of(frames[6])


class Attempts:
    """How the handshakes of one connecting socket end."""

    def __init__(self, socket: zmq.Socket[bytes], address: str, keys: ClientKeys | None) -> None:
        self._events = socket.get_monitor_socket(_WATCHED)
        self._address, self._keys = address, keys
        self._stands = False
        self.doubt = ""
        """What the reason may be that nobody answers, ready to end a sentence with; "" when there is none."""

    def check(self) -> None:
        """Raise NotAdmitted when the other side will never let us in as we are; otherwise learn what there is."""
        while self._events.poll(0):
            event = recv_monitor_message(self._events, zmq.NOBLOCK)
            kind, value = event["event"], event["value"]
            if kind == zmq.EVENT_HANDSHAKE_FAILED_AUTH and self._keys is not None:
                raise NotAdmitted(
                    f"{self._address} does not know the key in {self._keys.path}: its server allows those in its "
                    "own allowed.toml"
                )
            if value == zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH:
                raise NotAdmitted(self._mismatch())
            if kind == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._stands, self.doubt = True, ""
            elif not self._stands:
                self.doubt = self._guess()
            else:  # a connection that stood has ended, which needs no guess
                self._stands = False

    def close(self) -> None:
        """Stop listening; the socket must still be open."""
        self._events.close(0)

    def _mismatch(self) -> str:
        if self._keys is None:
            return f"{self._address} asks for keys: say --keys"
        return f"{self._address} has no keys to prove who it is: start it with --keys, or leave --keys out here"

    def _guess(self) -> str:
        if self._keys is None:
            return " (what listens there is no such server, or not yet)"
        return f" (it does not seem to be the server whose key is in {self._keys.path.parent / PUBLIC})"
