"""Count what became of every push, per worker and in all: heard = applied + repeated + refused. No I/O.

A repeat was in the table before: a message that was sent twice, or a block that another worker has trained meanwhile.
A gradient that came too late for its step is refused.
"""

from collections import Counter
from dataclasses import dataclass, field

from glovewire.common.protocol.messages import Applied, Message

MAX_NAMES = 1024
NO_SESSION = ""
OUTCOMES = ("applied", "repeated", "refused")


@dataclass
class PushCounts:
    """Counts under `sent`, `heard` and the three outcomes; `of` keeps them by worker's name, sessions added up.

    `sent` is what workers say in their Leave, repeats included; without a Leave it is taken to be what was heard.
    """

    total: Counter[str] = field(default_factory=Counter)
    of: dict[str, Counter[str]] = field(default_factory=dict)
    _open: dict[str, int] = field(default_factory=dict)

    def answered(self, name: str, reply: Message) -> None:
        """Count a push of worker `name` (NO_SESSION without one) by its reply."""
        outcome = "refused"
        if isinstance(reply, Applied) and not reply.late:
            outcome = "repeated" if reply.repeated else "applied"
        for counts in (self.total, self._counts(name)):
            counts["heard"] += 1
            counts[outcome] += 1
        self._open[name] = self._open.get(name, 0) + 1

    def left(self, name: str, sent: int | None = None) -> None:
        """Close the session of worker `name`, which says that it has `sent` so many pushes in it."""
        heard = self._open.pop(name, 0)
        for counts in (self.total, self._counts(name)):
            counts["sent"] += heard if sent is None else sent

    def summary(self) -> dict[str, int]:
        """Return the counts of all pushes; of open sessions, those heard count as sent."""
        return _summary(self.total, sum(self._open.values()))

    def by_worker(self) -> dict[str, dict[str, int]]:
        """Return the same for each worker by name."""
        return {
            name: _summary(counts, self._open.get(name, 0)) for name, counts in self.of.items() if name != NO_SESSION
        }

    def _counts(self, name: str) -> Counter[str]:
        if (counts := self.of.get(name)) is None:
            if len(self.of) >= MAX_NAMES:
                del self.of[next(iter(self.of))]  # the oldest; it stays in the total
            counts = self.of[name] = Counter()
        return counts


def _summary(counts: Counter[str], still_open: int) -> dict[str, int]:
    return {"sent": counts["sent"] + still_open, **{key: counts[key] for key in ("heard", *OUTCOMES)}}
