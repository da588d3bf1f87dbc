"""Decide what a worker does next with the strips that it leases: events in, instructions out.

No rows, no store, no clock. `block_trainer` carries out the instructions; `glovewire plan` drives the same decisions in
virtual time.
"""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from glovewire.common import log
from glovewire.common.model.rounds import Rounds
from glovewire.common.protocol.messages import Granted

MOST_STRIPS = 3
WAYS = 2
"""Transfers before this worker can use rows of another worker's strip: that worker's push, this worker's pull."""
KEPT_WEIGHT = 7 / 8
"""Weight of the previous value in the moving averages of push and strip times."""
OWN_BYTES = 32 << 20
"""No further strip is prefetched while the own partitions of those that wait take more than this; one always may be."""
VISIT_BYTES = 8 << 20
FEWEST_VISITS, MOST_VISITS = 2, 6
"""Limits of the number of visits to prefetch; within them, as many as fill VISIT_BYTES."""
STUCK_S = 1.0
"""Seconds without progress after which the requested rows are overdue."""


@dataclass(eq=False)
class Strip:
    """A leased strip of partition `own`: `left` of its `total` entries have yet to be trained.

    `ahead` are the partitions to be pulled, its own first; `visits` are pulled but not in training yet. `missing`
    pieces of its entries have not arrived; until then no rows are pulled, because only the entries say which ones.
    """

    granted: Granted
    own: int
    ahead: deque[int]
    total: float
    left: float
    visits: deque["Visit"] = field(default_factory=deque)
    seconds: float = 0.0
    missing: int = 1

    @property
    def round(self) -> int:
        """Return the round that trains the strip."""
        return self.granted.round


@dataclass(eq=False)
class Visit:
    """The blocks of a strip between its own partition and `partition`, whose rows take `nbytes` bytes.

    `missing` messages with rows have not arrived yet.
    """

    strip: Strip
    partition: int
    nbytes: float
    missing: int = 1

    @property
    def is_own(self) -> bool:
        """Return whether this is the strip's first visit, whose rows stay for the later ones and are pushed last."""
        return self.partition == self.strip.own


# ---- instructions


class Lease(NamedTuple):
    """Request another strip."""

    why: str


class Load(NamedTuple):
    """Load the entries of a strip."""

    strip: Strip


class Pull(NamedTuple):
    """Pull the rows of a visit."""

    visit: Visit
    why: str


class Train(NamedTuple):
    """Train a visit whose rows have arrived."""

    visit: Visit


class Push(NamedTuple):
    """Push the rows of a visit; those of a strip's own visit end the strip."""

    visit: Visit


class Report(NamedTuple):
    """Report a strip, all of whose pushes are answered."""

    strip: Strip


Instruction = Lease | Load | Pull | Train | Push | Report


def told(instruction: Instruction) -> str:
    """Return an instruction as a line for the log, with the reason if there was a choice."""
    visit: Visit | None = getattr(instruction, "visit", None)
    strip: Strip | None = visit.strip if visit else getattr(instruction, "strip", None)
    facts = {} if strip is None else {"round": strip.round, "partition": visit.partition if visit else strip.own}
    return log.line(type(instruction).__name__.lower(), **facts, why=getattr(instruction, "why", ""))


