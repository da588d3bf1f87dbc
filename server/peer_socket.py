"""Answer the other shards of a run on a ROUTER socket of its own, at any time, also while the daemon writes results."""

import contextlib
from collections.abc import Callable

import zmq

from glovewire.common.addresses import is_loopback, port_of
from glovewire.common.protocol.wire import Frame
from glovewire.common.transport import sockets
from glovewire.common.transport.curve_keys import ServerKeys

MAX_REQUEST_BYTES = 4096

Answer = Callable[[list[Frame]], list[Frame]]
"""Takes the frames of a request, with its envelope, and returns those of the reply."""


class PeerSocket:
    """A socket at `address`, which a thread serves: `answer` is called in it. With keys, shards alone may connect."""

    def __init__(self, address: str, keys: ServerKeys | None, answer: Answer) -> None:
        self._answer = answer
        self._context = sockets.Context(None if keys is None else keys.for_shards())
        try:
            self._router, _ = self._context.router(listening(address), MAX_REQUEST_BYTES)
        except BaseException:
            self.close()
            raise

    def serve(self, is_over: Callable[[], bool]) -> None:
        """Answer requests until `is_over()`."""
        poller, zap = zmq.Poller(), self._context.zap
        poller.register(self._router, zmq.POLLIN)
        if zap is not None:
            poller.register(zap.socket, zmq.POLLIN)
        while not is_over():
            poller.poll(50)
            if zap is not None:
                zap.answer()
            while sockets.has_message(self._router):
                peer = self._router.recv(zmq.NOBLOCK)
                reply = self._answer(sockets.receive(self._router))
                with contextlib.suppress(zmq.ZMQError):  # the peer is gone, or asks again
                    sockets.send(self._router, [peer, b"", *reply])

    def close(self) -> None:
        """Release the socket; its thread has ended."""
        self._context.close()


def listening(address: str) -> str:
    """Return where a shard listens whose address for the others is `address`: a name may not be known to itself."""
    return address if is_loopback(address) else f"tcp://0.0.0.0:{port_of(address)}"
