"""Attack a run in every way that its protocol, ports and source suggest: one function per attack, and the table.

An attack gets a `Target` and lasts until the run is over or the attack is complete. It returns broken promises other
than those that `hostile.py` checks for every attack.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil
import strangers
import zmq

from glovewire.common.array_types import Array
from glovewire.common.endings import Ending
from glovewire.common.model.bfloat16 import to_bfloat16
from glovewire.common.model.rounds import Rounds
from glovewire.common.protocol import messages as m
from glovewire.common.protocol import wire
from glovewire.common.roles import Role
from glovewire.common.transport import sockets
from glovewire.common.transport.curve_keys import ClientKeys, KeyPair, load_client_keys

HONEST = ("w0", "w1")
DENSE_ROWS = 1000
"""Rows of the dense model that the honest workers train."""
ATTACK_S = 20.0
ANSWER_S = 5.0
FAR = 1 << 62


@dataclass
class Target:
    """What an attacker knows about a run. `over` is set when the run ends, `ready` by the attacker once it is at work.

    `bounds` are those of the partitions, `width` is the number of floats in a row. `page` is the dashboard's (host,
    port), `watcher` the id of its process, `metrics` the port for Prometheus.
    """

    addresses: list[str]
    stream: str
    checksum: str
    bounds: list[int]
    width: int
    rounds: int
    over: Event
    ready: Event
    keys: Path | None = None
    page: tuple[str, int] | None = None
    watcher: int = 0
    metrics: int = 0
    began: float = field(default_factory=time.monotonic)

    def lasts(self) -> bool:
        """Return whether the attack should continue."""
        return not self.over.is_set() and time.monotonic() < self.began + ATTACK_S

    def wait(self, seconds: float = ATTACK_S) -> bool:
        """Wait at most `seconds` for the run to end; return whether the attack should continue."""
        self.over.wait(max(0.0, min(seconds, self.began + ATTACK_S - time.monotonic())))
        return self.lasts()

    def key(self, name: str) -> ClientKeys | None:
        """Return the keys of a client, None if the run has none."""
        role = Role.MONITOR if name == "monitor" else Role.WORKER
        return None if self.keys is None else load_client_keys(self.keys / f"{name}.key", role)


@dataclass(frozen=True)
class Attack:
    """One attack: `who` makes it, `play` carries it out, on a run with the given `stage`.

    `before`: it begins before the honest workers join. `kill`: one honest worker is killed meanwhile and replaced, as
    in the undisturbed run.
    `connections`: how many connections it holds, each of which costs memory. `withdrawn`: why the same bytes and the
    time of the run are not promised; "" if they are.
    """

    name: str
    who: str
    item: int
    play: Callable[[Target], list[str] | None]
    stage: str = "open"
    before: bool = False
    kill: bool = False
    connections: int = 0
    withdrawn: str = ""

    @property
    def setting(self) -> tuple[str, bool]:
        """Return the stage, and whether a worker is killed: both are the same in the undisturbed run."""
        return self.stage, self.kill


STRANGER, FLOOD, MONITOR, WORKER, INSIDER = "stranger", "flood", "monitor", "worker", "insider"


# ---- peers that may send anything


class Peer:
    """One connection to a shard, which may send any message in any order."""

    def __init__(self, context: sockets.Context, address: str) -> None:
        self.socket = context.dealer(address)
        self._number = 0

    def say(self, message: m.Message) -> int:
        """Send a message if the queue has room; return its number."""
        self._number += 1
        sockets.send_if_room(self.socket, [b"", *wire.encode(self._number, message)])
        return self._number

    def ask(self, message: m.Message, seconds: float = ANSWER_S) -> m.Message | None:
        """Return the reply to a message, None if none arrives in time."""
        return self.answer(self.say(message), seconds)

    def answer(self, number: int, seconds: float = ANSWER_S) -> m.Message | None:
        """Return the reply to a request, None if none arrives in time."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if not self.socket.poll(int(1e3 * left)):
                return None
            found = wire.decode(sockets.receive(self.socket)[1:])
            if found.number in (number, 0):
                return found.message
        return None

    def read(self) -> int:
        """Read and drop what has arrived; return how many messages."""
        count = 0
        while sockets.has_message(self.socket):
            sockets.receive(self.socket)
            count += 1
        return count

    def hello(self, target: Target, name: str, role: str = "observer", worker: int = -1) -> m.Message | None:
        """Open a session."""
        dataset = target.checksum if role == "worker" else ""
        return self.ask(m.Hello(role, name, random.getrandbits(62), dataset, worker))


