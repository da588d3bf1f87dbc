"""Download files from servers, in pieces whose offset and length are checked."""

from collections import deque
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from .. import errors
from ..client.pending import Pending
from ..protocol import messages as m
from ..storage.artifacts import MANIFEST, MAX_MANIFEST_BYTES, Manifest
from .client import POLL_MS, RequestClient

WINDOW = 2
"""Number of pieces requested from a server at a time."""


@dataclass(frozen=True)
class Served:
    """The artifacts that the servers of `client` have, as a `storage.cache.Source`."""

    client: RequestClient

    def manifest(self, folder: str = "") -> tuple[Manifest, bytes]:
        """Return the manifest of the artifact that the first server has in `folder`, and its text; ArtifactError."""
        name, text, size = f"{folder}{MANIFEST}", b"", 1
        while len(text) < size:
            data = self.client.ask(0, m.GetData(name, len(text)))
            size = data.size if isinstance(data, m.Data) else 0
            if size > MAX_MANIFEST_BYTES:
                most = f"{MAX_MANIFEST_BYTES >> 20} MiB"
                raise errors.ProtocolError(f"{self.client.where(0)} sent a manifest of more than {most}")
            text += _body(data, name, len(text), size, size - len(text))
        return Manifest.parse(text, f"the {name} that {self.client.where(0)} sent"), text

    def fetch(self, name: str, size: int, path: Path) -> None:
        """Write the file `name` of `size` bytes to `path`; every server sends a part of it."""
        reply: Pending[None] = Pending(None, 0)
        with path.open("wb") as stream, closing(FileRequests(self.client, name, size)) as requests:

            def put(offset: int, body: bytes) -> None:
                stream.seek(offset)
                stream.write(body)

            for offset in range(0, size, m.MAX_DATA_BYTES):
                requests.request(Piece(offset, min(m.MAX_DATA_BYTES, size - offset), reply, partial(put, offset)))
            while not reply.done:
                self.client.poll(POLL_MS)
            reply.get()


class Piece(NamedTuple):
    """Bytes of a file, starting at `offset`, to be passed to `take`; `reply` waits for them."""

    offset: int
    nbytes: int
    reply: Pending[Any]
    take: Callable[[bytes], None]


class FileRequests:
    """Requests for pieces of the file `name`, which has `size` bytes; every server of `client` sends a part of them."""

    def __init__(self, client: RequestClient, name: str, size: int) -> None:
        self._client, self._name, self._size = client, name, size
        self._queue: deque[Piece] = deque()
        self._asked = [0] * len(client.channels)
        self._closed = False

    def request(self, piece: Piece) -> None:
        """Request a piece as soon as a server has room in its window; its `reply` fails if another piece arrives."""
        piece.reply.missing += 1
        self._queue.append(piece)
        self._ask()

    def close(self) -> None:
        """Request no more pieces, and ignore those in flight."""
        self._closed = True
        self._queue.clear()

    def _ask(self) -> None:
        for shard in list(range(len(self._asked))) * WINDOW:
            if self._queue and self._asked[shard] < WINDOW:
                piece = self._queue.popleft()
                self._asked[shard] += 1
                query = m.GetData(self._name, piece.offset, piece.nbytes)
                self._client.request(shard, query, piece.reply, partial(self._arrived, shard, piece))

    def _arrived(self, shard: int, piece: Piece, message: m.Message) -> None:
        if not self._closed:
            self._asked[shard] -= 1
            piece.take(_body(message, self._name, piece.offset, self._size, piece.nbytes))
            self._ask()


def _body(data: m.Message | None, name: str, offset: int, size: int, most: int) -> bytes:
    """Return the bytes in a server's reply: `most` of a file of `size` bytes, or as many as a message may have.

    Raises ProtocolError unless they are the piece that starts at `offset`.
    """
    most = min(m.MAX_DATA_BYTES, most)
    if not isinstance(data, m.Data) or (data.offset, data.size, len(data.body)) != (offset, size, most):
        raise errors.ProtocolError(f"a server did not send the {most} bytes of {name} from {offset} on")
    return data.body.tobytes()
