"""What a stranger can do to a server before it has said a word; tests/server/test_daemon_keys.py has who is let in."""

from __future__ import annotations

import signal
import subprocess
import sys

from processes import DEADLINE_S

TAKES_A_NAME = """
import struct, sys, zmq
from glovewire.common.transport.sockets import Context

def say(name=b""):
    dealer = others.socket(zmq.DEALER)
    kept.append(dealer)
    dealer.linger = 0
    if name:
        dealer.routing_id = name
    dealer.connect(address)
    dealer.send(b"")
    assert router.poll(60_000)
    return router.recv_multipart()[0]

with Context() as context, zmq.Context() as others:
    router, address = context.router("tcp://127.0.0.1:0")
    kept = []
    first, = struct.unpack(">xI", say()) if sys.argv[1] == "watches" else [0x6b8b4567]  # `rand()`, not seeded
    say(struct.pack(">xI", first + 2))
    print([say() for _ in range(3)])
    others.destroy()
"""


def test_the_routing_id_of_the_next_peer_cannot_be_guessed() -> None:
    """A client that chooses it ends the process, in libzmq 4.3.5: shown by one that is told where the ids began."""
    for stranger, status in (("guesses", 0), ("watches", -signal.SIGABRT)):
        command = [sys.executable, "-c", TAKES_A_NAME, stranger]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
        assert ended.returncode == status, ended.stderr
