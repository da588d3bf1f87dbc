"""Decide what a worker does next with the strips that it leases: events in, instructions out.

No rows, no store, no clock. `block_trainer` carries the instructions out; `glovewire plan` drives the same decisions in
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
"""Weight of the previous moving average when another push or strip is measured."""
OWN_BYTES = 32 << 20
"""Further strips are not prefetched while the partitions of those that wait take more than this, but for one."""
VISIT_BYTES = 8 << 20
FEWEST_VISITS, MOST_VISITS = 2, 6
"""Visits to prefetch: as many as take VISIT_BYTES, within these limits."""
STUCK_S = 1.0
"""Time without any row after which those that were pulled are overdue."""


@dataclass(eq=False)
class Strip:
    """A leased strip of partition `own`: `left` of its `total` entries are to be trained.

    `ahead` are the partitions to pull yet, its own first; `visits` are pulled and not in training yet. `missing` pieces
    of its entries have not come, and until then no rows are pulled: which ones, only the entries say.
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
        """Return its round."""
        return self.granted.round


@dataclass(eq=False)
class Visit:
    """The blocks of a strip between its own partition and `partition`, whose rows take `nbytes` bytes.

    `missing` messages with rows have not come yet.
    """

    strip: Strip
    partition: int
    nbytes: float
    missing: int = 1

    @property
    def is_own(self) -> bool:
        """Return whether it is the strip's first visit, whose rows stay for the others and are pushed after them."""
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
    """Train a visit whose rows have come."""

    visit: Visit


class Push(NamedTuple):
    """Push the rows of a visit; those of a strip's own visit end the strip."""

    visit: Visit


class Report(NamedTuple):
    """Report a strip, all of whose pushes are answered."""

    strip: Strip


Instruction = Lease | Load | Pull | Train | Push | Report


def told(instruction: Instruction) -> str:
    """Return an instruction as a line of the log, with the reason if there is a choice."""
    visit: Visit | None = getattr(instruction, "visit", None)
    strip: Strip | None = visit.strip if visit else getattr(instruction, "strip", None)
    facts = {} if strip is None else {"round": strip.round, "partition": visit.partition if visit else strip.own}
    return log.line(type(instruction).__name__.lower(), **facts, why=getattr(instruction, "why", ""))


class Strips:
    """The strips that a worker holds.

    `entries(own)` is the work of the strip of a partition, `nbytes(own, partition)` the size of the rows that it needs
    of a partition. Times are seconds of any clock.
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
        """Return whether no strip is left: none to train, to report or to lease."""
        return self._over and not self._held and not self._unreported and not self._due

    # ---- events

    def granted(self, granted: Granted) -> None:
        """Take a strip that was requested."""
        self._asking = False
        own, *others = self._rounds.visits(granted.round)
        total = self._entries(own)
        strip = Strip(granted, own, deque([own, *others]), total, total)
        self._held.append(strip)
        self._held.sort(key=lambda strip: strip.round)
        self._due.append(Load(strip))

    def ended(self) -> None:
        """Request no more strips: none are left."""
        self._asking, self._over = False, True

    def loading(self, strip: Strip, missing: int, now: float) -> None:
        """Note that entries of a strip have come, and how many pieces are `missing`."""
        strip.missing, self._moved_at = missing, now

    def came(self, visit: Visit, missing: int, now: float) -> None:
        """Note that rows of a visit have come, and how many messages are `missing`."""
        visit.missing, self._moved_at = missing, now

    def progressed(self, entries: float) -> None:
        """Note that so many entries of the visit in training are done."""
        assert self._in_training is not None
        self._in_training.strip.left -= entries

    def trained(self, seconds: float, now: float) -> None:
        """End the visit in training, which took so long."""
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
        """Note that every push of a strip is answered, the last one after `took_s` seconds."""
        self._unreported -= 1
        self._window.pushed(took_s)
        self._due.append(Report(strip))

    # ---- what to do

    def next(self, now: float) -> Instruction | None:
        """Return what to do next, None to wait for an event; while a visit is in training no other is to be trained."""
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
        """Return the strips with a visit whose rows have come, the earliest round first."""
        return filter(lambda strip: strip.visits and not strip.visits[0].missing, self._held)

    def _why_lease(self, now: float) -> str:
        """Return why to lease another strip, "" if not."""
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
        """Record that the answer to a push took at least this long."""
        self._way_s += (1 - KEPT_WEIGHT) * (seconds - self._way_s)

    def trained(self, seconds: float) -> None:
        """Record how long a strip took to train."""
        self._strip_s += (1 - KEPT_WEIGHT) * (seconds - self._strip_s)

    def needs_strip(self, strips: int, waiting_bytes: float, left: float) -> bool:
        """Return whether to lease another strip while `strips` are held.

        `waiting_bytes`: of the partitions of those that are not in training; `left`: the share of the work of the one
        in training that is to be done. A strip that is granted too early waits here although another worker is idle.
        """
        if strips < 1 or (strips > 1 and waiting_bytes > OWN_BYTES):
            return strips < 1
        meanwhile = math.ceil(WAYS * self._way_s / self._strip_s) if self._strip_s else 0
        return strips < min((1 if left > 0.5 else 2) + max(meanwhile - 1, 0), MOST_STRIPS)


def needs_visit(visits: int, nbytes: float) -> bool:
    """Return whether to prefetch another visit of the strip in training while `visits` of `nbytes` bytes are."""
    return visits < FEWEST_VISITS or (visits < MOST_VISITS and nbytes < VISIT_BYTES)
