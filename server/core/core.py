"""The server's mind: a request in, replies and events out. No sockets, no clock, no files; `now` is an argument.

Requests that cannot be answered yet are parked here and answered when something changed. The daemon carries out what
the core decides and brings in what the world says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from glovewire.common.errors import BadRequest, DatasetMismatch, GlovewireError, ProtocolError, RunOver
from glovewire.common.model.options import TrainingOptions
from glovewire.common.protocol import messages as m

from ..checkpoints.cuts import LAST_CHECKPOINT, Cuts, Snapshot, final_label
from ..config import Identity
from ..consistency.interface import Consistency
from ..leases.progress import Progress
from ..sessions import Peer, Session, Sessions, is_new
from ..table.table import Table
from ..telemetry import status as answers
from ..telemetry.publisher import News, Stream
from ..telemetry.status import checkpoint_facts, worker_sample
from .pull_push import Exchange
from .push_counts import STRANGER, Tally
from .tensors import Tensors
from .waiting import MayWait, Outgoing, Parked, Parking, Replies


class Core:
    """Decides everything about one shard.

    `started` is the time from which the stream's `t` counts, in seconds; `words` are what the table's rows stand for.
    """

    def __init__(
        self,
        identity: Identity,
        options: TrainingOptions,
        table: Table,
        consistency: Consistency,
        progress: Progress,
        started: float,
        words: Sequence[str] = (),
        tensors: Tensors | None = None,
    ) -> None:
        self.identity, self.options, self.table = identity, options, table
        self.consistency, self.progress, self.words, self.tensors = consistency, progress, words, tensors
        self.sessions = Sessions(
            identity.generation * m.WORKERS_PER_GENERATION, identity.awaited, identity.shard, identity.shards
        )
        self.news, self.tally = News(started, identity.shard), Tally()
        self.stream = Stream(identity.run)
        self.counters: Counter[str] = Counter()
        self.ending: str | None = None
        self.finishing: str | None = None
        self.parking = Parking()
        self._replies = Replies()
        self._bytes_of_the_gone = 0
        self.checkpoint_s = -1.0
        self.cuts = Cuts(table, consistency, options.epochs, identity.checkpoint_rounds, lambda: checkpoint_facts(self))
        self.exchange = Exchange(table, consistency, options, self.cuts, self.counters, tensors)
        self._handlers: dict[type[m.Message], Callable[..., m.Message | None]] = {
            m.Hello: self._hello,
            m.Lease: self._lease,
            m.Pull: self._pull,
            m.Push: self._push,
            m.Create: self._create,
            m.Report: self._report,
            m.Heartbeat: self._beat,
            m.Leave: self._bye,
            m.Finish: self._finish,
            m.Score: self._score,
            m.GetStatus: self._asked,
            m.GetHistory: self._asked,
            m.GetWords: self._asked,
            m.Checkpoint: self._checkpoint,
        }

    # ---- what the daemon calls

    def handle(self, peer: Peer, number: int, message: m.Message, now: float) -> list[Outgoing]:
        """Everything that has to be sent because `peer` sent `message`."""
        handler = self._handlers.get(type(message))
        try:
            if handler is None:
                raise ProtocolError(f"{type(message).__name__} is not a request")
            reply = handler(message, peer, number, now)
        except GlovewireError as error:
            reply = self.refuse(error)
            if isinstance(message, m.Push):
                self.tally.answered(self.sessions.name_at(peer) or STRANGER, reply)
        if reply is not None:
            self._replies.send(Outgoing(peer, number, reply))
        self._unpark()
        return self._replies.take()

    def refuse(self, error: GlovewireError) -> m.Refused:
        """The reply for a request that could not be carried out."""
        self.counters["refused"] += 1
        return m.Refused(error.code, str(error)[:500])

    def tick(self, now: float) -> list[Outgoing]:
        """Time has passed: workers not heard for a while are late, those not heard for the lease time are lost."""
        late, lost = self.sessions.watch(now, self.identity.lease_s)
        for session in late:
            self.news.say_of_worker(now, "late", session.name, f"not heard for {now - session.seen:.1f} s")
        for session in lost:
            self._leave(session, now, "lost", f"not heard for {self.identity.lease_s:g} s")
        if missing := self.exchange.begin_late(self.sessions.workers, now - self.identity.lease_s):
            self.news.say(now, "begun", f"shard {self.identity.shard}", f"{missing} of the workers have not come")
        if self.ending is not None and not self.sessions.workers:
            self.finishing = self.finishing or self.ending
        self._unpark()
        self._replies.let_go()
        return self._replies.take()

    def samples(self, now: float) -> list[m.Message]:
        """What is to be said on the stream: events at once, losses at most ten times a second."""
        return [*self.news.take(), *self.progress.losses.samples(now, force=self.finishing is not None)]

    def checkpointed(
        self, label: str, now: float, error: GlovewireError | None = None, seconds: float = 0.0
    ) -> list[Outgoing]:
        """A checkpoint is on disk, after `seconds`, or could not be written: tell those who asked, and the stream."""
        reply = m.Checkpointed(label) if error is None else self.refuse(error)
        for peer, number in self.cuts.mark_written(label, on_disk=error is None):
            self._replies.send(Outgoing(peer, number, reply))
        if error is None:
            self.counters["checkpoints"] += 1
            self.checkpoint_s = seconds
        self.news.say(now, "checkpoint", label, f"in {seconds:.2f} s" if error is None else f"not written: {error}")
        return self._replies.take()

    def finish(self, reason: str, *, at_once: bool = False) -> list[Outgoing]:
        """End the run: no new work for anybody. Rows in exclusive order first come to one round, unless `at_once`."""
        if at_once:
            self.finishing = self.finishing or reason
        else:
            self._end(reason)
        self._unpark()
        return self._replies.take()

    @property
    def bytes_from_workers(self) -> int:
        """What workers say they have sent, to all shards."""
        return self._bytes_of_the_gone + sum(session.bytes_sent for session in self.sessions.workers)

    def final(self) -> Snapshot:
        """The last state, for the final checkpoint."""
        return self.cuts.snapshot(final_label(self.identity.generation), self.table.join(), self.cuts.round)

    # ---- one handler a request

    def _hello(self, hello: m.Hello, peer: Peer, _: int, now: float) -> m.Message:
        self.sessions.note(hello)
        if self.finishing is not None:
            raise RunOver.because(self.finishing)
        if hello.role == "worker" and hello.dataset != self.identity.dataset:
            raise DatasetMismatch(
                f"this worker's dataset ({hello.dataset[:12] or 'none'}) is not the server's "
                f"({self.identity.dataset[:12]}): give both the same folder"
            )
        if (other := self.sessions.other(peer, hello.name)) is not None:
            self._leave(other, now, "left", f"is called {hello.name} now")
        before = self.sessions.by_name.get(hello.name)
        session, replaced = self.sessions.open(hello, peer, now)
        if replaced is not None:
            self._release(replaced, now, "lost", "replaced by a new process of the same name")
        if session.role == "worker" and session is not before:
            self.exchange.joined(session.index)
            self.news.say_of_worker(now, "joined", session.name, "")
        who = self.identity
        return m.Welcome(
            who.run, who.shard, who.shards, session.index, session.pushed, who.lease_s, self.options.as_message(),
            self.consistency.steps, self.exchange.credit.grant(session.index),
        )  # fmt: skip

    def _lease(self, lease: m.Lease, peer: Peer, number: int, now: float) -> m.Message | None:
        session = self.sessions.worker(peer, now)
        if lease.ticket == session.ticket and session.grant is not None:
            return session.grant
        if lease.ticket <= session.ticket:
            raise BadRequest(f"ticket {lease.ticket} came after ticket {session.ticket}")
        return self._answer_or_park(peer, number, session, lease)

    def _create(self, create: m.Create, peer: Peer, number: int, now: float) -> m.Message | None:
        return self._answer_or_park(peer, number, self.sessions.of(peer, now), create)

    def _pull(self, pull: m.Pull, peer: Peer, number: int, now: float) -> m.Message | None:
        session = self.sessions.of(peer, now)
        self.exchange.check_pull(pull, session)
        return self._answer_or_park(peer, number, session, pull)

    def _push(self, push: m.Push, peer: Peer, number: int, now: float) -> m.Message | None:
        session = self.sessions.worker(peer, now)
        pull = push.pull if push.then_pull else None
        if pull is not None:
            self.exchange.check_pull(pull, session)
            self.parking.require_room(session)
        if is_new("push", push.sequence, session.pushed):
            applied = self.exchange.take(push, session.index)
            session.pushed, session.staleness = push.sequence, self.exchange.staleness.last
            self._end_when_complete()
        else:
            applied = self.exchange.again(push, session.index)
        self.tally.answered(session.name, applied)
        if pull is None:
            return applied
        rows = None if applied.late or self.finishing is not None else self.exchange.answer(pull, session.index)
        if rows is None:
            self.parking.add(Parked(peer, number, session, pull))
            if applied.late:  # no rows can say that
                return applied
            self._replies.hold(Outgoing(peer, number, applied))
        return rows

    def _report(self, report: m.Report, peer: Peer, _: int, now: float) -> m.Message:
        session = self.sessions.worker(peer, now)
        if self.identity.shard:
            raise BadRequest("only shard 0 counts reports")
        if is_new("report", report.sequence, session.reported):
            self.news.add(self.progress.count(session, report, now, now - self.news.started))
            session.reported = report.sequence
            self.exchange.reported(report.lease, self.progress.floor)
            self._end_when_complete()
        return m.Recorded(self.finishing is not None, self.progress.losses.epoch, self.progress.losses.entries)

    def _beat(self, _: m.Heartbeat, peer: Peer, __: int, now: float) -> m.Message:
        self.sessions.of(peer, now)
        return m.HeartbeatAck(self.finishing is not None)

    def _asked(self, question: m.Message, _: Peer, __: int, now: float) -> m.Message:
        return answers.answer(self, question, now)

    def _checkpoint(self, request: m.Checkpoint, peer: Peer, number: int, _: float) -> m.Message | None:
        if self.finishing is not None:
            raise RunOver(LAST_CHECKPOINT)
        label = self.cuts.request(request.round, peer, number)
        return None if label is None else m.Checkpointed(label)

    def _finish(self, finish: m.Finish, _: Peer, __: int, ___: float) -> m.Message:
        self._end(finish.reason[:200] or "asked")
        return m.Finishing(len(self.sessions.workers))

    def _score(self, score: m.Score, peer: Peer, _: int, now: float) -> m.Message:
        self.sessions.of(peer, now)
        losses = self.progress.losses
        self.news.add([m.QualitySample(now - self.news.started, losses.entries, score.test[:64], score.score)])
        return m.Recorded(self.finishing is not None, losses.epoch, losses.entries)

    def _bye(self, bye: m.Leave, peer: Peer, _: int, now: float) -> m.Message:
        if self.sessions.name_at(peer) is not None:  # otherwise it has left already, and the answer was lost
            self._leave(self.sessions.of(peer, now), now, "left", bye.reason[:200], bye.pushes)
        return m.Left()

    def _end(self, reason: str) -> None:
        """Begin to end: at once, or in exclusive order when workers have finished the rounds that were begun."""
        if self.finishing is not None or self.ending is not None:
            return
        self.ending = reason
        self.progress.stop()
        drained = self.progress.schedule is not None and self.progress.complete
        if reason.startswith("failed") or not self.cuts.in_order or not self.sessions.workers or drained:
            self.finishing = reason

    def _end_when_complete(self) -> None:
        if self.identity.shard == 0 and self.progress.complete:
            self.finishing = self.finishing or self.ending or "complete"

    def _answer(self, session: Session, asked: MayWait) -> m.Message | None:
        """The reply to a request that may have to wait, None while it has to."""
        if isinstance(asked, m.Lease):
            if self.finishing is not None:
                return m.Done(self.finishing)
            return self.progress.grant(session, asked.ticket, self.ending or "complete")
        if self.finishing is not None:
            raise RunOver.because(self.finishing)
        exchange = self.exchange
        return exchange.create(asked, session) if isinstance(asked, m.Create) else exchange.answer(asked, session.index)

    def _answer_or_park(self, peer: Peer, number: int, session: Session, asked: MayWait) -> m.Message | None:
        if (reply := self._answer(session, asked)) is None:
            self.parking.add(Parked(peer, number, session, asked))
        return reply

    def _unpark(self) -> None:
        """Answer what can be answered now: a push frees pulls, a report leases, the end of the run everything."""
        if self.finishing is not None:
            for peer, number in self.cuts.cancel_incomplete():
                self._replies.send(Outgoing(peer, number, self.refuse(RunOver(LAST_CHECKPOINT))))
        for parked, reply in self.parking.retry(self._retry) if self.parking else ():
            if self.sessions.is_open(parked.session, parked.peer):
                self._replies.send(Outgoing(parked.peer, parked.number, reply))

    def _retry(self, parked: Parked) -> m.Message | None:
        is_open = self.sessions.is_open(parked.session, parked.peer)
        try:  # nobody hears the farewell: the request goes with its session
            return self._answer(parked.session, parked.message) if is_open else m.Left()
        except GlovewireError as error:
            return self.refuse(error)

    def _leave(self, session: Session, now: float, kind: str, why: str, pushes: int | None = None) -> None:
        self.sessions.close(session)
        self._release(session, now, kind, why, pushes)

    def _release(self, session: Session, now: float, kind: str, why: str, pushes: int | None = None) -> None:
        blocks = self.progress.release(session.name)
        if session.role == "worker":
            self.exchange.left(session.index, lost=kind == "lost")
            self.tally.left(session.name, pushes)
            self._bytes_of_the_gone += session.bytes_sent
            text = f"{why}; {len(blocks)} blocks go to others" if blocks else why
            self.news.say_of_worker(now, kind, session.name, text)
            if self.identity.shard == 0:
                self.news.add([worker_sample(session, now - self.news.started, now, kind)])
