"""Count what became of every push, per worker and in all: heard = applied + repeated + refused. No I/O.

`repeated`: the change was already in the table, because the message was sent twice or another worker had trained the
block meanwhile. `refused` includes gradients that came too late for their step.
"""

from collections import Counter
from dataclasses import dataclass, field

from glovewire.common.protocol.messages import Applied, Message

MAX_NAMES = 1024
NO_SESSION = ""
OUTCOMES = ("applied", "repeated", "refused")


@dataclass
class PushCounts:
    """Counts of pushes, in `total` and `of` each worker by name, over all its sessions.

    Keys are `sent`, `heard` and the OUTCOMES. `sent` is the number in a worker's Leave, retransmissions included; a
    session without a Leave counts every push heard as sent.
    """

    total: Counter[str] = field(default_factory=Counter)
    of: dict[str, Counter[str]] = field(default_factory=dict)
    _open: Counter[str] = field(default_factory=Counter)

    def answered(self, name: str, reply: Message) -> None:
        """Count a push of worker `name` (NO_SESSION if it has none) under the outcome that `reply` tells."""
        outcome = "refused"
        if isinstance(reply, Applied) and not reply.late:
            outcome = "repeated" if reply.repeated else "applied"
        for counts in (self.total, self._counts(name)):
            counts["heard"] += 1
            counts[outcome] += 1
        self._open[name] += 1

    def left(self, name: str, sent: int | None = None) -> None:
        """Close the session of worker `name`; `sent`: how many pushes it says it sent, None if it did not say.

        A negative number counts as not said. More may be heard than sent: a network can duplicate messages.
        """
        heard = self._open.pop(name, 0)
        for counts in (self.total, self._counts(name)):
            counts["sent"] += heard if sent is None or sent < 0 else sent

    def summary(self) -> dict[str, int]:
        """Return the counts of all pushes; in open sessions every push heard counts as sent."""
        return _summary(self.total, self._open.total())

    def by_worker(self) -> dict[str, dict[str, int]]:
        """Return the counts of `summary` for each worker, by name."""
        return {name: _summary(counts, self._open[name]) for name, counts in self.of.items() if name != NO_SESSION}

    def _counts(self, name: str) -> Counter[str]:
        if (counts := self.of.get(name)) is None:
            if len(self.of) >= MAX_NAMES:
                del self.of[next(iter(self.of))]  # the oldest; it stays in the total
            counts = self.of[name] = Counter()
        return counts


def _summary(counts: Counter[str], still_open: int) -> dict[str, int]:
    return {"sent": counts["sent"] + still_open, **{key: counts[key] for key in ("heard", *OUTCOMES)}}
