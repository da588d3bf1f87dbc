"""Keep a downsampled history of the stream for late subscribers, in memory logarithmic in its length. No I/O.

The newest 4,096 samples of each topic are kept unchanged. Older ones are merged in pairs of one kind (of one worker, or
of the server); when there are more than 4,096 pairs, the oldest pairs are merged again, and so on: the older, the
coarser. A merged loss is the mean over the entries of both. Events, scores and what is trained are not merged: the
newest 4,096 of each are kept.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from glovewire.common.protocol import messages as m
from glovewire.common.protocol import wire

KEPT = 4096
MAX_KINDS = 1024
MAX_LEVELS = 32
"""More levels are needed only if samples do not merge (many workers with one sample each); the oldest are then lost."""
PAGE_BYTES = 1 << 20
NEVER_MERGED = ("event", "quality", "run")


@dataclass(slots=True)
class Entry:
    """The encoded header of a sample that stands for `stands_for` samples; its losses are means over `entries`."""

    number: int
    header: bytes
    kind: str
    entries: int = 0
    stands_for: int = 1


@dataclass(slots=True)
class Level:
    """Entries of one coarseness, by number; `alone`: by kind, one that waits for a second one to be merged with."""

    entries: deque[Entry] = field(default_factory=deque)
    alone: dict[str, Entry] = field(default_factory=dict)


class SampleHistory:
    """Keeps the samples sent, the newest `kept` of each topic and coarseness, and answers requests for them."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._topics: dict[str, list[Level]] = {topic: [Level()] for topic in m.TOPICS}
        self._entries_so_far: dict[str, int] = {}
        self._newest = 0

    def keep(self, number: int, sample: m.Message, header: bytes) -> None:
        """Add a sample and its encoded header; `number` must be higher than in the last call."""
        kind = str(getattr(sample, "worker", ""))
        entries = self._entries(sample) if isinstance(sample, m.LossSample) else 0
        self._newest = number
        self._put(sample.topic, 0, Entry(number, header, kind, entries))

    def answer(self, run: str, after: int) -> m.History:
        """Return the oldest samples with a number above `after`, about 1 MiB of them."""
        found = sorted((entry for entry in self._all() if entry.number > after), key=lambda entry: entry.number)
        size = 0
        for count, entry in enumerate(found):
            size += len(entry.header)
            if size > PAGE_BYTES and count:
                del found[count:]
                break
        last = found[-1].number if found else max(after, self._newest)
        counts = np.array([entry.stands_for for entry in found], np.int64)
        samples = np.frombuffer(b"".join(entry.header for entry in found), np.uint8)
        return m.History(run, last, self._newest, counts, samples)

    def _all(self) -> Iterator[Entry]:
        for levels in self._topics.values():
            for level in levels:
                yield from level.alone.values()
                yield from level.entries

    def _entries(self, sample: m.LossSample) -> int:
        """Return the entries since the previous sample of the same worker."""
        before = self._entries_so_far.pop(sample.worker, 0)
        self._entries_so_far[sample.worker] = sample.entries
        if len(self._entries_so_far) > MAX_KINDS:
            self._entries_so_far.pop(next(iter(self._entries_so_far)))
        return max(sample.entries - before, 1)

    def _put(self, topic: str, depth: int, entry: Entry) -> None:
        levels = self._topics[topic]
        if depth == MAX_LEVELS:
            return
        if depth == len(levels):
            levels.append(Level())
        level = levels[depth]
        level.entries.append(entry)
        if len(level.entries) <= self._kept:
            return
        old = level.entries.popleft()
        if topic in NEVER_MERGED:
            return
        before = level.alone.pop(old.kind, None)
        if before is not None:
            self._put(topic, depth + 1, merged(before, old))
            return
        level.alone[old.kind] = old
        if len(level.alone) > MAX_KINDS:  # many workers that come and go
            self._put(topic, depth + 1, level.alone.pop(next(iter(level.alone))))


def merged(first: Entry, second: Entry) -> Entry:
    """Return the later of two samples of one kind, standing for both: its losses are means over the entries of both."""
    both, header = first.entries + second.entries, second.header
    if both:
        older, newer = (wire.decode_header(entry.header) for entry in (first, second))
        shares = first.entries / both, second.entries / both
        means = {
            name: float(shares[0] * getattr(older.message, name) + shares[1] * getattr(newer.message, name))
            for name in ("loss", "bias_only_loss")
        }
        header = wire.encode_sample(newer.run, newer.number, replace(newer.message, **means))[-1]
    return Entry(second.number, header, second.kind, both, first.stands_for + second.stands_for)
