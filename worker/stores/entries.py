"""Bring the entries of leased strips to this machine, unless it has the whole dataset."""

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import numpy.typing as npt

from glovewire.common.client.pending import Pending
from glovewire.common.protocol import messages as m
from glovewire.common.storage.dataset import ENTRIES, ENTRY
from glovewire.common.storage.strip_files import StripFiles
from glovewire.common.transport.client import RequestClient
from glovewire.common.transport.files import WINDOW, body_of


class StripEntries(Protocol):
    """Where a trainer's store gets the entries of strips from."""

    @property
    def has(self) -> npt.NDArray[np.uint8] | None:
        """Return 1 for each partition whose strip is on this machine, 0 for the others; None if all are."""

    def load(self, strip: int) -> Pending[None]:
        """Make the blocks of a strip usable; the reply is done when they are."""

    def release(self, strip: int) -> None:
        """Let the blocks of a strip go."""


class AllEntries:
    """The entries of a dataset that is on this machine: see StripEntries."""

    has = None

    def load(self, strip: int) -> Pending[None]:
        """Return a reply that is done."""
        del strip
        return Pending(None, 0)

    def release(self, strip: int) -> None:
        """Do nothing."""


ALL_ENTRIES = AllEntries()


@dataclass
class Piece:
    """Bytes of a strip: from `offset` on in its file here, from `place` on in the servers' file of all entries."""

    strip: int
    offset: int
    place: int
    nbytes: int


class ServedEntries:
    """The entries that the shards of `client` send, kept in `files`: see StripEntries. Every shard sends a part."""

    def __init__(self, client: RequestClient, files: StripFiles) -> None:
        self._client, self._files = client, files
        dataset = files.dataset
        self._size = int(dataset.manifest.files[ENTRIES]["bytes"])
        self._header = self._size - int(dataset.tiles[-1]) * ENTRY.itemsize
        self._queue: deque[Piece] = deque()
        self._asked = [0] * len(client.channels)
        self._users: Counter[int] = Counter()
        self._replies: dict[int, Pending[None]] = {}

    @property
    def has(self) -> npt.NDArray[np.uint8] | None:
        """See StripEntries."""
        return self._files.kept.astype(np.uint8)

    def load(self, strip: int) -> Pending[None]:
        """See StripEntries. A strip may be loaded for several rounds at a time."""
        self._users[strip] += 1
        if strip not in self._replies:
            pieces = [] if self._files.hold(strip) else list(self._pieces(strip))
            self._replies[strip] = Pending(None, len(pieces))
            self._queue.extend(pieces)
            self._ask()
        return self._replies[strip]

    def release(self, strip: int) -> None:
        """See StripEntries."""
        self._users[strip] -= 1
        if not self._users[strip]:
            del self._replies[strip]
            self._files.release(strip)

    def _pieces(self, strip: int) -> Iterator[Piece]:
        for block, start, end in self._files.places(strip):
            place = self._header + self._files.dataset.block_range(*block)[0] * ENTRY.itemsize
            for offset in range(start, end, m.MAX_DATA_BYTES):  # none for a block without entries
                yield Piece(strip, offset, place + offset - start, min(m.MAX_DATA_BYTES, end - offset))

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
