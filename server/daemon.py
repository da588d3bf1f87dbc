"""Carry out the effects of a core: sockets, poller, signals and the thread that writes checkpoints.

Construct -> serve -> stop -> close; the constructor binds the sockets but answers nothing. One thread owns the table;
a second one writes checkpoints from copies (`CheckpointWriter`).
"""

import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import zmq

from glovewire.common import log
from glovewire.common.addresses import port_of
from glovewire.common.endings import Ending, RunEnd
from glovewire.common.errors import GlovewireError, ProtocolError
from glovewire.common.prometheus import Exposition, RunMetrics
from glovewire.common.protocol import messages as m
from glovewire.common.protocol import wire
from glovewire.common.runtime.signals import stop_on_signals
from glovewire.common.storage.run_folder import METRICS
from glovewire.common.transport import sockets
from glovewire.common.transport.curve_keys import ServerKeys
from glovewire.common.transport.wakeup import Wakeup

from .checkpoints import files as checkpoint
from .checkpoints.cuts import Snapshot
from .checkpoints.writer import CheckpointWriter, WriteResult
from .core.core import Core, Effects
from .core.state import NetworkCounts
from .limits import ErrorBudget, Outbox
from .sessions import Peer
from .telemetry.metrics_file import MetricsFile
from .telemetry.publisher import Published

POLL_MS = 50
TICK_MS = 5
"""Milliseconds between ticks of the core while requests keep coming; otherwise it ticks after every poll."""
BATCH = 64
CHECK_EVERY_S = 0.5

CheckShards = Callable[[RunEnd | None], RunEnd | None]
"""Takes why this shard is ending the run, and returns why another shard is; None: it is not ending."""

logger = logging.getLogger(__name__)