class Strips:
    """The strips that a worker holds.

    `entries(own)` is the work in the strip of partition `own`, `nbytes(own, partition)` the size of the rows of a
    partition that this strip needs. Times are seconds of any clock.
    """

    def __init__(
        self, rounds: Rounds, entries: Callable[[int], float], nbytes: Callable[[int, int], float], now: float
    ) -> None:
        self._rounds, self._entries, self._nbytes = rounds, entries, nbytes
        self._held: list[Strip] = []
        self._in_training: Visit | None = None
        self._due: deque[Instruction] = deque()
        self._unreported = 0
        self._asking = self._over = False
        self._window = PrefetchWindow()
        self._moved_at = now

    @property
    def is_over(self) -> bool:
        """Return whether no strip is left to train, to report or to lease."""
        return self._over and not self._held and not self._unreported and not self._due

    # ---- events

    def granted(self, granted: Granted) -> None:
        """Add a strip that was requested."""
        self._asking = False
        own, *others = self._rounds.visits(granted.round)
        total = self._entries(own)
        strip = Strip(granted, own, deque([own, *others]), total, total)
        self._held.append(strip)
        self._held.sort(key=lambda strip: strip.round)
        self._due.append(Load(strip))

    def ended(self) -> None:
        """Request no more strips, because none are left."""
        self._asking, self._over = False, True

    def arrived(self, what: Strip | Visit, missing: int, now: float) -> None:
        """Record that entries of a strip or rows of a visit have arrived, and how many pieces are still `missing`."""
        what.missing, self._moved_at = missing, now

    def progressed(self, entries: float) -> None:
        """Record that `entries` more entries of the visit in training are done."""
        assert self._in_training is not None
        self._in_training.strip.left -= entries

    def trained(self, seconds: float, now: float) -> None:
        """End the visit in training, which took `seconds`."""
        visit, self._in_training, self._moved_at = self._in_training, None, now
        assert visit is not None
        strip = visit.strip
        strip.seconds += seconds
        if not visit.is_own:
            self._due.append(Push(visit))
        if not strip.visits and not strip.ahead:
            self._held.remove(strip)
            self._unreported += 1
            self._window.trained(strip.seconds)
            self._due.append(Push(Visit(strip, strip.own, self._nbytes(strip.own, strip.own), 0)))

    def answered(self, strip: Strip, took_s: float) -> None:
        """Record that every push of a strip is answered, the last one after `took_s` seconds."""
        self._unreported -= 1
        self._window.pushed(took_s)
        self._due.append(Report(strip))

    # ---- what to do

    def next(self, now: float) -> Instruction | None:
        """Return what to do next, None to wait for an event. Only one visit is in training at a time."""
        if self._due:
            return self._due.popleft()
        if not self._asking and not self._over and (why := self._why_lease(now)):
            self._asking = True
            return Lease(why)
        for strip in self._held:
            if strip.ahead and not strip.missing and (why := self._why_pull(strip)):
                partition = strip.ahead.popleft()
                visit = Visit(strip, partition, self._nbytes(strip.own, partition))
                strip.visits.append(visit)
                return Pull(visit, why)
        ready = None if self._in_training else next(self._ready(), None)
        if ready is not None:
            self._in_training = ready.visits.popleft()
            return Train(self._in_training)
        return None

    def _ready(self) -> "filter[Strip]":
        """Return the strips with a visit whose rows have arrived, the earliest round first."""
        return filter(lambda strip: strip.visits and not strip.visits[0].missing, self._held)

    def _why_lease(self, now: float) -> str:
        """Return why to lease another strip, "" if there is no reason."""
        first = self._held[0] if self._held else None
        left = first.left / first.total if first is not None and first.total else 0.0
        waiting = sum(self._nbytes(strip.own, strip.own) for strip in self._held[1:])
        if self._window.needs_strip(len(self._held), waiting, left):
            return f"{left:.0%} of this strip is left" if first else "it has none"
        if self._in_training or next(self._ready(), None) or now - self._moved_at <= STUCK_S:
            return ""
        return "its rows are overdue: they may wait for a strip that a lost worker gave back"

    def _why_pull(self, strip: Strip) -> str:
        """Return why to pull the next rows of a strip, "" if that is too early."""
        if strip.ahead[0] == strip.own:
            return "the strip begins"
        visits, nbytes = len(strip.visits), sum(visit.nbytes for visit in strip.visits if not visit.is_own)
        if strip is self._held[0]:
            return "it is needed next" if needs_visit(visits, nbytes) else ""
        return "the strip is needed next" if visits < FEWEST_VISITS else ""


class PrefetchWindow:
    """Computes the number of strips to hold: just enough to keep training while rows are transferred."""

    def __init__(self) -> None:
        self._way_s = self._strip_s = 0.0

    def pushed(self, seconds: float) -> None:
        """Record that the answer to a push took at least `seconds`."""
        self._way_s += (1 - KEPT_WEIGHT) * (seconds - self._way_s)

    def trained(self, seconds: float) -> None:
        """Record that a strip took `seconds` to train."""
        self._strip_s += (1 - KEPT_WEIGHT) * (seconds - self._strip_s)

    def needs_strip(self, strips: int, waiting_bytes: float, left: float) -> bool:
        """Return whether to lease another strip while `strips` are held.

        `waiting_bytes`: size of the own partitions of the strips that are not in training. `left`: share of the strip
        in training that is yet to be done. A strip leased too early waits here although another worker may be idle.
        """
        if strips < 1 or (strips > 1 and waiting_bytes > OWN_BYTES):
            return strips < 1
        meanwhile = math.ceil(WAYS * self._way_s / self._strip_s) if self._strip_s else 0
        return strips < min((1 if left > 0.5 else 2) + max(meanwhile - 1, 0), MOST_STRIPS)


def needs_visit(visits: int, nbytes: float) -> bool:
    """Return whether to prefetch another visit of the strip in training when `visits` of `nbytes` bytes are waiting."""
    return visits < FEWEST_VISITS or (visits < MOST_VISITS and nbytes < VISIT_BYTES)