class DeafPeer:
    """A connection that sends but never reads, with small network buffers at its end."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.settimeout(2)
        self.socket.connect(strangers.port_of(address))
        strangers.shake_hands(self.socket)
        self._number = 0

    def say(self, message: m.Message) -> None:
        """Send a message."""
        self._number += 1
        self.say_bytes(framed(self._number, message))

    def say_bytes(self, data: bytes) -> None:
        """Send a message that `framed` made."""
        with contextlib.suppress(OSError):
            self.socket.sendall(data)


def framed(number: int, message: m.Message) -> bytes:
    """Return the bytes of a message as ZeroMQ sends them."""
    frames = [b"", *map(bytes, wire.encode(number, message))]
    last = len(frames) - 1
    return b"".join(strangers.frame(part, more=n < last) for n, part in enumerate(frames))


@contextlib.contextmanager
def deaf_observers(target: Target, count: int) -> Iterator[list[DeafPeer]]:
    """Open `count` sessions on connections that are never read."""
    found = []
    with contextlib.ExitStack() as stack:
        for number in range(count):
            with contextlib.suppress(OSError):
                found.append(DeafPeer(target.addresses[0]))
                stack.callback(found[-1].socket.close)
                found[-1].say(m.Hello("observer", f"deaf-{number}", 1, ""))
        target.ready.set()
        yield found


@contextlib.contextmanager
def peers(target: Target, count: int = 1, key: str = "", shard: int = 0) -> Iterator[list[Peer]]:
    """Connect `count` peers to a shard, with the key of client `key`, if any."""
    with sockets.Context(target.key(key) if key else None) as context:
        yield [Peer(context, target.addresses[shard]) for _ in range(count)]


def observers(target: Target, count: int) -> Any:
    """Connect `count` peers that have sessions as observers."""
    return sessions(target, count, "observer")


@contextlib.contextmanager
def sessions(target: Target, count: int, role: str, shard: int = 0) -> Iterator[list[Peer]]:
    """Connect `count` peers that ask for sessions, whether they get them or not."""
    with peers(target, count, shard=shard) as found:
        for number, peer in enumerate(found):
            peer.say(m.Hello(role, f"mallory-{number}", number + 1, target.checksum if role == "worker" else ""))
        target.wait(0.5)
        for peer in found:
            peer.read()
        target.ready.set()
        yield found


def pull(target: Target, first: int = 0, last: int = -1, version: int = m.NO_VERSION) -> m.Pull:
    """Return a pull of rows, by default of all."""
    end = target.bounds[-1] if last < 0 else last
    return m.Pull("rows", first, end, version, bfloat16=version != m.NO_VERSION)


def push(target: Target, sequence: int, partition: int, version: int, lease: int = -1, **fields: Any) -> m.Push:
    """Return a push that adds ones to a partition."""
    first, last = target.bounds[partition : partition + 2]
    values = to_bfloat16(np.ones((last - first, target.width), np.float32))
    return push_of(values, sequence, operation="add", first=first, last=last, version=version, lease=lease, **fields)


def push_of(values: Array, sequence: int, **fields: Any) -> m.Push:
    """Return a push of these values, by default an assignment of rows starting at 0."""
    usual = {"table": "rows", "operation": "assign", "first": 0, "last": len(values), "version": 0, "lease": -1}
    return m.Push(values=values, sequence=sequence, **{**usual, "rate": 0.0, **fields})


def pull_of(rows: npt.NDArray[np.int64], table: str = "rows") -> m.Pull:
    """Return a pull of rows by number."""
    return m.Pull(table, 0, 0, m.NO_VERSION, rows)


def report(sequence: int, lease: int, figure: float = 1.0, **fields: Any) -> m.Report:
    """Return a report."""
    usual = {"loss": figure, "bias_only_loss": figure, "norm": figure, "seconds": figure, "bytes_sent": 1}
    return m.Report(sequence=sequence, lease=lease, entries=1, **{**usual, **fields})


def endless(target: Target, step: Callable[[int], object], pause_s: float = 0.0, most: int = 1_000_000) -> None:
    """Call `step` with 0, 1, 2, ... while the attack lasts."""
    for number in range(most):
        step(number)
        if pause_s and not target.wait(pause_s):
            return
        if number % 16 == 0 and not target.lasts():
            return
    target.wait()


# ---- strangers: connections


def too_few(held: int, promised: int) -> list[str]:
    """Return a complaint if fewer connections were held than an attack's name promises."""
    return [] if held >= promised else [f"(the attack held only {held} of {promised} connections)"]


def connect(address: str) -> socket.socket:
    """Open a plain connection."""
    return socket.create_connection(strangers.port_of(address), timeout=2)