class Daemon:
    """Serves one core on a ROUTER socket and publishes on a PUB socket; `serve` returns when the run is over."""

    def __init__(
        self, core: Core, run: Path, bind: str, publish: str, keep: int = 0, keys: ServerKeys | None = None
    ) -> None:
        self._core, self._run = core, run
        self._wakeup = Wakeup()
        self._context = sockets.Context(keys)
        self._writer = CheckpointWriter(run, keep, self._wakeup.set)
        self._metrics_file = MetricsFile(run / METRICS)
        self._metrics = RunMetrics()
        self._exposition: Exposition | None = None
        self._outbox, self._errors = Outbox(), ErrorBudget()
        self._counts = NetworkCounts()
        self.signalled = False
        """Whether a signal has asked the server to stop."""
        self._ending: RunEnd | None = None
        try:
            self._router, self.address = self._context.router(bind)
            self._publisher, self.stream_address = self._context.publisher(publish)
        except GlovewireError:
            self.close()
            raise
        self._counts.port = port_of(self.address)

    def expose(self, port: int) -> None:
        """Serve the published samples as Prometheus metrics on loopback; BindError if the port is taken."""
        self._exposition = Exposition(self._metrics.collect, "127.0.0.1", port)
        logger.info(log.line("metrics", url=self._exposition.url))

    def install_signals(self) -> None:
        """Let SIGTERM and SIGINT end the run in order; a second one ends the process at once."""
        stop_on_signals(self.stop)

    def stop(self) -> None:
        """End the run as a signal does; safe in a signal handler and from another thread."""
        self.signalled = True
        self._wakeup.set()

    def finish_writing(self) -> None:
        """Wait until every queued checkpoint is written; clients that requested one get no reply."""
        self._writer.finish()

    def replace_core(self, core: Core) -> None:
        """Serve another core on the same sockets: sessions, stream and metrics file begin again."""
        self._metrics_file.close()
        self._core, self._metrics_file, self._ending = core, MetricsFile(self._run / METRICS), None

    def serve(self, check_shards: CheckShards = lambda _: None) -> RunEnd:
        """Answer requests until the run is over and workers have left; return why it ended.

        `check_shards` is called twice a second, and at once when the run begins to end; its exceptions end serving.
        """
        poller = zmq.Poller()
        poller.register(self._router, zmq.POLLIN)
        poller.register(self._wakeup.reader, zmq.POLLIN)
        zap = self._context.zap
        if zap is not None:
            poller.register(zap.socket, zmq.POLLIN)
        ticked, checked, tick_owed = 0.0, 0.0, False
        known: RunEnd | None = None
        while True:
            ready = dict(poller.poll(1 if self._outbox.has_deferred else TICK_MS if tick_owed else POLL_MS))
            if self._router in ready:
                self._receive_batch()
            for peer, number, pull in self._outbox.ready(time.monotonic()):
                self._carry_out(self._core.receive(peer, number, pull, time.monotonic()))
            if zap is not None and zap.socket in ready:
                self._counts.turned_away += zap.answer()
            now = time.monotonic()
            busy = len(ready) == 1 and self._router in ready
            tick_owed = busy and now - ticked < TICK_MS / 1e3 and self._ending is None
            if tick_owed:
                continue
            ticked = now
            self._wakeup.clear()
            if self.signalled:
                self._carry_out(self._core.finish(RunEnd(Ending.STOPPED)))
            self._report_written(self._writer.results(), now)
            effects = self._core.tick(now, self._counts)
            self._carry_out(effects)
            if now - checked >= CHECK_EVERY_S or known != self._ending:
                checked, known = now, self._ending
                if (end := check_shards(known)) is not None and known is None:
                    self._carry_out(self._core.finish(end))
                    self._wakeup.set()  # tick at once
            if effects.finished is not None:
                return effects.finished

    def write_now(self, snapshot: Snapshot) -> None:
        """Write a checkpoint in this thread, once the writer thread has written all those queued."""
        self._report_written(self._writer.finish(), time.monotonic())
        checkpoint.write(self._run, snapshot)

    def announce(self, kind: str, text: str = "") -> None:
        """Publish everything that is queued, then an event of `kind` that says how this shard ended."""
        self._carry_out(self._core.announce(time.monotonic(), kind, text))

    def close(self) -> None:
        """Release sockets, files and threads; may be called twice."""
        self._writer.close()
        self._metrics_file.close()
        if self._exposition is not None:
            self._exposition.close()
        self._context.close(last_words_ms=500)
        self._wakeup.close()

    def _receive_batch(self) -> None:
        """Handle up to BATCH messages; at least one must be waiting."""
        for number in range(BATCH):
            if number and not sockets.has_message(self._router):
                return
            peer = self._router.recv(zmq.NOBLOCK)
            if self._errors.is_banned(peer):
                self._ignore(peer)
                continue
            frames = sockets.receive(self._router)
            self._counts.bytes_in += wire.bytes_of(frames)
            self._receive(peer, frames)

    def _receive(self, peer: Peer, frames: list[wire.Frame]) -> None:
        try:
            if len(frames[0]):
                raise ProtocolError("a request is [empty, greeting, header, arrays...]")
            request = wire.decode(frames[1:])
        except GlovewireError as error:
            self._errors.record(peer)
            self._carry_out(self._core.reject(peer, error))
            return
        now = time.monotonic()
        if isinstance(request.message, m.Pull) and not self._outbox.has_room(peer, now):
            self._outbox.defer(peer, request.number, request.message)
            return
        self._carry_out(self._core.receive(peer, request.number, request.message, now))

    def _ignore(self, peer: Peer) -> None:
        """Drop a message of a banned peer; the first one ends its connection."""
        disconnects = self._errors.must_disconnect(peer)
        where = sockets.discard_message(self._router, hang_up=disconnects)
        self._counts.ignored += 1
        if disconnects:
            self._counts.cut_off += 1
            so_far = self._counts.cut_off
            if so_far & (so_far - 1) == 0:  # the 1st, 2nd, 4th, ...: strangers cannot fill the log
                logger.warning(log.line("cut_off", where=where, so_far=so_far, why="too many unreadable messages"))

    def _carry_out(self, effects: Effects) -> None:
        for reply in effects.replies:
            self._send(reply.peer, reply.number, reply.message)
        for snapshot in effects.snapshots:
            self._writer.begin(snapshot)
        if effects.checkpoint_awaited:
            self._writer.speed_up()
        for published in effects.published:
            self._publish(published)
        self._ending = effects.ending

    def _send(self, peer: Peer, number: int, message: m.Message) -> None:
        frames = [peer, b"", *wire.encode(number, message)]
        try:
            if self._outbox.is_full(peer) and wire.bytes_of(frames) > sockets.BIG_FRAME_BYTES:
                raise zmq.Again
            leaving = sockets.send(self._router, frames, track=True)
            if leaving:
                self._outbox.sent(peer, leaving, time.monotonic())
            self._counts.bytes_out += wire.bytes_of(frames)
        except zmq.ZMQError as error:  # the peer is gone, or does not read; if it lives, it repeats its request
            self._counts.undelivered += 1
            logger.debug(log.line("undelivered", why=error))

    def _report_written(self, written: Iterable[WriteResult], now: float) -> None:
        """Tell the core which checkpoints were written and which failed."""
        for each in written:
            self._carry_out(self._core.checkpointed(each.label, now, each.error, each.seconds, each.removed))

    def _publish(self, published: Published) -> None:
        """Send a sample to subscribers; also append losses and scores to the metrics file, and events to the log."""
        sample = published.sample
        sockets.send(self._publisher, published.frames)
        self._metrics.run = published.run
        self._metrics.add(sample)
        if isinstance(sample, m.LossSample | m.QualitySample):
            self._metrics_file.add(sample)
        elif isinstance(sample, m.Event):
            logger.info(log.line(sample.kind, subject=sample.subject, text=sample.text))
