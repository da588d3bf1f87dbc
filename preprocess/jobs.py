"""What worker processes do: tokenise blocks, count pairs in streams, add up buckets.

Each job writes what it has done to the scratch folder in committed pieces, at its end and now and then before it, so
that a run can be resumed. Processes and pipes are `pool`'s affair.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from glovewire.common.errors import CorpusError

from .corpus.readers import Batch, batches, fault
from .corpus.splits import Block
from .counts.cell_keys import Arrangement
from .counts.cooccurrence import PairCounter, Weighting
from .counts.reduce import Reducer
from .counts.spill import Spill, load, save, write_raw
from .parallel.scratch import COUNTED, PART, SEGMENT, Scratch
from .tokens.encoder import Counts, Encoder, NulByte
from .tokens.nltk_tokens import make_tokenizer
from .tokens.string_table import Ids

# Places of words: the block's number above these bits, the index in the block's stream below.
_PLACE_BITS = 36
_COMMIT_EVERY_S = 60.0
_COUNT_FIELDS = ("numbers", "counts", "first", "data", "bounds")


class Slice(NamedTuple):
    """A block's part of a segment's stream: words [start, stop)."""

    segment: str
    block: int
    start: int
    stop: int


class _Committing:
    """Names for pieces, and when the next one is due."""

    def __init__(self, kind: str) -> None:
        self._kind, self._made = kind, 0
        self.renew()

    def renew(self) -> None:
        self._made += 1
        self.name = f"{self._kind}-{time.time_ns():x}-{os.getpid()}-{self._made}"
        self._since = time.monotonic()

    @property
    def due(self) -> bool:
        return time.monotonic() - self._since > _COMMIT_EVERY_S


@dataclass(frozen=True)
class EncodeSettings:
    """How to tokenise: `memo_bytes` bounds the memo, `longest` a line, both in bytes."""

    tokenizer: str
    text_column: str
    longest: int
    memo_bytes: int


class EncodeJob:
    """Blocks to streams: segments of `NAME.stream` (int32, see Encoder.encode) and the counts of their words."""

    def __init__(self, scratch: Scratch, settings: EncodeSettings, encoder: Encoder | None = None) -> None:
        self._scratch, self._settings = scratch, settings
        self._encoder = encoder or Encoder(make_tokenizer(settings.tokenizer))
        self._piece = _Committing(SEGMENT)
        self._begin()

    def do(self, block: Block) -> int:
        """Tokenise a block; its size in bytes."""
        start, index = self._written, 0
        for batch in batches(block, self._settings.text_column, self._settings.longest):
            ids = self._encode(block, batch, (block.ordinal << _PLACE_BITS) + index)
            write_raw(self._stream, ids)
            index += len(ids)
            self._lines += len(batch.starts)
        self._written += index
        self._slices.append((block.ordinal, start, self._written))
        full = self._encoder.nbytes > self._settings.memo_bytes
        if full or self._piece.due:
            self._commit()
        if full:
            self._encoder.forget()
        return block.nbytes

    def finish(self) -> int:
        """Commit what is left."""
        self._commit()
        self._stream.close()
        self._path.unlink()
        return 0

    def _encode(self, block: Block, batch: Batch, place: int) -> Ids:
        try:
            return self._encoder.encode(batch.text, batch.starts, batch.stops, place)
        except (UnicodeDecodeError, NulByte, TimeoutError) as error:  # NLTK gives up on a text after some seconds
            raise fault(block, batch, str(error)) from error

    def _begin(self) -> None:
        self._path = self._scratch.folder / f"{self._piece.name}.stream"
        self._stream = self._path.open("wb")
        self._written, self._lines = 0, 0
        self._slices: list[tuple[int, int, int]] = []

    def _commit(self) -> None:
        if self._slices:
            self._stream.close()
            counts = self._encoder.take_counts()
            for field in _COUNT_FIELDS:
                save(self._scratch.folder / f"{self._piece.name}.{field}.npy", getattr(counts, field))
            facts = {
                "slices": self._slices,
                "lines": self._lines,
                "tokens": int(counts.counts.sum()),
                "last_number": int(counts.numbers[-1]) if len(counts.numbers) else 0,
                "counts_bytes": sum(getattr(counts, field).nbytes for field in _COUNT_FIELDS),
            }
            self._scratch.commit(self._piece.name, facts)
            self._piece.renew()
            self._begin()


def load_counts(scratch: Scratch, segment: str) -> Counts:
    """The counts of a committed segment."""
    return Counts(*(load(scratch.folder / f"{segment}.{field}.npy") for field in _COUNT_FIELDS))


def ranks_path(scratch: Scratch, segment: str) -> Path:
    """Where the frequency ranks of a segment's word numbers are, int32."""
    return scratch.folder / f"{segment}.ranks.npy"