def holds_connections(
    target: Target, count: int, speak: Callable[[socket.socket], None], *, stream: bool = True
) -> list[str]:
    """Keep `count` connections on which only `speak` sends, some of them to the stream; replace those that are cut."""
    held: deque[socket.socket] = deque()
    most = 0
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: list(map(socket.socket.close, held)))
        while target.lasts():
            with contextlib.suppress(OSError):
                while len(held) < count:
                    held.append(connect(target.stream if stream and len(held) % 4 else target.addresses[0]))
                    speak(held[-1])
                    held[-1].setblocking(False)
            most = max(most, len(held))
            target.ready.set()
            for each in list(held):
                with contextlib.suppress(BlockingIOError):
                    if _is_closed(each):
                        held.remove(each)
            target.wait(0.2)
    return too_few(most, count)


def _is_closed(connection: socket.socket) -> bool:
    try:
        while data := connection.recv(65536):
            del data
    except BlockingIOError:
        return False
    except OSError:
        pass
    connection.close()
    return True


def half_handshakes(target: Target) -> list[str]:
    """Begin handshakes and never finish them."""
    return holds_connections(target, 300, lambda plain: plain.sendall(strangers.GREETING[:12]))


def silent_connections(target: Target) -> list[str]:
    """Connect 1,300 times and say nothing."""
    return holds_connections(target, 1300, lambda _: None)


def idle_peers(target: Target) -> list[str]:
    """Finish the handshake on 300 connections and say nothing more."""
    return holds_connections(target, 300, strangers.shake_hands, stream=False)


def knocks(target: Target) -> None:
    """Connect and hang up, as fast as possible."""

    def knock(_: int) -> None:
        with contextlib.suppress(OSError):
            connect(target.addresses[0]).close()

    endless(target, knock, most=5000)


def foreign_protocols(target: Target) -> None:
    """Speak HTTP, TLS, SSH, old ZeroMQ and noise."""
    with contextlib.suppress(OSError):
        for address in (target.addresses[0], target.stream):
            strangers.visited(address, 60, random.Random(0))
    target.wait()


def wrong_keys(target: Target) -> None:
    """Connect with 150 keys that are not on the allow-list, repeatedly."""
    known = target.key("monitor")
    assert known is not None
    while target.lasts():
        with contextlib.ExitStack() as stack:
            for _ in range(150):
                keys = ClientKeys(KeyPair(*zmq.curve_keypair()), known.server, known.path)
                peer = Peer(stack.enter_context(sockets.Context(keys)), target.addresses[0])
                peer.say(m.Finish(Ending.ASKED))
            target.wait(1.0)


def without_keys(target: Target) -> None:
    """Speak the protocol unencrypted to a server that has keys."""
    with peers(target, 50) as found:
        for peer in found:
            peer.say(m.Finish(Ending.ASKED))
        target.wait()


# ---- strangers: messages


def malformed_messages(target: Target) -> None:
    """Send messages with one thing wrong each."""
    with contextlib.suppress(AssertionError, OSError):
        strangers.refused(target.addresses[0], push(target, 1, 0, 0), 4000, random.Random(1))
    target.wait()


def hostile_refusals(target: Target) -> None:
    """Send requests whose refusals quote the sender's own words, half a surrogate pair among them."""
    words = ["w", "\ud800", "\x00\x1b[2J", "\u202e" * 600, "é" * 5000, "<f4\n"]
    specs = [json.dumps([[a, [1], b, True]]) for a, b in itertools.product(words, words)]
    with observers(target, 1) as (peer,):
        for text in [*specs, "[" * 100_000, '[["w",' + "9" * 5000 + ',"<f4",true]]']:
            peer.ask(m.Create(np.frombuffer(text.encode(), np.uint8)), 1.0)
        for text in (word[:250] for word in words[2:]):
            peer.ask(pull_of(np.zeros(1, np.int64), text), 1.0)
            peer.ask(m.Finish(text, text), 1.0)
            peer.ask(m.Hello(text, text, 1, text), 1.0)
        target.wait()


def half_messages(target: Target) -> None:
    """On 12 connections, announce 64 MiB, send nearly all of it and stop."""
    piece = bytes(1 << 20)
    with contextlib.ExitStack() as stack:
        for _ in range(12):
            with contextlib.suppress(OSError):
                plain = stack.enter_context(connect(target.addresses[0]))
                strangers.shake_hands(plain)
                plain.sendall(struct.pack(">BQ", 2, wire.MAX_FRAME_BYTES))
                for _ in range(60):
                    plain.sendall(piece)
        target.wait()


def endless_message(target: Target) -> None:
    """Send one message that consists of more and more frames."""
    piece = strangers.frame(bytes(1 << 20), more=True)
    with contextlib.suppress(OSError), connect(target.addresses[0]) as plain:
        strangers.shake_hands(plain)
        for _ in range(800):
            if target.lasts():
                plain.sendall(piece)
        target.wait()


