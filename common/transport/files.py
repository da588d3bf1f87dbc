"""Bring a file from servers, in pieces that are checked for their place and length."""

from collections import deque
from dataclasses import dataclass
from pathlib import Path

from .. import errors
from ..client.pending import Pending
from ..protocol import messages as m
from ..storage.artifacts import MANIFEST, MAX_MANIFEST_BYTES, Manifest
from .client import POLL_MS, RequestClient

WINDOW = 2
"""Pieces that are asked of a server at a time."""


@dataclass(frozen=True)
class Served:
    """The artifacts that the servers of `client` have, as a `storage.cache.Source`."""

    client: RequestClient

    def manifest(self, folder: str = "") -> tuple[Manifest, bytes]:
        """Return the manifest of the artifact in `folder`, and its text."""
        return fetch_manifest(self.client, folder)

    def fetch(self, name: str, size: int, path: Path) -> None:
        """Write the file `name` of `size` bytes to `path`."""
        fetch(self.client, name, size, path)


def fetch_manifest(client: RequestClient, folder: str = "") -> tuple[Manifest, bytes]:
    """Return the manifest of the artifact that the first server has in `folder`, and its text; ArtifactError."""
    name, text, size = f"{folder}{MANIFEST}", b"", 1
    while len(text) < size:
        data = client.ask(0, m.GetData(name, len(text)))
        size = data.size if isinstance(data, m.Data) else 0
        if size > MAX_MANIFEST_BYTES:
            raise errors.ProtocolError(f"{client.where(0)} sent a manifest of more than {MAX_MANIFEST_BYTES >> 20} MiB")
        text += body_of(data, name, len(text), size, size - len(text))
    return Manifest.parse(text, f"the {name} that {client.where(0)} sent"), text


def fetch(client: RequestClient, name: str, size: int, path: Path) -> None:
    """Write the file `name` of `size` bytes, of which every server of `client` sends a part, to `path`."""
    offsets = iter(range(0, size, m.MAX_DATA_BYTES))
    asked: deque[tuple[int, int, Pending[m.Message]]] = deque()

    def ask(shard: int) -> None:
        if (offset := next(offsets, None)) is not None:
            pending: Pending[m.Message] = Pending()
            client.request(shard, m.GetData(name, offset), pending)
            asked.append((shard, offset, pending))

    with path.open("wb") as stream:
        for shard in list(range(len(client.channels))) * WINDOW:
            ask(shard)
        while asked:
            client.poll(POLL_MS)
            for _ in range(len(asked)):
                shard, offset, pending = piece = asked.popleft()
                if not pending.done:
                    asked.append(piece)
                    continue
                body = body_of(pending.get(), name, offset, size, size - offset)
                stream.seek(offset)
                stream.write(body)
                ask(shard)


def body_of(data: m.Message | None, name: str, offset: int, size: int, most: int) -> bytes:
    """Return the bytes, `most` or as many as a message may have, that a server has sent of a file of `size` bytes.

    Raises ProtocolError unless it is the piece from `offset` on.
    """
    most = min(m.MAX_DATA_BYTES, most)
    if not isinstance(data, m.Data) or (data.offset, data.size, len(data.body)) != (offset, size, most):
        raise errors.ProtocolError(f"a server did not send the {most} bytes of {name} from {offset} on")
    return data.body.tobytes()
