"""Messages on their way over links that connections share: a clockwork for models, nothing is sent.

A connection sends one message after another. Each of its two ends gives every connection that has something to send
an equal part of its link; the smaller part is the connection's pace, as with TCP. Pure.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import chain

End = tuple[str, int]


@dataclass(eq=False)
class _Connection:
    """What is still to be sent from one end to another, in seconds of an idle link, the first one first."""

    ends: tuple[End, End]
    waiting: deque[tuple[float, Callable[[], None]]] = field(default_factory=deque)
    left: float = 0.0  # of the first
    pace: float = 0.0  # part of a link
    since: float = 0.0  # when `left` and `pace` were so
    plans: int = 0


class Flows:
    """The connections between all ends; `now()` is the time, `after(seconds, happens)` lets something happen."""

    def __init__(self, now: Callable[[], float], after: Callable[[float, Callable[[], None]], None]) -> None:
        self._now, self._after = now, after
        self._connections: dict[tuple[End, End], _Connection] = {}
        self._sending: dict[End, dict[_Connection, None]] = defaultdict(dict)
        self.busy: dict[End, float] = defaultdict(float)
        """Seconds that each end's link has worked."""

    def send(self, source: End, target: End, seconds: float, arrived: Callable[[], None]) -> None:
        """Send what takes an idle link so many seconds, behind all that was given to this connection before."""
        ends = source, target
        connection = self._connections.setdefault(ends, _Connection(ends))
        connection.waiting.append((seconds, arrived))
        for end in ends:
            self.busy[end] += seconds
        if len(connection.waiting) == 1:
            connection.left, connection.pace, connection.since = seconds, 0.0, self._now()
            for end in ends:
                self._sending[end][connection] = None
            self._share(connection)

    def _share(self, changed: _Connection) -> None:
        """The connections of two ends have become more or fewer: all of them go on at another pace."""
        now = self._now()
        for connection in dict.fromkeys(chain.from_iterable(self._sending[end] for end in changed.ends)):
            pace = min(1.0 / len(self._sending[end]) for end in connection.ends)
            if pace != connection.pace:
                connection.left -= (now - connection.since) * connection.pace
                connection.pace, connection.since = pace, now
                self._plan(connection)

    def _plan(self, connection: _Connection) -> None:
        connection.plans += 1
        seconds = max(connection.left, 0.0) / connection.pace
        self._after(seconds, partial(self._sent, connection, connection.plans))

    def _sent(self, connection: _Connection, plan: int) -> None:
        """The first message has left, unless the pace has changed since this was planned."""
        if plan != connection.plans:
            return
        _, arrived = connection.waiting.popleft()
        if connection.waiting:
            connection.left, connection.since = connection.waiting[0][0], self._now()
            self._plan(connection)
        else:
            for end in connection.ends:
                del self._sending[end][connection]
            self._share(connection)
        arrived()
