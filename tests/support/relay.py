"""Relays that inject faults between two processes: lost, duplicated, delayed and reordered messages, and cuts.

A fault is an enum, a rate and a seed. `MessageRelay` stands between DEALERs and a ROUTER, `StreamRelay` between a PUB
and its subscribers; both handle whole messages, since TCP itself neither loses nor reorders anything. `TcpRelay` cuts
connections and later accepts new ones. Each runs in its own thread until its `with` block ends.
"""

from __future__ import annotations

import contextlib
import enum
import heapq
import itertools
import random
import select
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from typing import Self

import zmq

from glovewire.common.errors import GlovewireError
from glovewire.common.protocol import messages as m
from glovewire.common.protocol import wire
from glovewire.common.protocol.wire import decode_sample
from glovewire.common.transport import sockets

LONGEST_DELAY_S = 0.2
AWAY_S = (0.1, 0.5)
BETWEEN_CUTS_S = (0.2, 0.6)
MOST_CUTS = 5
BYTES = 1 << 16
HERE = "tcp://127.0.0.1:0"


class Fault(enum.Enum):
    """What goes wrong; the value is what people read."""

    NONE = "nothing"
    KILL = "SIGKILL"
    STOP = "SIGSTOP, SIGCONT"
    CUT = "connection cut and back"
    DELAY = "messages delayed"
    DUPLICATE = "messages duplicated"
    REORDER = "messages reordered"
    DROP = "messages dropped"
    DISK = "disk full during checkpoints"
    CLOCK = "clock jumps"


class Relay(ABC):
    """A thread that forwards what arrives at its `address` until the `with` block ends."""

    address: str

    def __init__(self) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="relay")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(10)

    @abstractmethod
    def _run(self) -> None:
        """Forward until `_over` is set, then close every socket."""


class MessageRelay(Relay):
    """Takes the place of a server's request address; knows how many pushes were `lost` here.

    It notes which clients have parted: once the server has answered a goodbye, it knows the client's count of pushes. A
    push that its sender's goodbye has overtaken is lost: the server has ended, or no longer knows the sender.

    The first message in each direction of every connection passes unharmed: a client that never joins proves nothing.
    """

    def __init__(self, server: str, fault: Fault, rate: float, seed: int) -> None:
        super().__init__()
        self._taken = self._passed = 0  # pushes before their sender's goodbye
        self._server, self._fault, self._rate, self._draw = server, fault, rate, random.Random(seed)
        self._context = sockets.Context()
        self._front, self.address = self._context.router(HERE)
        self._back: dict[bytes, zmq.Socket[bytes]] = {}
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._not_before: dict[tuple[bytes, bool], float] = {}
        self._seen: Counter[tuple[bytes, bool]] = Counter()
        self._parting: set[tuple[bytes, bool]] = set()
        self._parted: set[bytes] = set()

    @property
    def lost(self) -> int:
        """Number of pushes that arrived here less those that left; negative if more were repeated."""
        return self._taken - self._passed

    @property
    def all_parted(self) -> bool:
        """Whether the server has answered the goodbye of every client that came."""
        return self._parted >= self._back.keys()

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._front, zmq.POLLIN)
        while not self._over.is_set():
            poller.poll(5)
            while sockets.has_message(self._front):
                peer, *frames = sockets.receive(self._front)
                self._take(bytes(peer), frames, poller)
            for peer, back in self._back.items():
                while sockets.has_message(back):
                    answer = sockets.receive(back)
                    if _kind(answer) is m.Left:
                        self._parted.add(peer)
                    self._pass_on(peer, False, lambda peer=peer, frames=answer: self._down(peer, frames))
            while self._queue and self._queue[0][0] <= time.monotonic():
                heapq.heappop(self._queue)[2]()
        self._context.close()

    def _take(self, peer: bytes, frames: list[wire.Frame], poller: zmq.Poller) -> None:
        if peer not in self._back:
            self._back[peer] = self._context.dealer(self._server)
            poller.register(self._back[peer], zmq.POLLIN)
        kind = _kind(frames)
        self._taken += self._counts(peer, kind, came=True)
        self._pass_on(peer, True, lambda: self._up(peer, kind, frames))

    def _up(self, peer: bytes, kind: type[m.Message] | None, frames: list[wire.Frame]) -> None:
        self._passed += self._counts(peer, kind, came=False)
        sockets.send(self._back[peer], frames)

    def _counts(self, peer: bytes, kind: type[m.Message] | None, *, came: bool) -> bool:
        """Whether a message that has arrived, or leaves now, is a push whose sender has not said goodbye yet."""
        if kind is m.Leave:
            self._parting.add((peer, came))
        return kind is m.Push and (peer, came) not in self._parting

    def _pass_on(self, peer: bytes, up: bool, send: Callable[[], None]) -> None:
        """Queue a message: not at all, once or twice, for now or later."""
        self._seen[peer, up] += 1
        now, hit = time.monotonic(), self._draw.random() < self._rate and self._seen[peer, up] > 1
        if hit and self._fault is Fault.DROP:
            return
        due = now
        if hit and self._fault in (Fault.DELAY, Fault.REORDER):
            due += self._draw.uniform(0, LONGEST_DELAY_S)
        if self._fault is Fault.DELAY:  # messages behind it wait, too
            due = self._not_before[peer, up] = max(due, self._not_before.get((peer, up), 0.0))
        times = 2 if hit and self._fault is Fault.DUPLICATE else 1
        for _ in range(times):
            heapq.heappush(self._queue, (due, next(self._count), send))

    def _down(self, peer: bytes, frames: list[wire.Frame]) -> None:
        with contextlib.suppress(zmq.ZMQError):  # the client has gone meanwhile
            sockets.send(self._front, [peer, *frames])


