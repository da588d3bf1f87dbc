"""Download the entries of leased strips to this machine, unless it has the whole dataset."""

import logging
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import numpy as np
import numpy.typing as npt

from glovewire.common import errors, log
from glovewire.common.client.pending import Pending
from glovewire.common.protocol import messages as m
from glovewire.common.storage.dataset import ENTRIES, ENTRY
from glovewire.common.storage.stores import Store
from glovewire.common.storage.strip_files import StripFiles
from glovewire.common.transport.client import RequestClient
from glovewire.common.transport.files import FileRequests, Piece

STORE_PIECE_BYTES = 16 << 20

logger = logging.getLogger(__name__)


class StripEntries:
    """Source of the entries of strips for a trainer; this base class serves a dataset that is complete and local."""

    @property
    def has(self) -> npt.NDArray[np.uint8] | None:
        """Return 1 for each partition whose strip is on this machine, 0 for each other; None if all are."""
        return None

    def load(self, strip: int) -> Pending[None]:
        """Make the blocks of a strip usable until `release`; the reply is done once they are usable."""
        del strip
        return Pending(None, 0)

    def release(self, strip: int) -> None:
        """Release the blocks of a strip."""

    def poll(self) -> None:
        """Handle entries that arrived otherwise than in messages from servers."""


ALL_ENTRIES = StripEntries()


class RemoteEntries(StripEntries):
    """Entries from the shards of `client` or from a store, kept in `files`.

    A thread reads the store; if that fails, the shards send what is still missing.
    """

    def __init__(self, client: RequestClient, files: StripFiles, store: Store | None = None) -> None:
        self._files, self._store = files, store
        size = int(files.dataset.manifest.files[ENTRIES]["bytes"])
        self._header = size - int(files.dataset.tiles[-1]) * ENTRY.itemsize
        self._requests = FileRequests(client, ENTRIES, size)
        self._users: Counter[int] = Counter()
        self._replies: dict[int, Pending[None]] = {}
        self._reader = ThreadPoolExecutor(1, "entries")
        self._reading: dict[int, Future[None]] = {}

    @property
    def has(self) -> npt.NDArray[np.uint8] | None:
        """See StripEntries."""
        return self._files.kept.astype(np.uint8)

    def load(self, strip: int) -> Pending[None]:
        """See StripEntries. A strip may be loaded for several rounds at once."""
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
        """Take over the strips that the thread has read."""
        for strip in [strip for strip, future in self._reading.items() if future.done()]:
            reply = self._replies[strip]
            reply.missing = 0
            try:
                self._reading.pop(strip).result()
                self._files.keep(strip)
            except (errors.StoreError, errors.ArtifactError) as error:
                logger.warning(log.line("store_failed", why=error, then="the shards send the entries"))
                self._store = None
                self._bring(strip)
            except errors.OutputError as error:
                reply.error = error

    def close(self) -> None:
        """Release all strips and end the thread; call it after closing the store. Pieces already written stay."""
        self._requests.close()
        self._reader.shutdown(cancel_futures=True)
        self._files.release_all()

    def _bring(self, strip: int) -> None:
        """Begin to download a strip."""
        reply = self._replies[strip]
        if self._store is not None:
            reply.missing = 1
            self._reading[strip] = self._reader.submit(self._read, self._store, strip)
            return
        for offset, place, nbytes in self._spans(strip, m.MAX_DATA_BYTES):
            self._requests.request(Piece(place, nbytes, reply, partial(self._arrived, strip, offset)))
        if not reply.missing:  # all pieces were written before this worker had to rejoin
            self._files.keep(strip)

    def _spans(self, strip: int, most: int) -> Iterator[tuple[int, int, int]]:
        """Yield the parts of a strip, of at most `most` bytes, that are not written yet.

        Each is (offset in the strip's local file, offset in the file of all entries, number of bytes).
        """
        for block, start, end in self._files.places(strip):
            first = self._header + self._files.dataset.block_range(*block)[0] * ENTRY.itemsize
            for offset in range(start, end, most):
                nbytes = min(most, end - offset)
                if not self._files.is_written(strip, offset, nbytes):
                    yield offset, first + offset - start, nbytes

    def _arrived(self, strip: int, offset: int, body: bytes) -> None:
        self._files.write(strip, offset, body)
        if not self._replies[strip].missing:  # this was the last piece
            self._files.keep(strip)

    def _read(self, store: Store, strip: int) -> None:
        """Read a strip from the store and write it to its file; runs in the thread."""
        for offset, place, nbytes in self._spans(strip, STORE_PIECE_BYTES):
            body = store.read(ENTRIES, place, place + nbytes)
            if body is None or len(body) != nbytes:
                raise errors.ArtifactError(f"{store.url}/{ENTRIES} is missing or too short")
            self._files.write(strip, offset, body)
