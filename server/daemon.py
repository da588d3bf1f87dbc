"""Sockets, poller and signals around the core: the only place in this package that does I/O on the network.

start -> serve -> stop -> close. The constructor binds and nothing else. One thread owns the table; a second one
writes checkpoints from copies.
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import FrameType

import zmq

from common import log, messages, sockets, wire
from common.errors import GlovewireError, ProtocolError
from common.run import METRICS

from . import checkpoint, status
from .core import Core
from .cuts import Snapshot
from .parking import Outgoing
from .record import Record

POLL_MS = 50
CARE_MS = 5
"""While requests keep coming, everything else is done this often, not after each of them."""
BATCH = 64
SERVER_SAMPLE_EVERY_S = 0.5
LOOK_EVERY_S = 0.5
FAREWELL_S = 10.0
FAREWELL_AFTER_SIGNAL_S = 3.0

logger = logging.getLogger(__name__)


class Daemon:
    """Serves one core on a ROUTER, publishes on a PUB; `serve` returns when the run is over."""

    def __init__(self, core: Core, run: Path, bind: str, publish: str) -> None:
        self._core, self._run = core, run
        self._wakeup = sockets.Wakeup()
        self._context = sockets.Context()
        self._writer = ThreadPoolExecutor(1, "checkpoint")
        self._writing: dict[str, Future[Path]] = {}
        self._record = Record(run / METRICS)
        self._signalled = 0
        self._published = 0
        self._sampled = 0.0
        self._bytes_in = self._bytes_out = 0
        try:
            self._router, self.address = self._context.router(bind)
            self._publisher, self.stream_address = self._context.publisher(publish)
        except GlovewireError:
            self.close()
            raise

    def install_signals(self) -> None:
        """Let SIGTERM and SIGINT end the run cleanly; a second one ends the process at once."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def renew(self, core: Core) -> None:
        """Serve another core from now on, on the same sockets: sessions, stream and record begin again."""
        for future in self._writing.values():
            future.exception()
        self._record.close()
        self._core, self._record = core, Record(self._run / METRICS)
        self._writing, self._published, self._sampled = {}, 0, 0.0

    def serve(self, look: Callable[[], object] = lambda: None) -> str:
        """Answer requests until the run is over and workers have left; returns why it ended.

        `look` is called twice a second; what it raises ends serving.
        """
        poller = zmq.Poller()
        poller.register(self._router, zmq.POLLIN)
        poller.register(self._wakeup.reader, zmq.POLLIN)
        ending: float | None = None
        cared, looked, owed = 0.0, 0.0, False
        while True:
            ready = dict(poller.poll(CARE_MS if owed else POLL_MS))
            if self._router in ready:
                self._answer_waiting()
            now = time.monotonic()
            ends = self._core.ending is not None or self._core.finishing is not None
            owed = len(ready) == 1 and self._router in ready and now - cared < CARE_MS / 1e3 and not ends
            if owed:
                continue
            cared = now
            self._between_requests(now)
            if now - looked >= LOOK_EVERY_S:
                looked = now
                look()
            if self._core.ending is not None or self._core.finishing is not None:
                ending = ending if ending is not None else now
                late = now > ending + (FAREWELL_AFTER_SIGNAL_S if self._signalled else FAREWELL_S)
                if late:
                    self._send(self._core.finish(self._core.ending or "stopped", at_once=True))
                if self._core.finishing is not None and (not self._core.sessions.workers or late):
                    return self._core.finishing

    def write_now(self, snapshot: Snapshot) -> None:
        """Write a checkpoint in this thread; what is being written in the other one comes first."""
        for future in self._writing.values():
            future.exception()
        self._collect_written(time.monotonic())
        checkpoint.write(self._run, snapshot)

    def announce(self, kind: str, text: str = "") -> None:
        """Publish an event about this shard and whatever else is due."""
        self._core.news.say(time.monotonic(), kind, f"shard {self._core.identity.shard}", text)
        self._publish(time.monotonic())

    def close(self) -> None:
        """Release sockets, files and threads; twice is fine."""
        self._writer.shutdown()
        self._record.close()
        self._context.close(last_words_ms=500)
        self._wakeup.close()

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        self._signalled += 1
        if self._signalled > 1:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self._wakeup.set()

    def _answer_waiting(self) -> None:
        for _ in range(BATCH):
            if not sockets.has_message(self._router):
                return
            frames = sockets.receive(self._router)
            self._bytes_in += wire.bytes_of(frames)
            self._send(self._answer(frames))

    def _answer(self, frames: list[wire.Frame]) -> list[Outgoing]:
        peer, now = bytes(frames[0]), time.monotonic()
        try:
            if len(frames) < 2 or len(frames[1]):
                raise ProtocolError("a request is [empty, greeting, header, arrays...]")
            request = wire.decode(frames[2:])
        except GlovewireError as error:
            return [Outgoing(peer, 0, self._core.refuse(error))]
        return self._core.handle(peer, request.number, request.message, now)

    def _send(self, outgoing: list[Outgoing]) -> None:
        for reply in outgoing:
            frames = [reply.peer, b"", *wire.encode(reply.number, reply.message)]
            try:
                sockets.send(self._router, frames)
                self._bytes_out += wire.bytes_of(frames)
            except zmq.ZMQError as error:  # gone, or it does not read: it will ask again if it lives
                self._core.counters["undelivered"] += 1
                logger.debug(log.line("undelivered", why=error))

    def _between_requests(self, now: float) -> None:
        if self._signalled:
            self._send(self._core.finish("stopped"))
        self._send(self._core.tick(now))
        for snapshot in self._core.cuts.take():
            self._writing[snapshot.label] = self._writer.submit(self._write, snapshot)
        self._collect_written(now)
        self._publish(now)

    def _write(self, snapshot: Snapshot) -> Path:
        try:
            return checkpoint.write(self._run, snapshot)
        finally:
            self._wakeup.set()

    def _collect_written(self, now: float) -> None:
        self._wakeup.clear()
        for label in [label for label, future in self._writing.items() if future.done()]:
            error = self._writing.pop(label).exception()
            if error is not None and not isinstance(error, GlovewireError):
                raise error
            self._send(self._core.checkpointed(label, now, error))

    def _publish(self, now: float) -> None:
        due = self._core.samples(now)
        if now - self._sampled >= SERVER_SAMPLE_EVERY_S:
            self._sampled = now
            due.extend(status.samples(self._core, now, self._bytes_in, self._bytes_out))
        for sample in due:
            self._published += 1
            sockets.send(self._publisher, wire.encode_sample(self._core.identity.run, self._published, sample))
            if isinstance(sample, messages.LossSample | messages.QualitySample):
                self._record.add(sample)
            elif isinstance(sample, messages.Event):
                logger.info(log.line(sample.kind, subject=sample.subject, text=sample.text))
