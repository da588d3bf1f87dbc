"""Run a `ClientCore` on its connections: one thread, no locks."""

import json
import math
import secrets
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, TypeVar

from .. import errors
from ..client.channel import UNSENT, Channel, OnReply
from ..client.core import APART, ClientCore
from ..client.pending import Pending, expect
from ..endings import LASTING, RunEnd
from ..protocol import messages as m
from .curve_keys import ClientKeys
from .links import Links

STALL_S = 1.0
SILENCE_S = 30.0
PARTING_S = 3.0
"""Time that the servers have to answer a Leave."""
LEAVING_S = 10.0
"""The same for a worker when a run is over: the answer comes once the rows are on disk."""
POLL_MS = 100
CHECK_EVERY_S = 0.01
"""Interval at which the client checks for refused handshakes."""

M = TypeVar("M", bound=m.Message)


class RequestClient(AbstractContextManager["RequestClient"]):
    """Sends requests to every shard as the worker, observer or monitor called `name`; use it as a context manager.

    `connect` opens a session with every shard; queries need none. Requests are retransmitted until they are answered;
    the server recognises repeats, so nothing is applied twice. `dataset` is the dataset's checksum, "" for observers.
    Every wait ends at a deadline with DeadlineExceeded, which names the silent shard; a `Refused` reply is raised as
    the GlovewireError of its code. `keys` are required if the servers have keys; the session's name then begins with
    theirs. `links` are its connections, by default over ZeroMQ. Replies are handled inside `poll`. Programs that train
    tensors use `worker.dense.Client` instead.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        name: str,
        dataset: str = "",
        silence_s: float = SILENCE_S,
        keys: ClientKeys | None = None,
        links: Links | None = None,
    ) -> None:
        if not addresses:
            raise errors.UsageError("no server address was given")
        self._silence_s = silence_s
        self._links = links or Links(addresses, keys)
        self._polled = self._checked = now = self._links.now()
        name = name if keys is None else keys.session_name(name)
        self._core = ClientCore(addresses, name, dataset, secrets.randbits(62), now)
        self.channels = self._core.channels
        self.bytes_sent = 0
        self.on_sent: Callable[[m.Message, int], None] = lambda _, __: None

    @property
    def failed(self) -> errors.GlovewireError | None:
        """Return the error that ended the sessions, None if none has; set it to end the next wait with that error."""
        return self._core.failed

    @failed.setter
    def failed(self, error: errors.GlovewireError | None) -> None:
        self._core.failed = error

    def connect(self, role: str = "worker", timeout_s: float | None = None) -> m.Welcome:
        """Open a session with every shard and return the Welcome of shard 0.

        Raises UsageError unless the addresses are those of all shards of one training, in order; DatasetMismatch,
        VersionMismatch; after `timeout_s` DeadlineExceeded, or NotReady if another process still has the name.
        """
        now = self._links.now()
        deadline = now + (timeout_s or self._silence_s)
        self._core.join(role, now)
        self._tick(now, math.inf)
        while not self._core.joined:
            self.poll(POLL_MS, silence=False)
            if self._links.now() > deadline and not self._core.joined:
                silent = [self.where(shard) for shard in self._core.strangers]
                where = f"no server answers at {', '.join(silent)}: see that it runs and can be reached"
                raise self._core.not_ready or errors.DeadlineExceeded(where if silent else APART)
        welcome = self.channels[0].welcome
        assert welcome is not None
        return welcome

    @property
    def worker(self) -> int:
        """Return the number that shard 0 gave this client, -1 if it has given none."""
        return -1 if (welcome := self.channels[0].welcome) is None else welcome.worker

    def where(self, shard: int) -> str:
        """Return a shard's address, followed by a guess at why no server answers there, if there is one."""
        return self.channels[shard].address + self._links.doubt(shard)

    def send(self, shard: int, message: m.Message, on_reply: OnReply) -> None:
        """Send a request; a later `poll` calls `on_reply` with the reply. `on_reply` must not call `poll`."""
        now = self._links.now()
        request = self._core.send(shard, message, on_reply, now)
        if request.sent != UNSENT and not self._links.send(shard, request.frames):
            self._core.note_blocked(shard, request, now)
        self.bytes_sent += request.size
        self.on_sent(message, request.size)

    def request(self, shard: int, message: m.Message, pending: Pending[Any], take: OnReply | None = None) -> None:
        """Send a request that `pending` waits for; `take` stores the reply, which is otherwise the value itself.

        A push waits until it fits in the credit of every shard.
        """
        if isinstance(message, m.Push):
            self.wait_for_credit(message.values.nbytes)
        self.send(shard, message, partial(pending.settle, take or pending.set))

    def push_and_pull(
        self,
        shard: int,
        push: m.Push,
        applied: Pending[Any],
        take_applied: OnReply,
        rows: Pending[Any],
        take_rows: OnReply,
    ) -> None:
        """Send a push with `then_pull`: `applied` waits for the push, `rows` for the rows that follow.

        The first reply settles the push, whatever it is: the rows may come alone, and an error ends both.
        """
        unanswered = [applied]

        def answered(reply: m.Message) -> None:
            if unanswered:
                unanswered.pop().settle(take_applied, reply)
            if not isinstance(reply, m.Applied):
                rows.settle(take_rows, reply)

        self.wait_for_credit(push.values.nbytes)
        self.send(shard, push, answered)

    def ask(self, shard: int, message: m.Message, timeout_s: float | None = None) -> m.Message:
        """Send a request and return its reply; raises DeadlineExceeded or the error that a refusal names."""
        pending: Pending[m.Message] = Pending()
        self.request(shard, message, pending)
        return self.wait_for(shard, pending, timeout_s or self._silence_s, silence=timeout_s is None)

    def status(self, shard: int, timeout_s: float | None = None) -> dict[str, Any]:
        """Return the statistics of a shard; raises as `ask` does, and ProtocolError if the reply is not a Status."""
        found: dict[str, Any] = json.loads(bytes(expect(self.ask(shard, m.GetStatus(), timeout_s), m.Status).body))
        return found

    def wait_for(self, shard: int, pending: Pending[M], within_s: float, late: str = "", *, silence: bool = True) -> M:
        """Return the reply of `shard` that `pending` waits for; raises its error, or DeadlineExceeded saying `late`."""
        deadline = self._links.now() + within_s
        while not pending.done:
            self.poll(POLL_MS, silence=silence)
            if self._links.now() > deadline and not pending.done:
                text = f"no answer from {self.where(shard)} in time: see that it runs and can be reached"
                raise errors.DeadlineExceeded(late or text)
        return pending.get()

    def wait_for_credit(self, nbytes: int) -> None:
        """Wait until a push of `nbytes` fits in the credit of every shard, or no push is in flight."""
        while not self._core.has_credit(nbytes):
            self.poll(POLL_MS)

    def now(self) -> float:
        """Return the time of a monotonic clock, in seconds."""
        return self._links.now()

    def poll(self, timeout_ms: int, *, silence: bool = True) -> None:
        """Handle received replies, waiting up to `timeout_ms` for the first, and keep the sessions alive.

        Raises DeadlineExceeded when a shard with pending requests has been silent for too long (unless `silence` is
        False), NotAdmitted when a shard refuses this client's keys, and the error of a session that failed.
        """
        for shard in self._links.wait(timeout_ms):
            self._receive(shard)
        if self._core.failed is not None:
            raise self._core.failed
        now = self._links.now()
        if (stall := now - self._polled) > STALL_S:
            self._core.note_stall(stall, now)
        self._polled = now
        if now - self._checked >= CHECK_EVERY_S:
            self._checked = now
            self._links.check()
        if now >= self._core.deadline:
            self._tick(now, self._silence_s if silence else math.inf)

    def flush(self, deadline: float = math.inf) -> None:
        """Wait, at most until `deadline`, for all replies except to pulls and leases, which wait for other workers."""
        while any(channel.owes_reply for channel in self.channels) and self._links.now() < deadline:
            self.poll(POLL_MS)

    def part(self, end: RunEnd, within_s: float | None = None) -> None:
        """Close the session with every shard, after its pushes and reports have been answered.

        Pending pulls and leases are abandoned: the server drops them with the session. A silent server is waited for
        at most `within_s` seconds (default PARTING_S); other workers can redo any work that this loses. When a run is
        over, a shard answers once the rows of all shards are saved, so one answer is enough.
        """
        deadline = self._links.now() + (within_s or PARTING_S)
        self._core.stop_joining()
        self.flush(deadline)
        for shard, channel in enumerate(self.channels):
            if channel.welcome is not None:
                ended = self.channels if end.ending in LASTING else [channel]
                self.send(shard, m.Leave(*end, channel.pushes), partial(_end_sessions, ended))
            elif channel.awaits(m.Hello):  # the shard may have opened a session, or not even run: wait for no answer
                self.send(shard, m.Leave(*end, channel.pushes), channel.end_session)
                channel.pending.clear()
        self.flush(deadline)

    def close(self) -> None:
        """Close every connection, after a short time for sending what is queued; may be called twice."""
        self._links.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _receive(self, shard: int) -> None:
        """Handle the message that has arrived, and further ones while requests are pending."""
        while True:
            answer = self._core.receive(shard, self._links.receive(shard), self._links.now())
            if answer is not None:
                answer.request.on_reply(answer.reply)
            if not (self.channels[shard].pending and self._links.has_message(shard)):
                return

    def _tick(self, now: float, silence_s: float) -> None:
        """Queue requests that are due, in order; once a shard's queue is full, take back the shard's other requests."""
        full = set()
        for shard, request in self._core.tick(now, silence_s):
            if shard in full or not self._links.send(shard, request.frames):
                full.add(shard)
                self._core.note_blocked(shard, request, now)


def _end_sessions(channels: Sequence[Channel], reply: m.Message) -> None:
    for channel in channels:
        channel.end_session(reply)
