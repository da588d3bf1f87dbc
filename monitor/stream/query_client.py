"""A question to a server shard at a time, without ever waiting for the answer.

Knows sockets and messages, nothing of what is asked. It must never hold up whoever asks: `answer` looks and returns.
"""

from __future__ import annotations

import time
from typing import TypeVar

from glovewire.common.errors import GlovewireError, ProtocolError
from glovewire.common.protocol import wire
from glovewire.common.protocol.messages import Message, Refused
from glovewire.common.transport import sockets
from glovewire.common.transport.curve_keys import ClientKeys

M = TypeVar("M", bound=Message)


class Line:
    """A connection to the shard that answers requests at `address`; it has one question open, or none."""

    def __init__(self, address: str, keys: ClientKeys | None = None) -> None:
        self.address = address
        self.asked: float | None = None
        self._context = sockets.Context(keys)
        self._number = 0
        try:
            self._socket = self._context.dealer(address)
        except GlovewireError:
            self._context.close()
            raise

    def ask(self, question: Message) -> None:
        """Send a question; the answer to one before it is not wanted any more."""
        self._number += 1
        self.asked = time.monotonic()
        sockets.send(self._socket, [b"", *wire.encode(self._number, question)])

    def answer(self) -> Message | None:
        """The answer, once it is here; ProtocolError when it is none, a refusal is an answer."""
        while self.asked is not None and sockets.has_message(self._socket):
            reply = wire.decode(sockets.receive(self._socket)[1:])
            if reply.number in (self._number, 0):  # 0: it could not even be read there
                self.asked = None
                return reply.message
        return None

    def waits_s(self) -> float:
        """How long the question has been open, 0 when there is none."""
        return 0.0 if self.asked is None else time.monotonic() - self.asked

    def close(self) -> None:
        """Close the connection; twice is fine."""
        self._context.close()


def beside(publish: str, port: int) -> str:
    """The address of the requests of a shard that publishes at `publish`: the same machine, the port that it told."""
    return f"{publish.rpartition(':')[0]}:{port}"


def expect(reply: Message, kind: type[M]) -> M:
    """The reply, which must be of this kind: ProtocolError otherwise, with the words of a refusal."""
    if isinstance(reply, kind):
        return reply
    why = reply.text if isinstance(reply, Refused) else f"a {type(reply).__name__} is no answer to this"
    raise ProtocolError(why)