@dataclass(frozen=True)
class CountSettings:
    """How to count: the side of the dense square and the records held at once."""

    arrangement: Arrangement
    by_rank: Ids
    window: int
    weighting: Weighting
    hot: int
    room: int

    def counter(self) -> PairCounter:
        """A counter for these settings."""
        return PairCounter(self.arrangement, self.by_rank, self.window, self.weighting, self.hot, self.room)


class CountJob:
    """Slices of streams to spilled runs and cells."""

    def __init__(self, scratch: Scratch, settings: CountSettings) -> None:
        self._scratch, self._spill = scratch, Spill(scratch.folder)
        self._counter = settings.counter()
        self._ranks: dict[str, Ids] = {}
        self._piece = _Committing(COUNTED)
        self._slices: list[Slice] = []
        self._runs = 0

    def do(self, piece: Slice) -> int:
        """Count a slice; the length of its stream."""
        ranks = self._ranks_of(piece.segment)
        path = self._scratch.folder / f"{piece.segment}.stream"
        stream = np.fromfile(path, np.int32, piece.stop - piece.start, offset=4 * piece.start)
        while len(stream):
            stream = stream[self._counter.add(stream, ranks) :]
            if len(stream):
                self._write_run()
        self._slices.append(piece)
        if self._piece.due:
            self._commit()
        return piece.stop - piece.start

    def finish(self) -> int:
        """Commit what is left."""
        if self._slices:
            self._commit()
        return 0

    def _ranks_of(self, segment: str) -> Ids:
        if segment not in self._ranks:
            self._ranks = {segment: load(ranks_path(self._scratch, segment))}
        return self._ranks[segment]

    def _write_run(self) -> None:
        self._spill.add_run(f"{self._piece.name}.{self._runs}", *self._counter.take_records())
        self._runs += 1

    def _commit(self) -> None:
        self._write_run()
        self._spill.add_cells(f"{self._piece.name}.square", *self._counter.take_square())
        self._scratch.commit(self._piece.name, {"slices": self._slices})
        self._piece.renew()
        self._slices, self._runs = [], 0


class ReduceJob:
    """Ranges of buckets to finished entries: `NAME.entries` (dtype ENTRY) and `NAME.tiles.npy`, int64 (tiles, 2).

    `corpus` is its name in messages.
    """

    def __init__(self, scratch: Scratch, arrangement: Arrangement, reducer: Reducer, scale: int, corpus: str) -> None:
        self._scratch, self._arrangement = scratch, arrangement
        self._reducer, self._scale, self._corpus = reducer, scale, corpus

    def do(self, buckets: tuple[int, int]) -> int:
        """Finish buckets [first, last); how many they are. CorpusError for a sum that float32 does not hold."""
        first, last = buckets
        keys, sums = self._reducer.reduce(first, last)
        name = f"{PART}-{first:08d}"
        with np.errstate(over="ignore"):
            values = (sums / self._scale).astype(np.float32)
        if not np.isfinite(values).all():
            raise CorpusError(f"{self._corpus}: a pair's weights add up to more than float32 holds")
        entries = self._arrangement.entries(keys, values)
        with (self._scratch.folder / f"{name}.entries").open("wb") as stream:
            write_raw(stream, entries)
        tiles, counts = np.unique(self._arrangement.tiles_of(keys), return_counts=True)
        save(self._scratch.folder / f"{name}.tiles.npy", np.stack([tiles, counts]).T)
        diagonal = self._arrangement.on_diagonal(keys)
        facts = {
            "first": first,
            "last": last,
            "stored": len(keys),
            "diagonal": int(diagonal.sum()),
            "sum": _number(sums),
            "diagonal_sum": _number(sums[diagonal]),
        }
        self._scratch.commit(name, facts)
        return last - first

    def finish(self) -> int:
        """Nothing is left to do."""
        return 0


def _number(sums: npt.NDArray[Any]) -> int | float:
    total: int | float = sums.sum().item()
    return total
