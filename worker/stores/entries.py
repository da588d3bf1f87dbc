"""Bring the entries of leased strips to this machine, unless it has the whole dataset."""

import logging
from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import numpy.typing as npt

from glovewire.common import errors, log
from glovewire.common.client.pending import Pending
from glovewire.common.protocol import messages as m
from glovewire.common.storage.dataset import ENTRIES, ENTRY
from glovewire.common.storage.stores import Store
from glovewire.common.storage.strip_files import StripFiles
from glovewire.common.transport.client import RequestClient
from glovewire.common.transport.files import WINDOW, body_of

STORE_PIECE_BYTES = 16 << 20

logger = logging.getLogger(__name__)


class StripEntries(Protocol):
    """Where a trainer's store gets the entries of strips from."""

    @property
    def has(self) -> npt.NDArray[np.uint8] | None:
        """Return 1 for each partition whose strip is on this machine, 0 for the others; None if all are."""

    def load(self, strip: int) -> Pending[None]:
        """Make the blocks of a strip usable; the reply is done when they are."""

    def release(self, strip: int) -> None:
        """Let the blocks of a strip go."""

    def poll(self) -> None:
        """Handle what has come by another way than the store's messages."""


class AllEntries:
    """The entries of a dataset that is on this machine: see StripEntries."""

    has = None

    def load(self, strip: int) -> Pending[None]:
        """Return a reply that is done."""
        del strip
        return Pending(None, 0)

    def release(self, strip: int) -> None:
        """Do nothing."""

    def poll(self) -> None:
        """Do nothing."""


ALL_ENTRIES = AllEntries()


@dataclass
class Piece:
    """Bytes of a strip: from `offset` on in its file here, from `place` on in the servers' file of all entries."""

    strip: int
    offset: int
    place: int
    nbytes: int


class RemoteEntries:
    """The entries that the shards of `client` send, or that are in a store, kept in `files`: see StripEntries.

    Every shard sends a part. A thread reads the store; if that fails, the shards send what is still needed.
    """

    def __init__(self, client: RequestClient, files: StripFiles, store: Store | None = None) -> None:
        self._client, self._files, self._store = client, files, store
        dataset = files.dataset
        self._size = int(dataset.manifest.files[ENTRIES]["bytes"])
        self._header = self._size - int(dataset.tiles[-1]) * ENTRY.itemsize
        self._queue: deque[Piece] = deque()
        self._asked = [0] * len(client.channels)
        self._users: Counter[int] = Counter()
        self._replies: dict[int, Pending[None]] = {}
        self._reader = ThreadPoolExecutor(1, "entries") if store is not None else None
        self._reading: dict[int, Future[None]] = {}

    @property
    def has(self) -> npt.NDArray[np.uint8] | None:
        """See StripEntries."""
        return self._files.kept.astype(np.uint8)

    def load(self, strip: int) -> Pending[None]:
        """See StripEntries. A strip may be loaded for several rounds at a time."""
        self._users[strip] += 1
        if strip not in self._replies:
            self._replies[strip] = Pending(None, 0)
            if not self._files.hold(strip):
                self._bring(strip)
        return self._replies[strip]

    def release(self, strip: int) -> None:
        """See StripEntries."""
        self._users[strip] -= 1
        if not self._users[strip]:
            del self._replies[strip]
            self._files.release(strip)

    def poll(self) -> None:
        """See StripEntries."""
        for strip in [strip for strip, future in self._reading.items() if future.done()]:
            reply = self._replies[strip]
            try:
                self._reading.pop(strip).result()
                self._files.keep(strip)
                reply.missing = 0
            except (errors.StoreError, errors.ArtifactError) as error:
                logger.warning(log.line("store_failed", why=error, then="the shards send the entries"))
                self._store = None
                self._bring(strip)
            except errors.OutputError as error:
                reply.error = error

    def close(self) -> None:
        """Let all strips go, and end the thread, after the store was closed; pieces that were written stay."""
        if self._reader is not None:
            self._reader.shutdown(cancel_futures=True)
        self._files.release_all()

    def _bring(self, strip: int) -> None:
        """Begin to bring a strip."""
        reply = self._replies[strip]
        if self._store is None or self._reader is None:
            pieces = list(self._pieces(strip, m.MAX_DATA_BYTES))
            reply.missing = len(pieces)
            self._queue.extend(pieces)
            if not pieces:
                self._files.keep(strip)
            self._ask()
        else:
            reply.missing = 1
            self._reading[strip] = self._reader.submit(self._read, self._store, strip)

    def _pieces(self, strip: int, most: int) -> Iterator[Piece]:
        """Yield the pieces of a strip, of at most `most` bytes, that are not written yet."""
        for block, start, end in self._files.places(strip):
            place = self._header + self._files.dataset.block_range(*block)[0] * ENTRY.itemsize
            for offset in range(start, end, most):
                nbytes = min(most, end - offset)
                if not self._files.is_written(strip, offset, nbytes):
                    yield Piece(strip, offset, place + offset - start, nbytes)

    # ---- from the shards

    def _ask(self) -> None:
        """Ask every shard for as many pieces as it may be asked for at a time."""
        for shard in list(range(len(self._asked))) * WINDOW:
            if self._queue and self._asked[shard] < WINDOW:
                piece = self._queue.popleft()
                self._asked[shard] += 1
                query = m.GetData(ENTRIES, piece.place, piece.nbytes)
                self._client.request(shard, query, self._replies[piece.strip], partial(self._arrived, shard, piece))

    def _arrived(self, shard: int, piece: Piece, message: m.Message) -> None:
        self._asked[shard] -= 1
        body = body_of(message, ENTRIES, piece.place, self._size, piece.nbytes)
        self._files.write(piece.strip, piece.offset, body)
        if not self._replies[piece.strip].missing:  # it was the last
            self._files.keep(piece.strip)
        self._ask()

    # ---- from the store, in its thread

    def _read(self, store: Store, strip: int) -> None:
        """Write a strip to its file."""
        for piece in self._pieces(strip, STORE_PIECE_BYTES):
            body = store.read(ENTRIES, piece.place, piece.place + piece.nbytes)
            if body is None or len(body) != piece.nbytes:
                raise errors.ArtifactError(f"{store.url}/{ENTRIES} is not there, or too short")
            self._files.write(strip, piece.offset, body)
