"""Put the samples of one publisher in order, detect gaps in their numbers, and fill gaps from its history. No I/O.

A late subscriber has a gap from number 1 to the first sample received; after a cut connection there is a gap from the
last sample before the cut. Samples after a gap are held back until the gap is filled or a deadline has passed, so that
every sample is released once and in order. A sample that arrives out of order fills its gap; if the gap has been closed
already, the sample is dropped and stays missing.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from glovewire.common.protocol.messages import Event, History, Message, ServerSample
from glovewire.common.protocol.wire import Numbered, decode_header, split_headers

PORT_WAIT_S = 1.0
"""How long to wait for a ServerSample, which has the request port; a server sends two per second."""
ANSWER_WAIT_S = 3.0
MAX_HELD = 50_000
FORMER_RUNS_KEPT = 16
"""Number of earlier runs at this address whose late samples are recognised and dropped."""


@dataclass(frozen=True)
class ReceivedSample:
    """A sample with its origin, the number of samples `lost` before it, and whether its publisher has `restarted`.

    `past` marks a sample that was requested from the history; it replaces `merged` samples and is the last of them.
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
class Gap:
    """Gap of `size` samples before the first sample held back; `found` of them have been received since.

    `since`: time of detection, or of the last reply. `late`: sent before this subscriber connected, so not "missed".
    """

    size: int
    since: float
    late: bool
    found: int = 0


class Reassembly:
    """Orders the stream of one address; with `history`, fills gaps by requests. Times: seconds of any steady clock."""

    def __init__(self, address: str, *, history: bool) -> None:
        self.address = address
        self.run = ""
        self.port = 0
        """The request port, 0 until it is known."""
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
        self._former_runs: deque[str] = deque(maxlen=FORMER_RUNS_KEPT)
        self._reset()

    def _reset(self) -> None:
        self._last: int | None = 0 if self._history else None
        self._gap: Gap | None = None
        self._late = True

    @property
    def lost(self) -> int:
        """Return the number of samples that are missing now."""
        return self.missed - self.filled

    @property
    def missing_after(self) -> int | None:
        """Return the number of the last sample before the gap; None if there is no gap or no known request port."""
        return self._last if self._gap is not None and self.port else None

    def receive(self, sample: Numbered, now: float) -> Iterator[ReceivedSample]:
        """Process a sample of the stream; yield the samples that are now in order."""
        if sample.run in self._former_runs:
            return
        if self.heard and sample.run != self.run:
            yield from self._restart(now)
        self.heard, self.run, self.heard_at = True, sample.run, now
        if isinstance(sample.message, ServerSample):
            self.port = sample.message.port
        self._hold(sample)
        if self._gap is not None and (self._held[0].number == self._last_number + 1 or len(self._held) > MAX_HELD):
            yield from self._close_gap(now)
        yield from self._release(now)

    def fill(self, past: History, after: int, now: float) -> Iterator[ReceivedSample]:
        """Process the reply to a request for the samples after number `after`, and yield those that were missing.

        The reply is dropped if its gap has closed meanwhile, because it says nothing about the next gap. Raises
        ProtocolError if it cannot be decoded.
        """
        gap = self._gap
        if gap is None or after != self._last or past.run != self.run:
            return
        end = self._held[0].number - 1
        for header, count in zip(split_headers(past.samples.data), past.counts.tolist(), strict=False):
            sample = decode_header(header)
            if self._last_number < sample.number <= end:
                gap.found += count
                self.filled += 0 if gap.late else count
                yield self._released(sample, past=True, merged=count)
        self._last, gap.since = max(self._last_number, min(past.last, end)), now
        if self._last in (after, end):  # no progress, or nothing left to fill
            yield from self._close_gap(now)

    def give_up(self, now: float, *, at_once: bool = False) -> Iterator[ReceivedSample]:
        """Close a gap that is past its deadline, or any gap if `at_once`; yield the samples held back behind it."""
        deadline_s = ANSWER_WAIT_S if self.port else PORT_WAIT_S
        if self._gap is not None and (at_once or now - self._gap.since > deadline_s):
            yield from self._close_gap(now)

    @property
    def _last_number(self) -> int:
        return self._last or 0

    def _hold(self, sample: Numbered) -> None:
        """Insert a sample in order among those held, unless it is a duplicate or its gap has been closed."""
        at = bisect_left(self._held, sample.number, key=lambda held: held.number)
        is_held = at < len(self._held) and self._held[at].number == sample.number
        if is_held or (self._last is not None and sample.number <= self._last):
            return
        if at == 0 and self._gap is not None:  # shorten the gap; samples missing behind this one count as the next gap
            rest = self._held[0].number - sample.number
            self._gap.size -= rest
            self.missed -= 0 if self._gap.late else rest
        self._held.insert(at, sample)

    def _release(self, now: float) -> Iterator[ReceivedSample]:
        """Yield the held samples up to the next gap."""
        while self._held and self._gap is None:
            size = 0 if self._last is None else self._held[0].number - self._last - 1
            missed = 0 if self._late else size
            self.missed += missed
            if size and self._history:
                self._gap = Gap(size, now, self._late)
            else:
                yield self._released(self._held.popleft(), lost=missed)
            self._late = False

    def _close_gap(self, now: float) -> Iterator[ReceivedSample]:
        """Yield the samples behind the gap, whether or not all of its samples were found."""
        if self._gap is not None:
            lost = 0 if self._gap.late else max(0, self._gap.size - self._gap.found)
            self._gap = None
            yield self._released(self._held.popleft(), lost=lost)
            yield from self._release(now)

    def _restart(self, now: float) -> Iterator[ReceivedSample]:
        """Yield all held samples of the former run, and expect numbers from 1 of the restarted publisher."""
        while self._gap is not None:
            yield from self._close_gap(now)
        self._former_runs.append(self.run)
        self._reset()
        self._restarted = True
        self.port, self.finished, self.failed = 0, False, None

    def _released(self, sample: Numbered, *, lost: int = 0, past: bool = False, merged: int = 1) -> ReceivedSample:
        restarted, self._restarted, self._last = self._restarted, False, sample.number
        message = sample.message
        if isinstance(message, Event) and message.kind == "finished":
            self.finished = True
        elif isinstance(message, Event) and message.kind == "failed":
            self.failed = message.text or message.subject or "no reason given"
        return ReceivedSample(self.address, sample.run, sample.number, message, lost, restarted, past, merged)
