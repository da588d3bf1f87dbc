"""Hold a value that arrives later, in one message or in several."""

from dataclasses import dataclass
from typing import Generic, TypeVar, cast

from ..errors import GlovewireError, ProtocolError, from_wire
from ..protocol import messages as m
from .channel import OnReply

T = TypeVar("T")
M = TypeVar("M", bound=m.Message)


@dataclass
class Pending(Generic[T]):
    """A value that arrives later; `missing` of its messages have not arrived."""

    value: T | None = None
    missing: int = 1
    error: GlovewireError | None = None

    @property
    def done(self) -> bool:
        """Return whether the value is complete or has failed."""
        return self.missing == 0 or self.error is not None

    def get(self) -> T:
        """Return the value once `done`; raise its error if it has failed."""
        if self.error is not None:
            raise self.error
        return cast(T, self.value)

    def settle(self, take: OnReply, reply: m.Message) -> None:
        """Pass one of the missing messages to `take`; if it is a refusal, keep its error instead."""
        self.missing -= 1
        try:
            take(check_reply(reply))
        except GlovewireError as error:
            self.error = error

    def set(self, reply: T) -> None:
        """Use the message `reply` itself as the value; for `settle`."""
        self.value = reply


def take_done(those: list[Pending[T]]) -> list[Pending[T]]:
    """Return those that are done, in order, and remove them from the list."""
    done = [each for each in those if each.done]
    those[:] = [each for each in those if not each.done]
    return done


def check_reply(reply: m.Message) -> m.Message:
    """Return `reply`, or raise the error that it names if it is `Refused`."""
    if isinstance(reply, m.Refused):
        raise from_wire(reply.code, reply.text, reply.ending)
    return reply


def expect(reply: m.Message, kind: type[M]) -> M:
    """Return `reply` if it is a message of type `kind`; otherwise ProtocolError, with the text of a `Refused`."""
    if isinstance(reply, kind):
        return reply
    why = reply.text if isinstance(reply, m.Refused) else f"{type(reply).__name__} does not answer this query"
    raise ProtocolError(why)
