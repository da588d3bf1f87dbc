"""Define the jobs of worker processes: tokenise splits, count pairs in streams, add up buckets.

Each job commits its results to the scratch folder piece by piece, so that an interrupted run can be resumed.
"""

import os
import time

import numpy as np

from glovewire.common.array_types import Ids
from glovewire.common.errors import CorpusError
from glovewire.common.storage.artifacts import load_array

from .config import PreprocessConfig
from .corpus.readers import LineBatch, read_batches, text_error
from .corpus.splits import InputSplit
from .counts.cell_keys import CellKeys
from .counts.cooccurrence import PairCounter
from .counts.reduce import Reducer
from .counts.spill import Spill, save
from .parallel.pool import Job
from .parallel.scratch import COUNTED, PART, SEGMENT, ScratchFolder
from .segments import PLACE_BITS, StreamSlice, array_path, commit, read_slice, stream_path
from .tokens.encoder import Encoder, NulByte

COMMIT_EVERY_S = 60.0
RANKS = "ranks"
"""Name of a segment's array of the frequency ranks of its words, int32."""


def _new_piece(kind: str) -> tuple[str, float]:
    """Return a unique name for a piece that is begun now, and the time after which to commit it."""
    return f"{kind}-{time.time_ns():x}-{os.getpid()}", time.monotonic() + COMMIT_EVERY_S


class EncodeJob:
    """Turns input splits into segments: `NAME.stream` (int32, see Encoder.encode) and the counts of its words."""

    def __init__(self, scratch: ScratchFolder, encoder: Encoder, config: PreprocessConfig) -> None:
        self._scratch, self._encoder, self._config = scratch, encoder, config
        self._memo_bytes = config.share * 4 // 10  # growing and writing the memo takes as much again
        self._begin()

    def do(self, split: InputSplit) -> int:
        """Tokenise a split and return its size in bytes."""
        start, index = self._written, 0
        for batch in read_batches(split, self._config.text_column, self._config.longest_line):
            ids = self._encode(split, batch, (split.ordinal << PLACE_BITS) + index)
            self._stream.write(ids.data)  # numpy's own `tofile` does not say that the disk is full
            index += len(ids)
            self._lines += len(batch.starts)
        self._written += index
        self._slices.append((split.ordinal, start, self._written))
        is_full = self._encoder.nbytes > self._memo_bytes
        if is_full or time.monotonic() > self._commit_at:
            self._commit()
        if is_full:
            self._encoder.clear()
        return split.nbytes

    def finish(self) -> None:
        """Commit the last piece."""
        self._commit()
        self._stream.close()
        self._path.unlink()

    def _encode(self, split: InputSplit, batch: LineBatch, place: int) -> Ids:
        try:
            return self._encoder.encode(batch.text, batch.starts, batch.stops, place)
        except (UnicodeDecodeError, NulByte, TimeoutError) as error:  # NLTK gives up on a text after some seconds
            raise text_error(split, batch, str(error)) from error

    def _begin(self) -> None:
        self._name, self._commit_at = _new_piece(SEGMENT)
        self._path = stream_path(self._scratch, self._name)
        self._stream = self._path.open("wb")
        self._written, self._lines = 0, 0
        self._slices: list[tuple[int, int, int]] = []

    def _commit(self) -> None:
        if not self._slices:
            return
        self._stream.close()
        commit(self._scratch, self._name, self._encoder.take_counts(), self._slices, self._lines)
        self._begin()


class CountJob:
    """Turns slices of streams into runs and cells of the spill."""

    def __init__(self, scratch: ScratchFolder, counter: PairCounter) -> None:
        self._scratch, self._spill, self._counter = scratch, Spill(scratch.folder), counter
        self._ranks: dict[str, Ids] = {}
        self._begin()

    def do(self, piece: StreamSlice) -> int:
        """Count the pairs of a slice and return its length, ends of lines included."""
        if piece.segment not in self._ranks:
            self._ranks = {piece.segment: load_array(array_path(self._scratch, piece.segment, RANKS))}
        ranks = self._ranks[piece.segment]
        stream = read_slice(self._scratch, piece)
        while len(stream):
            stream = stream[self._counter.add(stream, ranks) :]
            if len(stream):
                self._write_run()
        self._slices.append(piece)
        if time.monotonic() > self._commit_at:
            self._commit()
        return piece.stop - piece.start

    def finish(self) -> None:
        """Commit the last piece."""
        if self._slices:
            self._commit()

    def _begin(self) -> None:
        self._name, self._commit_at = _new_piece(COUNTED)
        self._slices: list[StreamSlice] = []
        self._runs = 0

    def _write_run(self) -> None:
        self._spill.add_run(f"{self._name}.{self._runs}", *self._counter.take_records())
        self._runs += 1

    def _commit(self) -> None:
        self._write_run()
        self._spill.add_cells(f"{self._name}.square", *self._counter.take_square())
        self._scratch.commit(self._name, {"slices": self._slices})
        self._begin()


class ReduceJob(Job):
    """Turns ranges of buckets into entries: `NAME.entries` (dtype ENTRY) and `NAME.tiles.npy`, int64 (tiles, 2).

    A row of the tiles is a tile's number and its number of entries; `corpus` names the corpus in error messages.
    """

    def __init__(self, scratch: ScratchFolder, cell_keys: CellKeys, reducer: Reducer, corpus: str) -> None:
        self._scratch, self._cell_keys, self._reducer, self._corpus = scratch, cell_keys, reducer, corpus

    def do(self, buckets: tuple[int, int]) -> int:
        """Reduce buckets [first, last) and return their number; CorpusError if a sum overflows float32."""
        first, last = buckets
        keys, sums = self._reducer.reduce(first, last)
        name = f"{PART}-{first:08d}"
        with np.errstate(over="ignore"):
            values = (sums / self._reducer.scale).astype(np.float32)
        if not np.isfinite(values).all():
            raise CorpusError(f"{self._corpus}: a pair's weights add up to more than float32 holds")
        with (self._scratch.folder / f"{name}.entries").open("wb") as stream:
            entries = self._cell_keys.entries(keys, values)
            stream.write(entries.data)
        save(self._scratch.folder / f"{name}.tiles.npy", np.stack(self._cell_keys.tiles_of(keys)).T)
        diagonal = self._cell_keys.on_diagonal(keys, entries)
        facts = {
            "first": first,
            "last": last,
            "stored": len(keys),
            "diagonal": int(diagonal.sum()),
            "sum": sums.sum().item(),
            "diagonal_sum": sums[diagonal].sum().item(),
        }
        self._scratch.commit(name, facts)
        return last - first
