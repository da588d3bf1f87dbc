"""Carry out the effects of a core: sockets, poller, signals and the thread that writes checkpoints.

Construct -> serve -> stop -> close; the constructor binds the sockets but answers nothing. One thread owns the table;
a second one writes checkpoints from copies (`CheckpointWriter`).
"""

import logging
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

import zmq

from glovewire.common import log
from glovewire.common.addresses import port_of
from glovewire.common.endings import Ending, RunEnd
from glovewire.common.errors import GlovewireError, ProtocolError
from glovewire.common.prometheus import Exposition, RunMetrics
from glovewire.common.protocol import messages as m
from glovewire.common.protocol import wire
from glovewire.common.roles import Client
from glovewire.common.runtime import descriptors
from glovewire.common.runtime.signals import stop_on_signals
from glovewire.common.storage.run_folder import METRICS
from glovewire.common.transport import sockets
from glovewire.common.transport.connections import (
    Connection,
    Listeners,
    address_of,
    cut,
    received_bytes,
    source_of,
    user_of,
)
from glovewire.common.transport.curve_keys import ServerKeys
from glovewire.common.transport.wakeup import Wakeup

from .checkpoints import files as checkpoint
from .checkpoints.cuts import Snapshot, WriteResult
from .checkpoints.writer import CheckpointWriter
from .core.core import Core, Effects
from .core.state import NetworkCounts
from .limits import RESERVED_DESCRIPTORS, Connections, ErrorBudget, Outbox, Unfinished, note_changes
from .sessions import Peer
from .telemetry.metrics_file import MetricsFile
from .telemetry.publisher import Published

POLL_MS = 50
TICK_MS = 5
"""Milliseconds between ticks of the core while requests keep coming; otherwise it ticks after every poll."""
BATCH = 64
TRACKED_BYTES = 512
"""Frames above this for clients that are no workers, of which there may be many, are tracked until they are sent."""
MUCH_UNFINISHED_BYTES = 1 << 20
"""Above this, unfinished messages are measured every TICK_MS instead of POLL_MS."""
CHECK_EVERY_S = 0.5
SUBSCRIPTIONS = frozenset(b"\1" + topic[:end].encode() for topic in m.TOPICS for end in range(len(topic) + 1))
"""What a subscriber may send: 1 and a prefix of a topic of the stream."""

QUERIES = m.GetStatus | m.GetHistory | m.GetWords | m.GetData

T = TypeVar("T")
CheckShards = Callable[[RunEnd | None], RunEnd | None]
"""Takes why this shard is ending the run, and returns why another shard is; None: it is not ending."""

logger = logging.getLogger(__name__)


