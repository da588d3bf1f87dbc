"""A server that does what a test says: a ROUTER in a thread that answers each request with what a script returns."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import zmq

from glovewire.common.errors import BadRequest
from glovewire.common.model.options import TrainingOptions
from glovewire.common.protocol import messages as m
from glovewire.common.protocol import wire
from glovewire.common.storage.dataset import Dataset
from glovewire.common.transport import sockets

Script = Callable[["Heard"], m.Message | None]


@dataclass(frozen=True)
class Heard:
    """One request as it arrived: its sender, its number, and how many times this number had arrived before."""

    peer: bytes
    number: int
    message: m.Message
    before: int


@dataclass
class FakeServer:
    """`heard` is everything that arrived; `script` returns a reply or None for silence."""

    address: str
    script: Script
    heard: list[Heard] = field(default_factory=list)

    def messages(self, kind: type[m.Message]) -> list[Heard]:
        """The messages of a kind that arrived."""
        return [one for one in self.heard if isinstance(one.message, kind)]


def welcome(shard: int = 0, shards: int = 1, **options: object) -> m.Welcome:
    """A welcome with default options, except for those given."""
    found = {**TrainingOptions(dim=4).as_message(), **options}
    return m.Welcome("run", shard, shards, 0, found)  # type: ignore[arg-type]


def polite(heard: Heard) -> m.Message | None:
    """Answer only the requests that keep a conversation going."""
    if isinstance(heard.message, m.Hello):
        return welcome()
    if isinstance(heard.message, m.Heartbeat):
        return m.HeartbeatAck(False)
    return m.Left() if isinstance(heard.message, m.Leave) else None


@contextmanager
def fake_server(script: Script = polite) -> Iterator[FakeServer]:
    """Run a fake server until the block ends; an error in the script fails the test as an error of a thread."""
    stop, context = threading.Event(), sockets.Context()
    router, address = context.router("tcp://127.0.0.1:0")
    server = FakeServer(address, script)

    def serve() -> None:
        while not stop.is_set():
            if router.poll(5):
                peer, _, *frames = sockets.receive(router)
                request = wire.decode(frames)
                before = sum(one.number == request.number and one.peer == bytes(peer) for one in server.heard)
                heard = Heard(bytes(peer), request.number, request.message, before)
                server.heard.append(heard)
                reply = server.script(heard)
                if reply is None:
                    continue
                with contextlib.suppress(zmq.ZMQError):  # the client has gone meanwhile
                    sockets.send(router, [heard.peer, b"", *wire.encode(request.number, reply)])

    thread = threading.Thread(target=serve, name="fake server")
    thread.start()
    try:
        yield server
    finally:
        stop.set()
        thread.join(60)
        context.close()


@contextmanager
def sender(
    folder: Path, change: Callable[[m.GetData, m.Data], m.Message] = lambda _, data: data
) -> Iterator[FakeServer]:
    """Run a server that sends the files of the dataset in `folder`, each piece as `change` returns it."""
    dataset = Dataset.open(folder, verify=False)

    def script(heard: Heard) -> m.Message | None:
        query = heard.message
        if not isinstance(query, m.GetData):
            return polite(heard)
        try:
            body, size = dataset.read(query.file, query.offset, query.allowed)
        except BadRequest as error:
            return m.Refused(error.code, str(error), "")
        return change(query, m.Data(query.offset, size, np.frombuffer(body, np.uint8)))

    with fake_server(script) as server:
        yield server
