"""What one connection to the socket for other shards may cost: those that abuse it are cut, and shards are answered."""

from __future__ import annotations

import json
import struct
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest
import strangers
from processes import until
from strangers import is_shut, send_until_shut, shaken

from glovewire.common.errors import ArtifactError
from glovewire.common.model.options import TrainingOptions
from glovewire.common.protocol import messages as m
from glovewire.common.protocol import wire
from glovewire.common.storage.artifacts import MANIFEST
from glovewire.common.transport import sockets
from glovewire.common.transport.client import RequestClient
from glovewire.server import peers
from glovewire.server.config import ServerConfig
from glovewire.server.limits import MAX_ERRORS, PEER_BYTES, STRANGER_BYTES
from glovewire.server.peer_socket import CONNECTIONS_PER_SHARD, MAX_REQUEST_BYTES, PeerSocket

MIB = 1 << 20
LOCAL = "tcp://127.0.0.1:0"


class Other:
    """A shard's socket that answers every request with a mebibyte, and counts them."""

    def __init__(self) -> None:
        self.answered = 0
        self.socket = PeerSocket(LOCAL, None, 2, self._answer)
        self.address = self.socket.address

    def _answer(self, frames: list[wire.Frame]) -> tuple[int, m.Message]:
        self.answered += 1
        return wire.decode(frames[1:]).number, m.Data(0, MIB, np.zeros(MIB, np.uint8))


def serving(socket: PeerSocket) -> Iterator[None]:
    over = threading.Event()
    thread = threading.Thread(target=socket.serve, args=(over.is_set,))
    thread.start()
    yield
    over.set()
    thread.join()
    socket.close()


@pytest.fixture
def other() -> Iterator[Other]:
    other = Other()
    for _ in serving(other.socket):
        yield other


def is_answered(address: str) -> bool:
    with RequestClient([address], "shard-1", silence_s=20.0) as client:
        return isinstance(client.ask(0, m.GetFolder()), m.Data)


@pytest.mark.parametrize("endless", [False, True], ids=["a frame that is too large", "frames without end"])
def test_a_message_that_does_not_end_is_cut(other: Other, *, endless: bool) -> None:
    """Seen to fail: the shard held all that came of the frames without end."""
    piece = strangers.frame(bytes(MAX_REQUEST_BYTES), more=True) if endless else bytes(MIB)
    with shaken(other.address) as stranger:
        begins = b"" if endless else struct.pack(">BQ", 2, MAX_REQUEST_BYTES + 1)
        send_until_shut(stranger, begins, *[piece] * (20 * STRANGER_BYTES // len(piece)))
        assert is_shut(stranger)
    assert is_answered(other.address)


def test_one_that_reads_no_replies_gets_few(other: Other) -> None:
    with shaken(other.address) as stranger:
        request = [bytes(frame) for frame in (b"", *wire.encode(1, m.GetFolder()))]
        sent = b"".join(strangers.frame(frame, more=frame is not request[-1]) for frame in request)
        most = 4 * PEER_BYTES // MIB
        stranger.sendall(sent * 3 * most)
        until(lambda: other.answered >= most, "it is answered")
        assert is_answered(other.address)
        assert other.answered <= 2 * most


def test_unreadable_messages_end_the_connection(tmp_path: Path) -> None:
    apart = (LOCAL, "tcp://127.0.0.1:9")
    config = ServerConfig(dataset=tmp_path, out=tmp_path / "run", shards=2, peers=apart, options=TrainingOptions(dim=4))
    with closing(peers.Peers(config, None)) as shard:
        address = shard._socket.address
        with shaken(address) as stranger:
            with suppress(OSError):
                for _ in range(MAX_ERRORS + 1):
                    stranger.sendall(strangers.frame(b"", more=True) + strangers.frame(b"nonsense", more=False))
            assert is_shut(stranger)
        with RequestClient([address], "shard-1", silence_s=20.0) as client:
            folder = client.ask(0, m.GetFolder())
            assert isinstance(folder, m.Folder)
            assert json.loads(folder.body.tobytes())["parts"] == {}


def test_a_descriptor_that_belongs_to_another_peer_by_now_is_not_shut() -> None:
    """A banned peer has left, and its last message is read when another one has its descriptor."""
    socket = PeerSocket(LOCAL, None, 2, lambda _: (0, m.Refused("", "")))
    try:
        with shaken(socket.address) as stranger:

            def take() -> None:
                stranger.sendall(strangers.frame(b"", more=True) + strangers.frame(b"nonsense", more=False))
                until(lambda: sockets.has_message(socket._router), "it has come", seconds=20)
                socket._take()

            for _ in range(MAX_ERRORS):
                take()
            (now,) = socket._connections
            socket._connections.opened(now._replace(port=now.port - 1))
            for _ in range(2):  # the first one after the ban ends the connection
                take()
    finally:
        socket.close()


def test_a_refusal_that_names_a_folder_in_bytes_that_are_no_text_does_not_end_the_thread(tmp_path: Path) -> None:
    """Seen to fail: the refusal could not be encoded, and nobody answered the other shards any more."""
    run, apart = tmp_path / "r\udcff", (LOCAL, "tcp://127.0.0.1:9")
    config = ServerConfig(dataset=tmp_path, out=run, shards=2, peers=apart, options=TrainingOptions(dim=4))
    with (
        closing(peers.Peers(config, None)) as shard,
        RequestClient([shard._socket.address], "shard-1", silence_s=20.0) as client,
    ):
        for _ in range(2):
            with pytest.raises(ArtifactError, match=r"r\\udcff"):
                client.ask(0, m.GetData(f"round-00000001.shard-0-of-2/{MANIFEST}", 0))


def test_the_oldest_of_too_many_connections_is_cut(other: Other) -> None:
    with shaken(other.address) as first:
        others = [shaken(other.address) for _ in range(2 * CONNECTIONS_PER_SHARD)]
        for each in others:
            each.__enter__()
        assert is_shut(first)
        for each in others:
            each.__exit__(None, None, None)
    assert is_answered(other.address)