def query(target: Target, number: int) -> m.Message:
    """Return one of the queries that need no session."""
    return [m.GetStatus(), m.GetHistory(0), m.GetWords(0, target.bounds[-1])][number % 3]


def query_storm(target: Target) -> None:
    """Ask for status, history and words as fast as possible, and read the replies."""
    with peers(target, 8) as found:

        def ask(number: int) -> None:
            found[number % 8].say(query(target, number))
            found[number % 8].read()

        endless(target, ask)


def unread_queries(target: Target) -> None:
    """Ask for status, history and words on 60 connections, and never read the replies."""
    with deaf_observers(target, 60) as found:
        endless(target, lambda n: found[n % len(found)].say(query(target, n // 60)))


def hello_storm(target: Target) -> None:
    """Send Hello 10,000 times, each time under a new name."""
    with peers(target, 4) as found:

        def hello(number: int) -> None:
            peer = found[number % 4]
            peer.say(m.Hello("observer" if number % 2 else "worker", f"m{number}", number, target.checksum))
            peer.read()

        endless(target, hello, most=10_000)


def full_house(target: Target) -> list[str]:
    """Take and keep every available session before the workers join."""
    with deaf_observers(target, 1100) as found:
        beat = framed(99, m.Heartbeat())
        while target.wait(0.2):
            for peer in found:
                peer.say_bytes(beat)
    return too_few(len(found), 1100)


def squatted_names(target: Target) -> None:
    """Take the names of the workers before they join."""
    with peers(target, 2) as found:
        for peer, name in zip(found, HONEST, strict=True):
            peer.hello(target, name)
        target.ready.set()
        while target.wait(0.5):
            for peer in found:
                peer.say(m.Heartbeat())
                peer.read()


def stolen_names(target: Target, role: str = "observer", key: str = "") -> None:
    """Send Hello under the names of the workers, repeatedly."""
    with peers(target, 2, key) as found:

        def steal(number: int) -> None:
            found[number % 2].hello(target, HONEST[number % 2], role)

        endless(target, steal, pause_s=0.2)


def long_topics(target: Target) -> None:
    """Subscribe to 400 topics of 60 kB on each of 50 connections."""
    with sockets.Context() as context:
        for _ in range(50):
            subscriber = context.subscriber(target.stream)
            for number in range(400):
                subscriber.subscribe(f"{number}".encode().ljust(60_000, b"x"))
            if not target.wait(0.05):
                return
        target.wait()


def unread_stream(target: Target) -> None:
    """Subscribe 200 times and never read."""
    with sockets.Context() as context:
        for _ in range(200):
            context.subscriber(target.stream)
        target.wait()


def waiting_pulls(target: Target) -> None:
    """Let 4,096 pulls of 16 sessions wait for future versions."""
    with observers(target, 16) as found:

        def wait(number: int) -> None:
            peer = found[number % 16]
            first, last = target.bounds[number % 6 : number % 6 + 2]
            peer.say(pull(target, first, last, 1 + (number // 16) % target.rounds))
            if number % 64 == 0:
                target.wait(0.01)

        endless(target, wait, most=4096)


def waiting_tensors(target: Target) -> None:
    """Let 4,096 pulls of 16 sessions wait for an update that never comes, so that each update must check them."""
    with observers(target, 16) as found:

        def wait(number: int) -> None:
            found[number % 16].say(m.Pull("tensors", 0, 1, FAR))

        endless(target, wait, most=4096)


def unread_rows(target: Target) -> None:
    """Pull all rows on 40 connections and never read them."""
    with deaf_observers(target, 40) as found:
        endless(target, lambda number: found[number % len(found)].say(pull(target)), pause_s=0.005)


def unread_rows_by_key(target: Target) -> None:
    """Do the same as `unread_rows` on 12 connections with a monitor's key; each keeps a reply or two unread."""
    keys = target.key("monitor")
    assert keys is not None
    with zmq.Context() as context:
        context.linger = 0
        found = []
        for number in range(12):
            found.append(context.socket(zmq.DEALER))
            found[-1].set(zmq.RCVHWM, 1)
            for option, value in (
                (zmq.CURVE_SERVERKEY, keys.server),
                (zmq.CURVE_PUBLICKEY, keys.pair.public),
                (zmq.CURVE_SECRETKEY, keys.pair.secret),
            ):
                found[-1].set(option, value)
            found[-1].connect(target.addresses[0])
            sockets.send_if_room(found[-1], [b"", *wire.encode(1, m.Hello("observer", f"deaf-{number}", 1, ""))])

        def ask(number: int) -> None:
            sockets.send_if_room(found[number % 12], [b"", *wire.encode(2 + number, pull(target))])

        endless(target, ask, pause_s=0.01)
        for each in found:
            each.close()


def repeated_rows(target: Target) -> None:
    """Pull one row more than 30,000 times in one request, on 10 connections."""
    rows = np.zeros((wire.MAX_FRAME_BYTES // (target.width * 4)) - 1, np.int64)
    with observers(target, 10) as found:
        endless(target, lambda n: found[n % 10].say(pull_of(rows)), pause_s=0.005)


def checkpoint_storm(target: Target) -> None:
    """Ask for checkpoints of every round, with a session and without."""
    with observers(target, 2) as found, peers(target) as (stranger,):

        def ask(number: int) -> None:
            stranger.say(m.Checkpoint(number))
            found[0].say(m.Checkpoint(-1))
            found[1].say(m.Checkpoint(number % (target.rounds + 1)))
            for peer in (*found, stranger):
                peer.read()

        endless(target, ask, pause_s=0.02)


def far_checkpoints(target: Target) -> None:
    """Ask for checkpoints of the last rounds only, which use up the number of unwritten checkpoints allowed."""
    with observers(target, 1) as (peer,):
        for back in range(1, 5):
            peer.say(m.Checkpoint(target.rounds - back))
            target.wait(1.1)
        target.wait()


def score_flood(target: Target) -> None:
    """Publish scores as fast as possible."""
    with observers(target, 1) as (peer,):

        def score(number: int) -> None:
            peer.say(m.Score("x" * 64, float(number)))
            peer.read()

        endless(target, score)


def big_creates(target: Target) -> None:
    """Declare a dense model of 60 MiB of JSON on twelve connections."""
    text = ("[" + '["w",[1],"<f4",true],' * ((60 << 20) // 22)).encode()
    with observers(target, 12) as found:
        for peer in found:
            peer.say(m.Create(np.frombuffer(text, np.uint8)))
        target.wait()


def empty_model(target: Target) -> None:
    """Declare a model without tensors before the workers join."""
    with sessions(target, 1, "worker") as (peer,):
        peer.ask(m.Create(np.frombuffer(b"[]", np.uint8)))
        peer.ask(m.Leave(Ending.LEFT))
        target.wait()


def huge_model(target: Target) -> None:
    """Declare fixed tensors of 2 GiB before the workers join, and leave."""
    spec = json.dumps([["w", [1], "<f4", True], ["f", [1 << 28], "<f4", False]]).encode()
    with sessions(target, 1, "worker") as (peer,):
        peer.ask(m.Create(np.frombuffer(spec, np.uint8)))
        peer.ask(m.Leave(Ending.LEFT))
        target.wait()


# ---- a monitor


def monitor_overreaches(target: Target) -> list[str]:
    """Try, with the key of a monitor, everything that only workers and administrators may do."""
    allowed = []
    with peers(target, 2, "monitor") as (worker, watcher):
        worker.hello(target, "mallory", "worker")
        watcher.hello(target, "watcher")
        requests = [
            m.Lease(1),
            push(target, 1, 0, 0),
            report(1, 1),
            m.Create(None),
            m.Checkpoint(-1),
            m.Finish(Ending.ASKED),
            m.Finish(Ending.FAILED),
        ]
        for peer, request in itertools.product((worker, watcher), requests):
            if not isinstance(peer.ask(request, 2.0), m.Refused | None):
                allowed.append(f"a monitor may {type(request).__name__}")
        target.wait()
    return list(dict.fromkeys(allowed))


# ---- a worker's key


def worker_overreaches(target: Target) -> list[str]:
    """Try, with the key of a worker, what only an administrator may do."""
    with peers(target, 1, "carl") as (peer,):
        peer.hello(target, "carl", "worker")
        requests = [m.Checkpoint(-1), m.Finish(Ending.ASKED), m.Finish(Ending.FAILED), m.Finish(Ending.COMPLETE)]
        allowed = [type(r).__name__ for r in requests if not isinstance(peer.ask(r, 2.0), m.Refused | None)]
        peer.ask(m.Leave(Ending.LEFT))
        target.wait()
    return [f"a worker may {name}" for name in dict.fromkeys(allowed)]


# ---- insiders


def leases(peer: Peer, count: int, first: int = 1, seconds: float = 1.0) -> list[m.Granted]:
    """Ask for `count` leases; return those that were granted."""
    numbers = [peer.say(m.Lease(first + n)) for n in range(count)]
    found = [peer.answer(number, seconds) for number in numbers[:1]]
    found += [peer.answer(number, 0.1) for number in numbers[1:]]
    return [reply for reply in found if isinstance(reply, m.Granted)]


def reports_without_pushes(target: Target) -> None:
    """Lease, report without a push, leave."""
    with sessions(target, 1, "worker") as (peer,):
        for granted in leases(peer, 3):
            tokens = (granted.token, granted.low_water_token)
            for receipt in (0, *tokens, tokens[0] ^ tokens[1]):
                peer.ask(report(1, granted.lease, receipt=receipt), 1.0)
        peer.ask(m.Leave(Ending.LEFT))
        target.wait()


def beats_only(target: Target) -> None:
    """Lease as many strips as possible, and then send only heartbeats."""
    with sessions(target, 1, "worker") as (peer,):
        leases(peer, 8)
        while target.wait(0.3):
            peer.say(m.Heartbeat())
            peer.read()


def hoards_leases(target: Target) -> None:
    """Let 64 leases wait in each of four sessions, and send only heartbeats once they are granted."""
    with sessions(target, 4, "worker") as found:
        for peer in found:
            for ticket in range(1, 65):
                peer.say(m.Lease(ticket))
        while target.wait(0.3):
            for peer in found:
                peer.say(m.Heartbeat())
                peer.read()


def lease_churn(target: Target) -> None:
    """Join, lease as many strips as possible and leave, as fast as possible, each time under a new name."""
    with peers(target, 2) as found:

        def churn(number: int) -> None:
            peer = found[number % 2]
            peer.hello(target, f"churn-{number}", "worker")
            leases(peer, 8, seconds=0.2)
            peer.ask(m.Leave(Ending.LEFT), 1.0)

        endless(target, churn)


def pushes_without_lease(target: Target, shard: int = 0) -> None:
    """Push one partition at versions 0, 1, 2, ... without a lease."""
    partition = 0 if shard == 0 else len(target.bounds) - 2
    with sessions(target, 1, "worker", shard=shard) as (peer,):
        if shard:
            peer.hello(target, "mallory", "worker", worker=77)
        endless(target, lambda n: peer.ask(push(target, n + 1, partition, n), 1.0), most=400)


def pushes_at_another_shard(target: Target) -> None:
    """Do the same as `pushes_without_lease` at shard 1, which grants no leases."""
    pushes_without_lease(target, shard=1)


def pushes_another_strip(target: Target) -> None:
    """Lease a strip and push, under that lease, every other partition of the table at every version."""
    with sessions(target, 1, "worker") as (peer,):
        granted = leases(peer, 1)
        if not granted:
            return
        tokens = (granted[0].token, granted[0].low_water_token)
        partitions = len(target.bounds) - 1
        rounds = Rounds(partitions, target.rounds // partitions)
        outside = range(rounds.strip(granted[0].round) + 1, partitions)
        for version, partition, token in itertools.product(range(target.rounds), outside, tokens):
            if target.lasts():
                peer.ask(push(target, 1, partition, version, granted[0].lease, token=token), 1.0)
        peer.ask(m.Leave(Ending.LEFT))
        target.wait()


def far_low_water(target: Target) -> None:
    """Claim in pushes that every round is complete; a worker is killed meanwhile."""
    with sessions(target, 1, "worker") as (peer,):
        endless(target, lambda n: peer.ask(push(target, n + 1, 0, FAR - 1, low_water=FAR), 1.0), pause_s=0.05)


def false_reports(target: Target) -> None:
    """Report figures that are possible but absurd, for the attacker's own leases and those of others."""
    with sessions(target, 1, "worker") as (peer,):
        granted = leases(peer, 2)
        for number in range(1, 200):
            peer.ask(report(1, number, 1e30), 1.0)
        for each in granted:
            peer.ask(report(1, each.lease, -1.0), 1.0)
        peer.ask(m.Leave(Ending.LEFT, "", -5))
        target.wait()


def big_pushes(target: Target) -> None:
    """Push 60 MiB at a time on 12 connections, whatever the credit."""
    values = np.zeros(((60 << 20) // (4 * target.width), target.width), np.float32)
    with sessions(target, 12, "worker") as found:

        def send(number: int) -> None:
            found[number % 12].say(push_of(values, 1 + number // 12))

        endless(target, send, pause_s=0.02, most=240)


def waiting_creates(target: Target) -> None:
    """Let 256 declarations of 200 kB wait in each of 8 sessions of a dense model."""
    spec = json.dumps([[f"t{n}", [1], "<f4", True] for n in range(8000)]).encode()
    with observers(target, 8) as found:
        for _, peer in itertools.product(range(256), found):
            peer.say(m.Create(np.frombuffer(spec, np.uint8)))
        target.wait()


def waiting_sync_pulls(target: Target) -> None:
    """In synchronous minibatches, let 255 pulls of all rows wait, and leave after a while."""
    rows = np.arange(target.bounds[-1] - 1)
    with sessions(target, 1, "worker") as (peer,):
        gradient = np.zeros((1, target.width), np.float32)
        peer.say(push_of(gradient, 1, operation="gradient", rows=np.zeros(1, np.int64)))
        for _ in range(255):
            peer.say(pull_of(rows))
        target.wait(6.0)


def never_steps(target: Target) -> None:
    """In synchronous minibatches, join and send only heartbeats."""
    with sessions(target, 1, "worker") as (peer,):
        while target.wait(0.3):
            peer.say(m.Heartbeat())
            peer.read()


def never_fills(target: Target) -> None:
    """Declare the workers' own model before they join, never send its values, and send only heartbeats."""
    spec = json.dumps([["w", [DENSE_ROWS * 256], "<f4", True], ["f", [7], "<i8", False]]).encode()
    with sessions(target, 1, "worker") as (peer,):
        peer.ask(m.Create(np.frombuffer(spec, np.uint8)))
        while target.wait(0.3):
            peer.say(m.Heartbeat())
            peer.read()


def heaped_gradients(target: Target) -> None:
    """In synchronous minibatches, push one gradient after the other without ever making a step."""
    parameters = target.width  # refused or not, the bytes travel
    rows = np.arange(target.bounds[-1] - 1)
    values = np.zeros((len(rows), parameters), np.float32)
    with sessions(target, 1, "worker") as (peer,):
        for number in range(60):
            peer.say(push_of(values, number + 1, operation="gradient", rows=rows))
            target.wait(0.05)
        target.wait(6.0)


# ---- the dashboard


def page_requests(target: Target, count: int = 1000, at_once: int = 50) -> list[str]:
    """Request the page `count` times: all must be answered, memory must stay flat, SIGTERM must end the dashboard."""
    assert target.page is not None
    watcher = psutil.Process(target.watcher)
    before = watcher.memory_full_info().uss
    todo, statuses, lock = iter(range(count)), [], threading.Lock()

    def ask() -> None:
        while True:
            with lock:
                if next(todo, None) is None:
                    return
            statuses.append(status(target.page))

    threads = [threading.Thread(target=ask) for _ in range(at_once)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.monotonic() - began
    grown = watcher.memory_full_info().uss - before
    answered = sum(each > 0 for each in statuses)
    wrong = [f"{count - answered} of {count} pages were not answered ({seconds:.0f} s)"] if answered < count else []
    if grown > 100 << 20:
        wrong.append(f"the dashboard grew by {grown / 1e6:.0f} MB")
    return wrong + ends_by_signal(watcher)


def status(page: tuple[str, int] | None, headers: dict[str, str] | None = None, path: str = "/") -> int:
    """Return the status of a page, 0 if there is no answer."""
    assert page is not None
    connection = HTTPConnection(*page, timeout=20)
    try:
        connection.request("GET", path, headers=headers or {})
        reply = connection.getresponse()
        reply.read()
        return reply.status
    except (OSError, HTTPException):
        return 0
    finally:
        connection.close()


def ends_by_signal(process: psutil.Process, seconds: float = 2.0) -> list[str]:
    """Return a complaint unless SIGTERM ends a process within `seconds`."""
    process.terminate()
    deadline = time.monotonic() + seconds
    with contextlib.suppress(psutil.NoSuchProcess):
        while process.status() != psutil.STATUS_ZOMBIE:  # its parent waits for it later
            if time.monotonic() > deadline:
                return [f"SIGTERM did not end it within {seconds:g} s"]
            time.sleep(0.02)
    return []


def page_burst(target: Target) -> list[str]:
    """Request 200 pages at the same time."""
    return page_requests(target, 200, 200)


def rebinding(target: Target) -> list[str]:
    """Request the page, its data and its WebSocket under a foreign host name, as a rebound page does."""
    foreign = (
        {"Host": f"evil.example:{target.page[1]}", "Origin": f"http://evil.example:{target.page[1]}"}
        if target.page
        else {}
    )
    upgrade = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
    }
    wrong = []
    for path, headers in (("/", foreign), ("/ws", {**foreign, **upgrade}), ("/static/js/bokeh.min.js", foreign)):
        if (found := status(target.page, headers, path)) != 403:
            wrong.append(f"{path} under a foreign name: {found} instead of 403")
    return wrong


def silent_scrapers(target: Target) -> None:
    """Connect 300 times to the Prometheus port and say nothing."""
    held: list[socket.socket] = []
    while target.lasts():
        with contextlib.suppress(OSError):
            while len(held) < 300:
                held.append(socket.create_connection(("127.0.0.1", target.metrics), timeout=2))
        target.wait(0.5)
    for each in held:
        each.close()


# ---- the table

IN_STEP = "synchronous steps wait for every worker, and add up what each has pushed"

ATTACKS: Sequence[Attack] = (
    Attack("half-open handshakes, keys, ulimit -n 256", STRANGER, 7, half_handshakes, "keys-256"),
    Attack("clear-text messages to a server with keys", STRANGER, 10, without_keys, "keys"),
    Attack("150 unknown keys", STRANGER, 10, wrong_keys, "keys"),
    Attack("connect and hang up, keys", FLOOD, 7, knocks, "keys"),
    Attack("connect and hang up", FLOOD, 7, knocks),
    Attack("foreign protocols", STRANGER, 0, foreign_protocols),
    Attack("1,300 silent connections, ulimit -n 1024", FLOOD, 7, silent_connections, "open-1024"),
    Attack("300 idle peers, ulimit -n 256", FLOOD, 7, idle_peers, "open-256"),
    Attack("malformed messages", STRANGER, 0, malformed_messages),
    Attack("hostile refusals", STRANGER, 1, hostile_refusals, "dense"),
    Attack("messages that stop at 60 of 64 MiB", FLOOD, 8, half_messages),
    Attack("a message without end", FLOOD, 8, endless_message),
    Attack("query storm", FLOOD, 9, query_storm),
    Attack("unread queries", FLOOD, 8, unread_queries),
    Attack("10,000 hellos", FLOOD, 9, hello_storm),
    Attack("1,100 sessions before the workers come", FLOOD, 9, full_house, before=True, connections=1100),
    Attack("squatted names", STRANGER, 5, squatted_names, before=True),
    Attack("stolen names, as an observer", STRANGER, 5, stolen_names),
    Attack("long topics", FLOOD, 9, long_topics),
    Attack("200 unread subscriptions", FLOOD, 9, unread_stream),
    Attack("4,096 waiting pulls", FLOOD, 8, waiting_pulls),
    Attack("4,096 waiting pulls of tensors", FLOOD, 8, waiting_tensors, "dense"),
    Attack("unread rows", FLOOD, 8, unread_rows),
    Attack("one row 30,000 times", FLOOD, 8, repeated_rows),
    Attack("checkpoint storm", FLOOD, 9, checkpoint_storm),
    Attack("checkpoints of the last rounds", STRANGER, 9, far_checkpoints),
    Attack("scores without end", FLOOD, 9, score_flood),
    Attack("silent scrapers", FLOOD, 7, silent_scrapers, "prometheus"),
    Attack("60 MiB of tensors, twelve times", FLOOD, 8, big_creates, "dense"),
    Attack("a monitor overreaches", MONITOR, 10, monitor_overreaches, "keys"),
    Attack("stolen names, monitor's key", MONITOR, 5, lambda t: stolen_names(t, "worker", "monitor"), "keys"),
    Attack("unread rows, monitor's key", MONITOR, 8, unread_rows_by_key, "keys"),
    Attack("a worker overreaches", WORKER, 10, worker_overreaches, "keys"),
    Attack("stolen names, another worker's key", WORKER, 5, lambda t: stolen_names(t, "worker", "carl"), "keys"),
    Attack("stolen names, as a worker", INSIDER, 5, lambda t: stolen_names(t, "worker")),
    Attack("reports without pushes", INSIDER, 2, reports_without_pushes),
    Attack("beats only", INSIDER, 2, beats_only),
    Attack("hoarded leases", INSIDER, 2, hoards_leases),
    Attack("lease churn", INSIDER, 2, lease_churn),
    Attack("pushes without a lease", INSIDER, 3, pushes_without_lease),
    Attack("pushes without a lease, second shard", INSIDER, 3, pushes_at_another_shard, "two"),
    Attack("pushes of another strip", INSIDER, 3, pushes_another_strip),
    Attack("a far low-water mark and a kill", INSIDER, 4, far_low_water, kill=True),
    Attack("false reports", INSIDER, 14, false_reports),
    Attack("big pushes beyond the credit", INSIDER, 8, big_pushes),
    Attack("an empty model", INSIDER, 14, empty_model, "dense", before=True),
    Attack("a huge model", INSIDER, 8, huge_model, "dense", before=True),
    Attack("a model without values", INSIDER, 2, never_fills, "dense", before=True),
    Attack("a step that never comes", INSIDER, 2, never_steps, "sync", withdrawn=IN_STEP),
    Attack("declarations that wait", FLOOD, 8, waiting_creates, "dense"),
    Attack("255 waiting synchronous pulls", INSIDER, 8, waiting_sync_pulls, "sync", withdrawn=IN_STEP),
    Attack("gradients on a heap", INSIDER, 8, heaped_gradients, "sync", withdrawn=IN_STEP),
    Attack("1,000 pages, 50 at a time", FLOOD, 11, page_requests, "page"),
    Attack("200 pages at once", FLOOD, 11, page_burst, "page"),
    Attack("DNS rebinding", STRANGER, 12, rebinding, "page"),
)
