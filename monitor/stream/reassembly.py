"""What is known of one publisher: its run, its numbers, what it lost. Fills holes in its numbers from its past. Pure.

Who comes late has a hole in the numbers from 1 to the first one heard; who was cut off has one from the last. Both are
the same here: what comes after a hole is held back until the hole is filled, or nobody answers, so that samples are
handed over in their order and each once. A sample that was overtaken on its way fills its hole by itself; when its turn
is over, it is dropped, and stays missing. It must never hold back for longer than its deadlines say.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from glovewire.common.protocol.messages import Event, History, Message, ServerSample
from glovewire.common.protocol.wire import Numbered, decode_header, split_headers

PORT_WAIT_S = 1.0
"""For a sample that says where to ask: a server sends two a second."""
ANSWER_WAIT_S = 3.0
MAX_HELD = 50_000
LIVES_KEPT = 16
"""Former lives of the run whose late samples are known as such."""


@dataclass(frozen=True)
class Received:
    """A sample, whence it came, how many before it were lost, and whether its publisher has started anew.

    `past` when it was not heard but asked for; it then stands for `merged` samples, of which it is the last.
    """

    address: str
    run: str
    number: int
    message: Message
    lost: int = 0
    restarted: bool = False
    past: bool = False
    merged: int = 1


@dataclass
class Hole:
    """`size` samples are missing before the first one that is held back, since `since`; `found` of them came by now.

    `late` when they were sent before this subscriber came: such are past, not missed.
    """

    size: int
    since: float
    late: bool
    found: int = 0


class Source:
    """One publish address; `history` is whether its past is asked for. Times are seconds of any steady clock."""

    def __init__(self, address: str, *, history: bool) -> None:
        self.address = address
        self.run = ""
        self.port: int | None = None
        self.heard = False
        self.heard_at = 0.0
        self.missed = 0
        self.filled = 0
        self.refused = 0
        self.finished = False
        self.failed: str | None = None
        self._history = history
        self._restarted = False
        self._held: deque[Numbered] = deque()
        self._lives: deque[str] = deque(maxlen=LIVES_KEPT)
        self._forget()

    def _forget(self) -> None:
        self._last: int | None = 0 if self._history else None
        self._hole: Hole | None = None
        self._late = True

    @property
    def lost(self) -> int:
        """Samples that are known to be missing now."""
        return self.missed - self.filled

    @property
    def wanted(self) -> int | None:
        """The number after which samples are missing and can be asked for; None when there is nothing to ask."""
        return self._last if self._hole is not None and self.port else None

    def take(self, sample: Numbered, now: float) -> Iterator[Received]:
        """A sample was heard: what can be handed over now."""
        if sample.run in self._lives:
            return
        if self.heard and sample.run != self.run:
            yield from self._begin_anew(now)
        self.heard, self.run, self.heard_at = True, sample.run, now
        if isinstance(sample.message, ServerSample):
            self.port = sample.message.port
        self._put(sample)
        if self._hole is not None and (self._held[0].number == self._last_number + 1 or len(self._held) > MAX_HELD):
            yield from self._close(now)
        yield from self._advance(now)

    def fill(self, past: History, now: float) -> Iterator[Received]:
        """The answer to a question for what comes after `wanted`; raises ProtocolError when it is none."""
        hole, after = self._hole, self._last
        if hole is None or after is None or past.run != self.run:
            return
        end = self._held[0].number - 1
        for header, count in zip(split_headers(past.samples.data), past.counts.tolist(), strict=False):
            sample = decode_header(header)
            if self._last_number < sample.number <= end:
                hole.found += count
                self.filled += 0 if hole.late else count
                yield self._received(sample, past=True, merged=count)
        self._last, hole.since = max(self._last_number, min(past.last, end)), now
        if self._last in (after, end):  # nothing more comes, or there is nothing more
            yield from self._close(now)

    def give_up(self, now: float, *, at_once: bool = False) -> Iterator[Received]:
        """Hand over what was held back for too long, or `at_once`."""
        patience = ANSWER_WAIT_S if self.port else PORT_WAIT_S
        if self._hole is not None and (at_once or now - self._hole.since > patience):
            yield from self._close(now)

    @property
    def _last_number(self) -> int:
        return self._last or 0

    def _put(self, sample: Numbered) -> None:
        """Hold a sample in its place, once. What has been handed over or given up has none any more."""
        at = bisect_left(self._held, sample.number, key=_number)
        there = at < len(self._held) and self._held[at].number == sample.number
        if there or (self._last is not None and sample.number <= self._last):
            return
        if at == 0 and self._hole is not None:  # it ends here now; what is missing behind it counts in its turn
            ends_sooner = self._held[0].number - sample.number
            self._hole.size -= ends_sooner
            self.missed -= 0 if self._hole.late else ends_sooner
        self._held.insert(at, sample)

    def _advance(self, now: float) -> Iterator[Received]:
        """Hand over what is held, up to a hole."""
        while self._held and self._hole is None:
            size = 0 if self._last is None else self._held[0].number - self._last - 1
            self.missed += 0 if self._late else size
            if size and self._history:
                self._hole = Hole(size, now, self._late)
            else:
                yield self._received(self._held.popleft(), lost=0 if self._late else size)
            self._late = False

    def _close(self, now: float) -> Iterator[Received]:
        """Go on behind the hole, whatever of it was found."""
        if self._hole is not None:
            lost = 0 if self._hole.late else max(0, self._hole.size - self._hole.found)
            self._hole = None
            yield self._received(self._held.popleft(), lost=lost)
            yield from self._advance(now)

    def _begin_anew(self, now: float) -> Iterator[Received]:
        """The publisher has: its numbers begin again."""
        while self._hole is not None:
            yield from self._close(now)
        self._lives.append(self.run)
        self._forget()
        self._restarted = True
        self.port, self.finished, self.failed = None, False, None

    def _received(self, sample: Numbered, *, lost: int = 0, past: bool = False, merged: int = 1) -> Received:
        restarted, self._restarted, self._last = self._restarted, False, sample.number
        self._note_ending(sample.message)
        return Received(self.address, sample.run, sample.number, sample.message, lost, restarted, past, merged)

    def _note_ending(self, message: Message) -> None:
        if isinstance(message, Event) and message.kind == "finished":
            self.finished = True
        elif isinstance(message, Event) and message.kind == "failed":
            self.failed = message.text or message.subject or "no reason given"


def _number(sample: Numbered) -> int:
    return sample.number
