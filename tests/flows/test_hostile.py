"""Strangers at the server's port: junk, other protocols and versions, huge frames, peers that say nothing.

Each costs its sender a connection or an error reply. Training goes on, to the same bytes as without them.
"""

from __future__ import annotations

import contextlib
import random
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from handmade import random_dataset
from processes import LASTING, Flow, Running, until
from strangers import GREETING, port_of

from glovewire.common.protocol import wire
from glovewire.common.protocol.messages import GetStatus, Hello, Refused
from glovewire.common.transport.client import RequestClient

EPOCHS = 65


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Iterator[bytes]:
    folder = tmp_path_factory.mktemp("expected")
    random_dataset(folder / "data", size=40)
    with Flow(folder) as flow:
        flow.train("run", "--epochs", EPOCHS, "--workers", 1).ends()
        yield flow.vectors("run")


@pytest.fixture
def flow(tmp_path: Path) -> Iterator[Flow]:
    random_dataset(tmp_path / "data", size=40)
    with Flow(tmp_path) as flow:
        yield flow


def pour(address: str, data: bytes) -> None:
    """Send bytes over a plain connection, which may be cut at any time."""
    with contextlib.suppress(OSError), socket.create_connection(port_of(address), timeout=60) as plain:
        plain.settimeout(60)
        plain.sendall(data)
        plain.shutdown(socket.SHUT_WR)
        while plain.recv(4096):
            pass


def asked(address: str, frames: list[bytes], wait_ms: int = 10_000) -> Refused | None:
    """The refusal that frames from a proper DEALER get; None when there is no answer."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.set(zmq.LINGER, 0)
        dealer.connect(address)
        dealer.send_multipart(frames)
        if not dealer.poll(wait_ms):
            return None
        reply = wire.decode(dealer.recv_multipart()[1:]).message
    assert isinstance(reply, Refused)
    return reply


def bother(address: str, stream: str) -> None:
    """Everything that a stranger may do, once."""
    noise = random.Random(1)
    for target in (address, stream):
        pour(target, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        pour(target, noise.randbytes(100_000))
        pour(target, GREETING + noise.randbytes(5000))
        pour(target, b"\0" * 10)
        # a message of 2 GiB and one of 8 EiB are announced, right after a proper handshake
        ready = b"\x04\x26\x05READY\x0bSocket-Type\0\0\0\x06DEALER\x08Identity\0\0\0\0"
        for size in (2 << 30, (1 << 63) - 1):
            pour(target, GREETING + ready + b"\x02" + struct.pack(">Q", size) + bytes(100_000))
    good: list[bytes] = [b"", *map(bytes, wire.encode(1, GetStatus()))]
    codes = {
        "protocol": [b"", b"not", b"ours"],
        "version-mismatch": [b"", wire.GREETING[:-1] + bytes([99]), *good[2:]],
        "limit": [*good, *[b"x"] * 50],
    }
    for code, frames in codes.items():
        refused = asked(address, frames)
        assert refused is not None
        assert refused.code == code
    assert asked(address, [b"x" * 100_000, *good]) is not None
    assert asked(address, [b"", good[1], noise.randbytes(2000)]) is not None
    assert asked(address, [b"", good[1], good[2], bytes((64 << 20) + 1)], wait_ms=500) is None
    with RequestClient([address], "mallory", dataset="another") as client:
        reply: list[object] = []
        client.send(0, Hello("worker", "mallory", 1, "another"), reply.append)
        until(lambda: (client.poll(20), reply)[1], "an answer to a wrong dataset")
        assert isinstance(reply[0], Refused)


def silent_peers(address: str) -> list[socket.socket]:
    """Connections that never say anything."""
    return [socket.create_connection(port_of(address), timeout=60) for _ in range(20)]


def served(flow: Flow) -> tuple[Running, str, str]:
    server = flow.server("run", "--epochs", EPOCHS)
    return server, *server.ready()


def test_strangers_cost_only_themselves(flow: Flow, expected: bytes) -> None:
    server, address, stream = served(flow)
    idle = silent_peers(address)
    try:
        bother(address, stream)  # before anybody trains
        workers = [flow.worker(address, name=name, how=LASTING) for name in ("anna", "bert")]
        server.says("event=epoch")
        bother(address, stream)
        assert server.running
        assert flow.stats(address)["counters"]["refused"] >= 10
        for process in (*workers, server):
            process.ends(0)
    finally:
        for plain in idle:
            plain.close()
    assert "Traceback" not in server.err
    assert "event=lost" not in server.err
    assert flow.vectors("run") == expected


def test_a_worker_with_another_dataset_is_refused(flow: Flow) -> None:
    random_dataset(flow.path("other"), size=30)
    server, address, _ = served(flow)
    flow.worker(address, data="other").fails("dataset", "is not the server's", "give both the same folder")
    flow.worker(address, name="anna").ends(0)
    server.ends(0)


def test_shards_in_the_wrong_order_are_refused(flow: Flow) -> None:
    servers = [flow.server("run", "--shard", f"{shard}/2") for shard in range(2)]
    addresses = [server.ready()[0] for server in servers]
    order = "give every shard's address once, in order"
    given = {"a": addresses[::-1], "b": addresses[:1], "c": [*addresses, addresses[0]]}
    wrong = [flow.worker(*where, name=name) for name, where in given.items()]  # at the same time
    for worker in wrong:
        worker.fails(order, "is shard 1/2" if len(worker.words.split("--server")) > 2 else "is shard 0/2", status=2)
    assert not any(flow.stats(address)["workers"] for address in addresses)  # nobody waits for those who were refused
    flow.worker(*addresses, name="right").ends(0)
    for server in servers:
        server.ends(0)
