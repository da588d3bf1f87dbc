"""What became of every push: heard = applied + repeated + refused, for each worker and in all. Bounded; no I/O.

A repeat was in the table before: a message that was sent twice, or a block that somebody else has trained meanwhile.
A gradient that came too late for its step is refused.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from glovewire.common.protocol.messages import Applied, Message

MAX_NAMES = 1024
STRANGER = ""
OUTCOMES = ("applied", "repeated", "refused")


@dataclass
class Tally:
    """Counts under `sent`, `heard` and the three outcomes; `of` keeps them by worker's name, sessions added up.

    `sent` is what workers say in their goodbye, repeats included; who said none is taken to have sent what was heard.
    """

    total: Counter[str] = field(default_factory=Counter)
    of: dict[str, Counter[str]] = field(default_factory=dict)
    _open: dict[str, int] = field(default_factory=dict)

    def answered(self, name: str, reply: Message) -> None:
        """A push of worker `name` (STRANGER without a session) was heard and got this reply."""
        outcome = "refused"
        if isinstance(reply, Applied) and not reply.late:
            outcome = "repeated" if reply.repeated else "applied"
        for counts in (self.total, self._counts(name)):
            counts["heard"] += 1
            counts[outcome] += 1
        self._open[name] = self._open.get(name, 0) + 1

    def left(self, name: str, sent: int | None = None) -> None:
        """The session of worker `name` is over; `sent` is what it says that it has sent in it."""
        heard = self._open.pop(name, 0)
        for counts in (self.total, self._counts(name)):
            counts["sent"] += heard if sent is None else sent

    def summary(self) -> dict[str, int]:
        """All pushes; those of sessions that still stand count as sent when they were heard."""
        return _facts(self.total, sum(self._open.values()))

    def workers(self) -> dict[str, dict[str, int]]:
        """The same for each worker by name."""
        return {name: _facts(counts, self._open.get(name, 0)) for name, counts in self.of.items() if name != STRANGER}

    def _counts(self, name: str) -> Counter[str]:
        if (counts := self.of.get(name)) is None:
            if len(self.of) >= MAX_NAMES:
                del self.of[next(iter(self.of))]  # the oldest; it stays in the total
            counts = self.of[name] = Counter()
        return counts


def _facts(counts: Counter[str], still_open: int) -> dict[str, int]:
    return {"sent": counts["sent"] + still_open, **{key: counts[key] for key in ("heard", *OUTCOMES)}}
