"""Simulate links whose bandwidth several connections share as TCP connections do. No I/O.

A connection sends one message at a time, between two ends that each have a link. An end divides its link equally among
its connections that are sending; the smaller of a connection's two shares is the connection's rate.
"""

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import chain

End = tuple[str, int]


@dataclass(eq=False)
class _Connection:
    """A queue of messages from one end to another; message sizes are in seconds on an idle link."""

    ends: tuple[End, End]
    queue: deque[tuple[float, Callable[[], None]]] = field(default_factory=deque)
    left: float = 0.0  # seconds left of the first message
    rate: float = 0.0  # share of a link
    since: float = 0.0  # when `left` and `rate` were set
    plans: int = 0


class Links:
    """Simulates all connections; `now()` is the simulated time, and `after(seconds, event)` schedules an event."""

    def __init__(self, now: Callable[[], float], after: Callable[[float, Callable[[], None]], None]) -> None:
        self._now, self._after = now, after
        self._connections: dict[tuple[End, End], _Connection] = {}
        self._sending: dict[End, dict[_Connection, None]] = defaultdict(dict)
        self.busy: dict[End, float] = defaultdict(float)
        """Seconds of messages queued so far on each end's link."""

    def send(self, source: End, target: End, seconds: float, arrived: Callable[[], None]) -> None:
        """Queue a message that takes `seconds` on an idle link; call `arrived` when it has been sent completely."""
        ends = source, target
        connection = self._connections.setdefault(ends, _Connection(ends))
        connection.queue.append((seconds, arrived))
        for end in ends:
            self.busy[end] += seconds
        if len(connection.queue) == 1:
            connection.left, connection.rate, connection.since = seconds, 0.0, self._now()
            for end in ends:
                self._sending[end][connection] = None
            self._share(connection)

    def _share(self, changed: _Connection) -> None:
        """Recompute the rates of connections at the ends of `changed`, which has started or stopped sending."""
        now = self._now()
        for connection in dict.fromkeys(chain.from_iterable(self._sending[end] for end in changed.ends)):
            rate = min(1.0 / len(self._sending[end]) for end in connection.ends)
            if rate != connection.rate:
                connection.left -= (now - connection.since) * connection.rate
                connection.rate, connection.since = rate, now
                self._plan(connection)

    def _plan(self, connection: _Connection) -> None:
        connection.plans += 1
        seconds = max(connection.left, 0.0) / connection.rate
        self._after(seconds, partial(self._sent, connection, connection.plans))

    def _sent(self, connection: _Connection, plan: int) -> None:
        """Complete the connection's first message, unless its rate has changed since this event was planned."""
        if plan != connection.plans:
            return
        _, arrived = connection.queue.popleft()
        if connection.queue:
            connection.left, connection.since = connection.queue[0][0], self._now()
            self._plan(connection)
        else:
            for end in connection.ends:
                del self._sending[end][connection]
            self._share(connection)
        arrived()
