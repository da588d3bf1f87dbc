"""Replies on their way out, in their order; a word that rows will say as well waits for them a little while. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from common.messages import Message, Rows

from .sessions import Peer


class Outgoing(NamedTuple):
    """A reply on its way."""

    peer: Peer
    number: int
    message: Message


@dataclass
class Replies:
    """What goes out next, and what waits.

    A push that asks for rows is answered by them: where workers go in step they come when the others have pushed,
    mostly within a millisecond. To tell before that the push is in costs both ends as much again. Whoever would have to
    wait longer is told by `let_go`.
    """

    _out: list[Outgoing] = field(default_factory=list)
    _held: dict[tuple[Peer, int], Outgoing] = field(default_factory=dict)

    def hold(self, applied: Outgoing) -> None:
        """Keep the word that a push is in: the rows that it asks for may come soon, and say it as well."""
        self._held[applied.peer, applied.number] = applied

    def send(self, reply: Outgoing) -> None:
        """Send a reply now: rows in place of the word that waits for them, anything else behind it."""
        if self._held:
            held = self._held.pop((reply.peer, reply.number), None)
            if held is not None and not isinstance(reply.message, Rows):
                self._out.append(held)
        self._out.append(reply)

    def let_go(self) -> None:
        """Some time has passed: what waits is sent without the rows."""
        self._out.extend(self._held.values())
        self._held.clear()

    def take(self) -> list[Outgoing]:
        """What has to be sent now."""
        out, self._out = self._out, []
        return out
