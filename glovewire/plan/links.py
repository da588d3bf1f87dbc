"""Simulate links whose bandwidth several connections share, as TCP shares it. No I/O.

A connection sends one message after another. Each of its two ends gives every connection with something to send an
equal share of its link; the smaller share is the connection's rate.
"""

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import chain

End = tuple[str, int]


@dataclass(eq=False)
class _Connection:
    """A queue of messages from one end to another; sizes are in seconds of an idle link."""

    ends: tuple[End, End]
    queue: deque[tuple[float, Callable[[], None]]] = field(default_factory=deque)
    left: float = 0.0  # of the first message
    rate: float = 0.0  # share of a link
    since: float = 0.0  # when `left` and `rate` were set
    plans: int = 0


class Links:
    """All connections; `now()` is the simulated time, `after(seconds, event)` schedules an event."""

    def __init__(self, now: Callable[[], float], after: Callable[[float, Callable[[], None]], None]) -> None:
        self._now, self._after = now, after
        self._connections: dict[tuple[End, End], _Connection] = {}
        self._sending: dict[End, dict[_Connection, None]] = defaultdict(dict)
        self.busy: dict[End, float] = defaultdict(float)
        """Seconds for which each end's link was busy."""

    def send(self, source: End, target: End, seconds: float, arrived: Callable[[], None]) -> None:
        """Queue a message that takes an idle link `seconds`; call `arrived` when it is through."""
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
        """Recompute the rates at two ends whose number of active connections has changed."""
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
        """Complete the first message, unless the rate has changed since this was planned."""
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
