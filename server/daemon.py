"""Sockets, poller and signals around the core: the only place in this package that does I/O on the network.

start -> serve -> stop -> close. The constructor binds and nothing else. One thread owns the table; a second one
writes checkpoints from copies (`Writer`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import zmq

from glovewire.common import log
from glovewire.common.errors import GlovewireError, ProtocolError, RunOver
from glovewire.common.prometheus import Exposition, RunMetrics
from glovewire.common.protocol import messages, wire
from glovewire.common.runtime.signals import stop_on_signals
from glovewire.common.storage.run_folder import METRICS
from glovewire.common.transport import sockets
from glovewire.common.transport.curve_keys import ServerKeys
from glovewire.common.transport.wakeup import Wakeup

from .checkpoints import files as checkpoint
from .checkpoints.cuts import Snapshot
from .checkpoints.writer import Writer, Written
from .config import STOPPED
from .core.core import Core
from .core.waiting import Outgoing
from .limits import Offenders, Outbox
from .sessions import Peer
from .telemetry import status
from .telemetry.metrics_file import Record

POLL_MS = 50
CARE_MS = 5
"""While requests keep coming, everything else is done this often, not after each of them."""
BATCH = 64
SERVER_SAMPLE_EVERY_S = 0.5
LOOK_EVERY_S = 0.5
ROLL_EVERY_S = 0.1
FAREWELL_S = 10.0
FAREWELL_AFTER_SIGNAL_S = 3.0
Look = Callable[[str], str]

logger = logging.getLogger(__name__)


class Daemon:
    """Serves one core on a ROUTER, publishes on a PUB; `serve` returns when the run is over."""

    def __init__(
        self, core: Core, run: Path, bind: str, publish: str, keep: int = 0, keys: ServerKeys | None = None
    ) -> None:
        self._core, self._run = core, run
        self._wakeup = Wakeup()
        self._context = sockets.Context(keys)
        self._writer = Writer(run, keep, self._wakeup.set)
        self._record = Record(run / METRICS)
        self._offenders = Offenders()
        self.signalled = False
        """Whether a signal has asked the server to stop."""
        self._sampled = self._called = 0.0
        self._roll = status.Roll()
        self._metrics = RunMetrics()
        self._exposition: Exposition | None = None
        self._outbox = Outbox()
        self._bytes_in = self._bytes_out = 0
        try:
            self._router, self.address = self._context.router(bind)
            self._publisher, self.stream_address = self._context.publisher(publish)
        except GlovewireError:
            self.close()
            raise
        self._port = sockets.port(self.address)

    def expose(self, port: int) -> None:
        """Serve what is published as metrics, on this machine only; BindError when the port cannot be had."""
        self._exposition = Exposition(self._metrics.collect, "127.0.0.1", port)
        logger.info(log.line("metrics", url=self._exposition.url))

    def install_signals(self) -> None:
        """Let SIGTERM and SIGINT end the run cleanly; a second one ends the process at once."""
        stop_on_signals(self._on_signal)

    def leave_off(self) -> None:
        """Let the checkpoints that are being written come to their end; nobody is told."""
        self._writer.finish()

    def renew(self, core: Core) -> None:
        """Serve another core from now on, on the same sockets: sessions, stream and record begin again."""
        self._record.close()
        self._core, self._record = core, Record(self._run / METRICS)
        self._roll, self._sampled, self._called = status.Roll(), 0.0, 0.0

    def serve(self, look: Look = lambda _: "") -> str:
        """Answer requests until the run is over and workers have left; returns why it ended.

        `look` is called twice a second, and at once when the run begins to end, with the reason ("" before). It returns
        why others are ending the run, "" while they are not; what it raises ends serving.
        """
        poller = zmq.Poller()
        poller.register(self._router, zmq.POLLIN)
        poller.register(self._wakeup.reader, zmq.POLLIN)
        door = self._context.zap
        if door is not None:
            poller.register(door.socket, zmq.POLLIN)
        ending: float | None = None
        cared, looked, owed, reason = 0.0, 0.0, False, ""
        while True:
            ready = dict(poller.poll(1 if self._outbox.waits else CARE_MS if owed else POLL_MS))
            if self._router in ready:
                self._answer_waiting()
            for peer, number, pull in self._outbox.ready(time.monotonic()):
                self._send(self._core.handle(peer, number, pull, time.monotonic()))
            if door is not None and door.socket in ready:
                self._core.counters["turned_away"] += door.answer()
            now = time.monotonic()
            ends = self._core.ending is not None or self._core.finishing is not None
            owed = len(ready) == 1 and self._router in ready and now - cared < CARE_MS / 1e3 and not ends
            if owed:
                continue
            cared = now
            self._between_requests(now)
            if now - looked >= LOOK_EVERY_S or reason != (self._core.ending or self._core.finishing or ""):
                looked, reason = now, self._core.ending or self._core.finishing or ""
                if (told := look(reason)) and not reason:
                    self._send(self._core.finish(told))
            if self._core.ending is not None or self._core.finishing is not None:
                ending = ending if ending is not None else now
                late = now > ending + (FAREWELL_AFTER_SIGNAL_S if self._core.ending == STOPPED else FAREWELL_S)
                if late:
                    self._send(self._core.finish(self._core.ending or STOPPED, at_once=True))
                if self._core.finishing is not None and not self._awaits(now - ending, late=late):
                    self._dismiss(self._core.finishing)
                    return self._core.finishing

    def _awaits(self, over_s: float, *, late: bool) -> bool:
        """Whether workers are still to leave, or, expected and never seen, to come and hear that there is no work."""
        core = self._core
        if core.finishing == "complete" and core.sessions.absent and over_s < core.identity.lease_s:
            return True
        return bool(core.sessions.workers) and not late

    def _dismiss(self, reason: str) -> None:
        """Tell whoever is still here, not least those who only look: a server that is gone answers nobody."""
        over = messages.Refused(RunOver.code, str(RunOver.because(reason)))
        self._send([Outgoing(session.peer, 0, over) for session in self._core.sessions.by_name.values()])

    def write_now(self, snapshot: Snapshot) -> None:
        """Write a checkpoint in this thread; what is being written in the other one comes first."""
        self._tell(self._writer.finish(), time.monotonic())
        checkpoint.write(self._run, snapshot)

    @property
    def bytes_out(self) -> int:
        """Bytes of all replies so far."""
        return self._bytes_out

    def announce(self, kind: str, text: str = "") -> None:
        """Publish how this shard ended, after everything that is still to be said."""
        self._core.news.say(time.monotonic(), kind, f"shard {self._core.identity.shard}", text)
        self._publish(time.monotonic(), last=True)

    def close(self) -> None:
        """Release sockets, files and threads; twice is fine."""
        self._writer.close()
        self._record.close()
        if self._exposition is not None:
            self._exposition.close()
        self._context.close(last_words_ms=500)
        self._wakeup.close()

    def _on_signal(self) -> None:
        self.signalled = True
        self._wakeup.set()

    def _answer_waiting(self) -> None:
        """Answer what is there; something is."""
        for number in range(BATCH):
            if number and not sockets.has_message(self._router):
                return
            peer = self._router.recv(zmq.NOBLOCK)
            if peer in self._offenders:
                self._ignore(peer)
                continue
            frames = sockets.receive(self._router)
            self._bytes_in += wire.bytes_of(frames)
            self._send(self._answer(peer, frames))

    def _answer(self, peer: Peer, frames: list[wire.Frame]) -> list[Outgoing]:
        try:
            if len(frames[0]):
                raise ProtocolError("a request is [empty, greeting, header, arrays...]")
            request = wire.decode(frames[1:])
        except GlovewireError as error:
            self._offenders.note(peer)
            return [Outgoing(peer, 0, self._core.refuse(error))]
        now = time.monotonic()
        if isinstance(request.message, messages.Pull) and not self._outbox.has_room(peer, now):
            self._outbox.put_off(peer, request.number, request.message)
            return []
        return self._core.handle(peer, request.number, request.message, now)

    def _ignore(self, peer: Peer) -> None:
        """Drop a message of a peer that has sent too much nonsense; the first one ends its connection."""
        leaves = self._offenders.leaves(peer)
        where = sockets.discard_message(self._router, hang_up=leaves)
        self._core.counters["ignored"] += 1
        if leaves:
            self._core.counters["cut_off"] += 1
            so_far = self._core.counters["cut_off"]
            if so_far & (so_far - 1) == 0:  # the first, the second, the fourth, ...: no log is filled that way
                logger.warning(log.line("cut_off", where=where, so_far=so_far, why="too many unreadable messages"))

    def _send(self, outgoing: list[Outgoing]) -> None:
        for reply in outgoing:
            frames = [reply.peer, b"", *wire.encode(reply.number, reply.message)]
            try:
                if self._outbox.is_full(reply.peer) and wire.bytes_of(frames) > sockets.BIG_FRAME_BYTES:
                    raise zmq.Again
                leaving = sockets.send(self._router, frames, track=True)
                if leaving:
                    self._outbox.sent(reply.peer, leaving, time.monotonic())
                self._bytes_out += wire.bytes_of(frames)
            except zmq.ZMQError as error:  # gone, or it does not read: it will ask again if it lives
                self._core.counters["undelivered"] += 1
                logger.debug(log.line("undelivered", why=error))

    def _between_requests(self, now: float) -> None:
        if self.signalled:
            self._send(self._core.finish(STOPPED))
        self._send(self._core.tick(now))
        for snapshot in self._core.cuts.take():
            self._writer.begin(snapshot)
        if self._core.cuts.awaited:
            self._writer.step_out()
        self._wakeup.clear()
        self._tell(self._writer.written(), now)
        self._publish(now)

    def _tell(self, written: Iterable[Written], now: float) -> None:
        """Tell those who asked for them, and the stream, what has become of checkpoints."""
        for each in written:
            self._send(self._core.checkpointed(each.label, now, each.error, each.seconds))
            self._core.cuts.gone(each.gone)

    def _publish(self, now: float, *, last: bool = False) -> None:
        core, stream = self._core, self._core.stream
        due: list[messages.Message] = core.samples(now)
        if now - self._sampled >= SERVER_SAMPLE_EVERY_S:
            self._sampled = now
            due.append(status.shard_sample(core, now, self._port, self._bytes_in, self._bytes_out))
        if now - self._called >= ROLL_EVERY_S:
            self._called = now
            due.extend(self._roll.call(core, now, stream.room("worker", now)))
        self._metrics.run = core.identity.run
        for sample in due:
            stream.say(sample)
            self._metrics.add(sample)
            if isinstance(sample, messages.LossSample | messages.QualitySample):
                self._record.add(sample)
            elif isinstance(sample, messages.Event):
                logger.info(log.line(sample.kind, subject=sample.subject, text=sample.text))
        for frames in stream.due(now, everything=last):
            sockets.send(self._publisher, frames)