class StreamRelay(Relay):
    """Takes the place of a server's publish address. If it drops samples, it always drops a run's `finished` event."""

    def __init__(self, publisher: str, fault: Fault, rate: float, seed: int) -> None:
        super().__init__()
        self._fault, self._rate, self._draw = fault, rate, random.Random(seed)
        self._context = sockets.Context()
        self._in = self._context.subscriber(publisher)
        self._out, self.address = self._context.publisher(HERE)

    def _run(self) -> None:
        held: list[tuple[float, list[wire.Frame]]] = []
        while not self._over.is_set():
            self._in.poll(5)
            while sockets.has_message(self._in):
                frames, hit = sockets.receive(self._in), self._draw.random() < self._rate
                if self._fault is Fault.DROP and (hit or _is_last_word(frames)):
                    continue
                late = self._draw.uniform(0, LONGEST_DELAY_S) if hit and self._fault is not Fault.DUPLICATE else 0.0
                held += [(time.monotonic() + late, frames)] * (1 + (hit and self._fault is Fault.DUPLICATE))
            ready = [frames for due, frames in held if due <= time.monotonic()]
            held = [(due, frames) for due, frames in held if due > time.monotonic()]
            for frames in ready:
                sockets.send(self._out, frames)
        self._context.close()


class TcpRelay(Relay):
    """Takes the place of any address; now and then cuts every connection, and refuses new ones for a while.

    The first cut comes some time after the first connection.
    """

    def __init__(self, server: str, seed: int) -> None:
        super().__init__()
        self._port, self._draw = int(server.rpartition(":")[2]), random.Random(seed)
        self._door = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._door.getsockname()[1]}"
        self.cuts = 0
        self._other: dict[socket.socket, socket.socket] = {}

    def _run(self) -> None:
        cut, back = 0.0, 0.0
        while not self._over.is_set():
            for one in select.select([self._door, *self._other], [], [], 0.02)[0]:
                if one is self._door:
                    self._let_in(time.monotonic() >= back)
                elif one in self._other:
                    self._pump(one)
            if self._other and not cut:
                cut = time.monotonic() + self._draw.uniform(*BETWEEN_CUTS_S)
            if self._other and time.monotonic() > cut and self.cuts < MOST_CUTS:
                self.cuts += 1
                self._close_all()
                back = time.monotonic() + self._draw.uniform(*AWAY_S)
                cut = back + self._draw.uniform(*BETWEEN_CUTS_S)
        self._close_all()
        self._door.close()

    def _let_in(self, welcome: bool) -> None:
        one, _ = self._door.accept()
        try:
            if not welcome:
                raise ConnectionRefusedError
            other = socket.create_connection(("127.0.0.1", self._port), timeout=1)
        except OSError:
            one.close()
            return
        for each in (one, other):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._other[one], self._other[other] = other, one

    def _pump(self, one: socket.socket) -> None:
        try:
            data = one.recv(BYTES)
            if data:
                self._other[one].sendall(data)
                return
        except OSError:
            pass
        for each in (self._other.pop(one), one):
            self._other.pop(each, None)
            each.close()

    def _close_all(self) -> None:
        for each in list(self._other):
            each.close()
        self._other.clear()


def _kind(frames: list[wire.Frame]) -> type[m.Message] | None:
    try:
        return type(wire.decode(frames[1:]).message)
    except GlovewireError:
        return None


def _is_last_word(frames: list[wire.Frame]) -> bool:
    message = decode_sample(frames).message
    return isinstance(message, m.Event) and message.kind == "finished"