class Daemon:
    """Serves one core on a ROUTER socket and publishes on a PUB socket; `serve` returns when the run is over.

    A peer that sends a frame above `largest_frame` bytes is disconnected.
    """

    def __init__(
        self,
        core: Core,
        run: Path,
        bind: str,
        publish: str,
        keep: int = 0,
        keys: ServerKeys | None = None,
        largest_frame: int = wire.MAX_FRAME_BYTES,
    ) -> None:
        self._core, self._run = core, run
        self._wakeup = Wakeup()
        self._context = sockets.Context(keys)
        self._allowed = None if keys is None else keys.allowed
        self._writer = CheckpointWriter(run, keep, self._wakeup.set)
        self._metrics_file = MetricsFile(run / METRICS)
        self._metrics = RunMetrics()
        self._exposition: Exposition | None = None
        self._workers: set[Peer] = set()
        self._outbox, self._errors = Outbox(self._workers), ErrorBudget()
        self._counts = NetworkCounts()
        self.signalled = False
        """Whether a signal has asked the server to stop."""
        self._ending: RunEnd | None = None
        self._check_shards: CheckShards = lambda _: None
        self._unanswered = False
        try:
            self._router, self.address = self._context.router(bind, largest_frame)
            self._publisher, self.stream_address = self._context.publisher(publish)
            self._monitors = [self._context.watch(socket) for socket in (self._router, self._publisher)]
        except GlovewireError:
            self.close()
            raise
        self._counts.port = port_of(self.address)
        self._listeners = Listeners((self.address, self.stream_address))
        self._connections = Connections(descriptors.left() - RESERVED_DESCRIPTORS)
        self._unfinished, self._measured = Unfinished(source_of, largest_frame, self._workers), 0.0

    def expose(self, port: int) -> None:
        """Serve the published samples as Prometheus metrics on loopback; BindError if the port is taken."""
        self._exposition = Exposition(self._metrics, "127.0.0.1", port)
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

        `check_shards` is called twice a second, at once when the run begins to end, and before a client is welcomed or
        told that the run is over; its exceptions end serving.
        """
        self._check_shards = check_shards
        poller = self._poller()
        poller.register(self._router, zmq.POLLIN)
        ticked, checked, tick_owed = 0.0, 0.0, False
        known: RunEnd | None = None
        while True:
            wait_ms = 0 if self._unanswered else 1 if self._outbox.has_deferred else self._patience_ms()
            ready = dict(poller.poll(min(wait_ms, TICK_MS) if tick_owed else wait_ms))
            if len(ready) > (self._router in ready):
                self._admit()
            self._cut_unfinished(time.monotonic())
            if self._router in ready:
                self._receive_batch()
            for peer, number, pull, client in self._outbox.ready(time.monotonic()):
                self._carry_out(self._core.receive(peer, number, pull, time.monotonic(), client))
            now = time.monotonic()
            busy = len(ready) == 1 and self._router in ready
            tick_owed = busy and now - ticked < TICK_MS / 1e3 and self._ending is None and not self._unanswered
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
                self._revoke_keys(now)
                if (end := self._check()) is not None and known is None:
                    self._carry_out(self._core.finish(end))
                    self._wakeup.set()  # tick at once
            if effects.finished is not None:
                return effects.finished

    def write_now(self, snapshot: Snapshot) -> None:
        """Write a checkpoint, once the writer thread has written all those queued."""
        self._report_written(self.aside(self._writer.finish), time.monotonic())
        self.aside(partial(checkpoint.write, self._run, snapshot))

    def aside(self, action: Callable[[], T]) -> T:
        """Run `action` in a thread and return its result, answering no requests and letting no new connection in.

        While too many files are open, it is tried again (`descriptors.patiently`).
        """
        poller = self._poller()
        with self._listeners.paused(), ThreadPoolExecutor(1, "results") as thread:
            self._admit()
            future = thread.submit(descriptors.patiently, action)
            future.add_done_callback(lambda _: self._wakeup.set())
            while not future.done():
                poller.poll(self._patience_ms())
                self._wakeup.clear()
                self._admit()
                self._cut_unfinished(time.monotonic())
            return future.result()

    def farewell(self) -> None:
        """Let the workers of a complete run go: they waited until its rows were on disk."""
        self._carry_out(self._core.farewell())

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

    def _poller(self) -> zmq.Poller:
        """Return a poller of everything but requests."""
        zap = self._context.zap
        poller = zmq.Poller()
        for source in (self._wakeup.reader, self._publisher, *(monitor.socket for monitor in self._monitors)):
            poller.register(source, zmq.POLLIN)
        if zap is not None:
            poller.register(zap.socket, zmq.POLLIN)
        return poller

    def _check(self) -> RunEnd | None:
        try:
            return self._check_shards(self._ending)
        except GlovewireError as error:
            if not descriptors.is_shortage(error):
                raise
            logger.warning(log.line("unchecked", why=error))
            return None  # the next check is soon

    def _admit(self) -> None:
        """Admit new clients by their keys, and cut connections above the limits and those that abuse the stream."""
        if self._context.zap is not None:
            for address, public in self._context.zap.answer():
                self._counts.turned_away += 1
                logger.info(log.line("audit_turned_away", where=address, public=public))
        self._note_connections()
        for message, frame in sockets.subscriptions(self._publisher):
            if self._allowed is not None and self._client_of(frame) is None:
                continue
            if message in SUBSCRIPTIONS:
                self._connections.subscribed(source_of(frame), user_of(frame))
            elif not message.startswith(b"\0"):  # leaving a topic is always allowed
                self._cut([self._connections.remove(source_of(frame))], "a subscription to no topic of the stream")
        self._cut(self._connections.take_surplus(self._core.session_at), "too many connections")

    def _note_connections(self) -> None:
        for monitor in self._monitors:
            note_changes(monitor.changes(), self._connections, self._unfinished, self._workers)

    def _cut_unfinished(self, now: float) -> None:
        """Cut, every now and then, the connections whose messages do not end."""
        if now - self._measured < self._patience_ms() / 1e3:
            return
        self._measured = now
        found = self._unfinished.surplus([each.descriptor for each in self._connections], received_bytes)
        self._cut([self._connections.remove(descriptor) for descriptor in found], "a message that does not end")

    def _patience_ms(self) -> int:
        """Return the time between two looks at idle sockets, in milliseconds."""
        return TICK_MS if self._unfinished.pending > MUCH_UNFINISHED_BYTES else POLL_MS

    def _client_of(self, frame: zmq.Frame) -> Client | None:
        """Return the client that sent a frame; None, and cut its connection, if its key was revoked meanwhile."""
        assert self._allowed is not None
        client = self._allowed.client_of(user_of(frame))
        if client is None:
            self._cut([self._connections.remove(source_of(frame))], "its key was revoked")
        return client

    def _revoke_keys(self, now: float) -> None:
        """End the sessions and connections of the clients whose keys were removed from the allow-list."""
        if self._allowed is None:
            return
        before, revoked = self._allowed.problem, self._allowed.refresh()
        for public, client in revoked.items():
            logger.info(log.line("audit_revoked", key=client.name, role=client.role, public=public))
        if revoked:
            self._carry_out(self._core.revoke(revoked.values(), now))
            self._cut(self._connections.take_of(revoked), "its key was revoked")
        if self._allowed.problem not in ("", before):
            logger.warning(log.line("allow_list", problem=self._allowed.problem, used="the list read last"))

    def _cut(self, surplus: Iterable[Connection | None], why: str) -> None:
        for connection in filter(None, surplus):
            cut(connection)
            self._counts.cut_off += 1
            logger.warning(log.line("cut_off", where=connection.host, why=why))

    def _receive_batch(self) -> None:
        """Handle up to BATCH messages; at least one must be waiting."""
        for number in range(BATCH):
            if number and not sockets.has_message(self._router):
                return
            peer = self._router.recv(zmq.NOBLOCK)
            if self._errors.is_banned(peer):
                self._ignore(peer)
                continue
            frames, last = sockets.receive_from(self._router)
            self._counts.bytes_in += wire.bytes_of(frames)
            if not self._unfinished.knows(peer):
                self._note_connections()
            self._unfinished.heard(peer, last)
            self._receive(peer, frames, last)

    def _receive(self, peer: Peer, frames: list[wire.Frame], last: zmq.Frame) -> None:
        client = None
        if self._allowed is not None and (client := self._client_of(last)) is None:
            return
        now, joined = time.monotonic(), None
        try:
            if len(frames[0]):
                raise ProtocolError("a request is [empty, greeting, header, arrays...]")
            request = wire.decode(frames[1:])
        except GlovewireError as error:
            self._errors.record(peer)
            effects = self._core.reject(peer, error)
        else:
            if isinstance(request.message, m.Pull) and not self._outbox.has_room(peer, now):
                self._outbox.defer(peer, request.number, request.message, client)
                return
            if isinstance(request.message, QUERIES) and self._outbox.is_full(peer):
                self._counts.undelivered += 1  # before the work for a reply that could not be sent; it may ask again
                return
            if isinstance(request.message, m.Hello) and (end := self._check()) is not None:
                self._carry_out(self._core.finish(end))
            effects = self._core.receive(peer, request.number, request.message, now, client)
            joined = self._core.session_at(peer) if isinstance(request.message, m.Hello) else None
        for what, facts in effects.audit:
            key = "" if client is None else client.name
            logger.info(log.line(f"audit_{what}", where=address_of(last), key=key, **facts))
        self._carry_out(effects)
        if joined is not None:
            self._connections.joined(source_of(last), peer, user_of(last))
            if joined.is_worker:
                self._workers.add(peer)

    def _ignore(self, peer: Peer) -> None:
        """Drop a message of a banned peer; the first one whose connection is known ends that."""
        source = source_of(sockets.discard_message(self._router))
        self._counts.ignored += 1
        if source in self._connections and self._errors.must_disconnect(peer):
            self._cut([self._connections.remove(source)], "too many unreadable messages")

    def _carry_out(self, effects: Effects) -> None:
        for reply in effects.replies:
            self._send(reply.peer, reply.number, reply.message)
        for snapshot in effects.snapshots:
            self._writer.begin(snapshot)
        if effects.checkpoint_awaited:
            self._writer.speed_up()
        for published in effects.published:
            self._publish(published)
        self._ending, self._unanswered = effects.ending, effects.unanswered

    def _send(self, peer: Peer, number: int, message: m.Message) -> None:
        try:
            frames = [peer, b"", *wire.encode(number, message)]
        except ProtocolError as error:
            logger.error(log.line("unsendable", why=error))
            self._carry_out(self._core.reject(peer, error, number))
            return
        try:
            big = sockets.BIG_FRAME_BYTES if peer in self._workers else TRACKED_BYTES
            if wire.bytes_of(frames) > big and self._outbox.is_full(peer):
                raise zmq.Again
            leaving = sockets.send(self._router, frames, track=True, big=big)
            if leaving:
                self._outbox.sent(peer, leaving, time.monotonic())
            self._counts.bytes_out += wire.bytes_of(frames)
        except zmq.ZMQError as error:  # the peer is gone, or does not read; if it lives, it repeats its request
            self._counts.undelivered += 1
            if error.errno == zmq.EHOSTUNREACH:
                self._core.disconnected(peer)
            logger.debug(log.line("undelivered", why=error))

    def _report_written(self, written: Iterable[WriteResult], now: float) -> None:
        """Tell the core which checkpoints were written and which failed."""
        for each in written:
            self._carry_out(self._core.checkpointed(each, now))

    def _publish(self, published: Published) -> None:
        """Send a sample to subscribers; also append losses and scores to the metrics file, and events to the log."""
        sample = published.sample
        sockets.send(self._publisher, published.frames)
        self._metrics.run = published.run
        self._metrics.add(sample)
        if isinstance(sample, m.RunSample | m.LossSample | m.QualitySample):
            self._metrics_file.add(sample)
        elif isinstance(sample, m.Event):
            logger.info(log.line(sample.kind, subject=sample.subject, text=sample.text))
