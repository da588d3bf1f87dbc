"""Turn messages and time into effects: all decisions of one shard. No sockets, clock or files.

    core = Core(state)
    effects = core.receive(peer, number, message, now)   # for every request
    effects = core.tick(now, network)                    # every few milliseconds, until effects.finished

The caller carries the effects out: it sends the replies, writes the snapshots and publishes the samples. It calls
`checkpointed` once a checkpoint was written or has failed, and `finish` when a signal or another shard ends the run.
After the run, `final` returns the last snapshot, and `summary` the results of the training.
"""

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from glovewire.common.endings import LASTING, Ending, RunEnd
from glovewire.common.errors import (
    BadRequest,
    DatasetMismatch,
    GlovewireError,
    LeaseLost,
    NotReady,
    OutOfOrder,
    ProtocolError,
    RunOver,
    UnknownSession,
    parse_ending,
)
from glovewire.common.protocol import messages as m
from glovewire.common.roles import Client
from glovewire.common.text import printable

from ..checkpoints.cuts import LAST_CHECKPOINT, Snapshot, WriteResult, final_label
from ..leases.patience import Held
from ..limits import held_bytes
from ..sessions import LATE_FRACTION, Peer, Session, is_new
from ..telemetry import status
from ..telemetry.publisher import Published
from . import rights
from .push_counts import NO_SESSION
from .state import NetworkCounts, ShardState
from .waiting import Condition, MayWait, Outgoing, Replies, WaitingRequest

DRAIN_S = 10.0
"""Seconds that workers have to complete their rounds and leave once the run is ending."""
BRIEF_DRAIN_S = 3.0
"""The same after a signal, and for workers that have not trained a strip of a complete run."""
DESCRIBE_EVERY_S = 30.0
"""Seconds between descriptions of the run on shard 0's stream, for subscribers that do not request the history."""
MAX_LEFT = 4096
"""Maximum number of remembered peers that have left a run that is over."""
ENDS_A_RUN = (Ending.COMPLETE, Ending.ASKED, Ending.STOPPED, Ending.FAILED)
ORDINARY = (LeaseLost, NotReady, OutOfOrder, RunOver, UnknownSession)
"""Refusals that are part of a normal run; all others are audited."""


class Effects(NamedTuple):
    """What the caller must do after a message or a tick.

    `ending`: why the run is ending, None before; `finished`: the same, but None until serving is over.
    `checkpoint_awaited`: a client waits for a checkpoint. `unanswered`: more replies are ready, call `tick` soon.
    `audit`: events to log about the sender, as (event, facts); the caller adds the sender's key and address.
    """

    replies: list[Outgoing]
    snapshots: list[Snapshot]
    published: Sequence[Published]
    ending: RunEnd | None
    finished: RunEnd | None
    checkpoint_awaited: bool
    unanswered: bool
    audit: Sequence[tuple[str, dict[str, str]]]


class Core:
    """Makes all decisions of one shard; the module's docstring shows how to call it."""

    def __init__(self, state: ShardState) -> None:
        self._state = state
        self._replies = Replies()
        self._audit: list[tuple[str, dict[str, str]]] = []
        self._ending_since: float | None = None
        self._left: dict[Peer, Outgoing] = {}  # replies to workers that left a run that is over, or came late
        self._rows_saved = False
        self._described = -math.inf
        self._handlers: dict[type[m.Message], Callable[..., m.Message | None]] = {
            m.Hello: self._hello,
            m.Lease: self._lease,
            m.Pull: self._pull,
            m.Push: self._push,
            m.Create: self._create,
            m.Report: self._report,
            m.Heartbeat: self._heartbeat,
            m.Leave: self._leave,
            m.Finish: self._finish,
            m.Score: self._score,
            m.Proceed: self._proceed,
            m.GetStatus: self._query,
            m.GetHistory: self._query,
            m.GetWords: self._query,
            m.GetData: self._query,
            m.Checkpoint: self._checkpoint,
        }
        if state.progress.complete:  # restored complete: only the results must be written, even if no worker comes
            self._close(RunEnd(Ending.COMPLETE))

    # ---- interface

    def receive(self, peer: Peer, number: int, message: m.Message, now: float, client: Client | None = None) -> Effects:
        """Handle request `number` of `peer`; an error becomes a `Refused` reply. Without keys, `client` is None."""
        handler = self._handlers.get(type(message))
        try:
            if handler is None:
                raise ProtocolError(f"{type(message).__name__} is not a request")
            if client is not None:
                rights.require(client, message)
                self._state.sessions.detach_others(peer, client)
            reply = handler(message, peer, number, now)
        except GlovewireError as error:
            if isinstance(error, UnknownSession) and peer in self._left and self._state.over is not None:
                error = RunOver(*self._state.over)  # its last hello was late: it has joined, and must leave all shards
            reply = self._refusal(error)
            if isinstance(message, m.Push):
                session = self._state.sessions.at(peer)
                self._state.push_counts.answered(NO_SESSION if session is None else session.name, reply)
            self._audit_refusal(type(message).__name__, error)
        if reply is not None:
            self._replies.send(Outgoing(peer, number, reply))
        self._answer_woken()
        return self._effects()

    def session_at(self, peer: Peer) -> Session | None:
        """Return the open session of `peer`, None if it has none."""
        return self._state.sessions.at(peer)

    def reject(self, peer: Peer, error: GlovewireError, number: int = 0) -> Effects:
        """Refuse a message of `peer` that could not be decoded, or request `number`, whose reply cannot be encoded."""
        self._replies.send(Outgoing(peer, number, self._refusal(error)))
        self._audit_refusal("", error)
        return self._effects()

    def tick(self, now: float, network: NetworkCounts) -> Effects:
        """Find late and lost workers, finish a run that has ended, and publish the samples that are due.

        `network` holds the caller's socket counts so far.
        """
        state = self._state
        state.network = network
        late, lost = state.sessions.watch(now, state.identity.lease_s)
        for session in late:
            if session.is_worker:  # observers may be idle
                state.publisher.worker_event(now, "late", session, f"not heard for {now - session.seen:.1f} s")
        for session in lost:
            self._end_session(session, now, "lost", f"not heard for {state.identity.lease_s:g} s")
        self._end_overdue(now)
        if missing := state.pull_push.begin_late(state.sessions.workers, now - state.identity.lease_s):
            text = f"{missing} of the workers have not come"
            state.publisher.event(now, "begun", f"shard {state.identity.shard}", text)
        if state.identity.asked and (state.sessions.workers or state.publisher.elapsed(now) > state.identity.lease_s):
            self._end(RunEnd(Ending(state.identity.asked)))
        finished = state.over if self._is_finished(now) else None
        self._answer_woken()
        self._replies.release()
        if finished is not None:
            sessions = state.sessions.by_name.values()
            self._dismiss([session for session in sessions if not (session.is_worker and self._is_unsaved)])
        return self._effects(self._publish(now), finished)

    def disconnected(self, peer: Peer) -> None:
        """Record that a reply to `peer` could not be sent because its connection is gone."""
        self._state.sessions.disconnected(peer)

    def checkpointed(self, written: WriteResult, now: float) -> Effects:
        """Record that a checkpoint is on disk or could not be written."""
        state, label, error = self._state, written.label, written.error
        reply = m.Checkpointed(label) if error is None else self._refusal(error)
        for peer, number in state.cuts.mark_written(written):
            self._replies.send(Outgoing(peer, number, reply))
        if error is None:
            state.counters["checkpoints"] += 1
            state.checkpoint_s = written.seconds
        text = f"in {written.seconds:.2f} s" if error is None else f"not written: {error}"
        state.publisher.event(now, "checkpoint", label, text)
        return self._effects()

    def finish(self, end: RunEnd) -> Effects:
        """End the run for the reason `end`; in exclusive order, workers first complete the rounds that have begun."""
        self._end(end)
        self._answer_woken()
        return self._effects()

    def revoke(self, clients: Collection[Client], now: float) -> Effects:
        """End the sessions of clients whose keys were revoked; their leases go to others."""
        for session in self._state.sessions.of_clients(clients):
            self._end_session(session, now, "lost", "its key was revoked")
        self._answer_woken()
        return self._effects()

    def announce(self, now: float, kind: str, text: str) -> Effects:
        """Publish everything that is queued, then an event of `kind` that says how this shard ended."""
        published = self._publish(now, everything=True)
        self._state.publisher.event(now, kind, f"shard {self._state.identity.shard}", text)
        return self._effects([*published, *self._publish(now, everything=True)])

    def farewell(self) -> Effects:
        """Release the workers of a run that is over: the rows of all shards are on disk."""
        untold = self._state.sessions.workers if self._is_unsaved else []
        self._rows_saved = True
        for reply in self._left.values():
            self._replies.send(reply)
        self._dismiss(untold)
        return self._effects()

    def final(self) -> Snapshot | None:
        """Return the snapshot for the final checkpoint; None if tensors lack values, so that no run could resume."""
        state = self._state
        if state.tensors is not None and not state.tensors.complete:
            return None
        return state.cuts.snapshot(final_label(state.identity.generation), state.table.values, *state.cuts.reached)

    def summary(self, end: RunEnd) -> dict[str, Any]:
        """Return the results of the training, for `--json` and the facts stored with the vectors."""
        return status.summary(self._state, end)

    def free_table(self) -> None:
        """Free the memory of the rows; call it once they are on disk."""
        self._state.table.release()

    # ---- sessions

    def _hello(self, hello: m.Hello, peer: Peer, number: int, now: float) -> m.Message | None:
        state, who = self._state, self._state.identity
        if hello.role == "worker" and hello.dataset != who.dataset:
            raise DatasetMismatch(
                f"this worker's dataset ({hello.dataset[:12] or 'none'}) is not the server's "
                f"({who.dataset[:12]}): give both the same folder"
            )
        state.sessions.note(hello)
        if state.over is not None:
            error = RunOver(*state.over)
            if hello.role != "worker" or not self._is_unsaved:
                raise error
            waiting = state.sessions.by_name.get(hello.name)  # for another shard, or it has lost its connection
            if waiting is not None and waiting.incarnation == hello.incarnation:
                self._end_session(waiting, now, "left", str(error))  # from now on it waits to be let go
            self._keep_until_saved(Outgoing(peer, number, _as_refusal(error)))
            return None
        if (other := state.sessions.at(peer)) is not None and other.name != hello.name:
            self._end_session(other, now, "left", f"continues under the name {hello.name}")
        state.sessions.require_valid(hello)
        if (holder := state.sessions.holder(hello)) is not None:
            self._replies.send(Outgoing(holder.peer, 0, m.HeartbeatAck(False)))  # it fails if the connection is gone
            raise NotReady(
                f"another process is at work under the name {hello.name!r}: give every worker its own; if that process "
                f"has ended, its name is free after {LATE_FRACTION * who.lease_s:g} s at most"
            )
        before = state.sessions.by_name.get(hello.name)
        session, replaced = state.sessions.open(hello, peer, now)
        state.waiting.drop(session, kept=peer)
        if replaced is not None:
            self._release(replaced, now, "lost", "replaced by a new process of the same name")
        if session is not before:
            self._audit.append(("joined", {"name": hello.name, "as": hello.role}))
            if session.is_worker:
                state.pull_push.joined(session.index)
                state.publisher.worker_event(now, "joined", session, "")
        return m.Welcome(
            run=who.run,
            shard=who.shard,
            shards=who.shards,
            worker=session.index,
            options=state.options.as_message(),
            steps=state.consistency.steps,
            credit=state.pull_push.credit.grant(session.index),
            token=state.sessions.token(session),
        )

    def _heartbeat(self, _: m.Heartbeat, peer: Peer, __: int, now: float) -> m.Message:
        if peer not in self._left:  # a worker that has left waits for `farewell`, and must not join again
            self._state.sessions.of(peer, now)
        return m.HeartbeatAck(self._state.over is not None)

    def _leave(self, leave: m.Leave, peer: Peer, number: int, now: float) -> m.Message | None:
        """End a session. A worker that leaves a run that is over gets its reply from `farewell`, once rows are on disk.

        A worker that this generation does not know, because a shard was lost meanwhile, has to join again: the rows
        that it trained are lost.
        """
        end = parse_ending(leave.ending, leave.text)
        if self._state.sessions.at(peer) is None:
            if end.ending in LASTING and peer not in self._left:
                raise UnknownSession("say hello first")
            if peer not in self._left or self._rows_saved:
                return m.Left()
            self._keep_until_saved(Outgoing(peer, number, m.Left()))  # a repeat, or its last hello was late
            return None
        session = self._state.sessions.of(peer, now)
        self._end_session(session, now, "left", str(end), leave.pushes)
        if not session.is_worker:
            return m.Left()
        self._believe_last(end)
        if end.ending not in LASTING or self._rows_saved:
            return m.Left()
        self._keep_until_saved(Outgoing(peer, number, m.Left()))
        return None

    def _keep_until_saved(self, reply: Outgoing) -> None:
        """Let `farewell` send a reply to a worker."""
        self._left[reply.peer] = reply
        if len(self._left) > MAX_LEFT:
            del self._left[next(iter(self._left))]

    @property
    def _is_unsaved(self) -> bool:
        """Return whether the run is over for good and its rows are not on disk: its workers may be needed again."""
        over = self._state.over
        return over is not None and over.ending in LASTING and not self._rows_saved

    def _believe_last(self, end: RunEnd) -> None:
        """End the run for the reason that its last worker gave on leaving, if this shard cannot know it by itself.

        Only shard 0 knows when a run is complete, and only workers notice that it diverges. A worker that leaves before
        all expected ones have connected is not the last.
        """
        sessions = self._state.sessions
        known = self._state.identity.shard == 0 and end.ending is not Ending.FAILED
        if end.ending in ENDS_A_RUN and not known and sessions.all_came and not sessions.workers:
            self._end(end)

    def _end_overdue(self, now: float) -> None:
        """End the sessions of workers that hold up the run, and retry the leases of those whose pause is over."""
        state = self._state
        pausing = state.progress.patience.pausing
        overdue = state.progress.overdue(now, self._waited_for)
        if state.progress.patience.pausing < pausing:
            state.waiting.wake(Condition.LEASE)
        for name in overdue:
            why = "holds what others wait for, and has brought none of it for too long"
            self._end_session(state.sessions.by_name[name], now, "lost", why)

    def _waited_for(self) -> dict[int, Held]:
        """Return the workers whose first values or gradients others wait for, by numbers that change when they push.

        Workers that have never brought a gradient share one number per step, held by the first of them: a worker that
        joins under a new name does not get the whole time for the step again.
        """
        state, found = self._state, dict[int, Held]()
        if state.tensors is not None and (filling := state.tensors.filling()):
            return filling
        waited_for, step = state.consistency.waits_for(), state.consistency.version(0)
        for session in state.sessions.workers:
            if session.index in waited_for:
                is_new = not session.pushed and not state.progress.patience.is_proven(session.name)
                found.setdefault(-1 - step if is_new else (session.index << 64) + session.pushed, (step, session.name))
        return found

    def _end_session(self, session: Session, now: float, kind: str, why: str, pushes: int | None = None) -> None:
        self._state.sessions.close(session)
        self._release(session, now, kind, why, pushes)

    def _release(self, session: Session, now: float, kind: str, why: str, pushes: int | None = None) -> None:
        """Return an ended session's leases and credit; `pushes`: how many it says it sent, None if it did not say."""
        state = self._state
        state.waiting.drop(session)
        rounds = state.progress.release(session.name, lost=kind == "lost")
        state.waiting.wake(Condition.LEASE)
        if session.is_worker:
            state.pull_push.left(session.index, lost=kind == "lost")
            state.push_counts.left(session.name, pushes)
            state.left_bytes_sent += session.bytes_sent
            text = f"{why}; {len(rounds)} strips go to others" if rounds else why
            state.publisher.worker_event(now, kind, session, text)

    def _dismiss(self, sessions: Sequence[Session]) -> None:
        """Send "run over" to sessions that are still open (observers, for example): the server is about to exit."""
        if (over := self._state.over) is not None:
            for session in sessions:
                self._replies.send(Outgoing(session.peer, 0, _as_refusal(RunOver(*over))))

    # ---- work

    def _lease(self, lease: m.Lease, peer: Peer, number: int, now: float) -> m.Message | None:
        session = self._state.sessions.worker(peer, lease.worker, now)
        if lease.ticket == session.ticket and session.grant is not None:
            return session.grant
        if lease.ticket <= session.ticket:
            raise BadRequest(f"ticket {lease.ticket} came after ticket {session.ticket}")
        return self._answer_or_wait(peer, number, session, lease)

    def _create(self, create: m.Create, peer: Peer, number: int, now: float) -> m.Message | None:
        return self._answer_or_wait(peer, number, self._state.sessions.of(peer, now), create)

    def _pull(self, pull: m.Pull, peer: Peer, number: int, now: float) -> m.Message | None:
        session = self._state.sessions.of(peer, now)
        self._state.pull_push.check_pull(pull)
        return self._answer_or_wait(peer, number, session, pull)

    def _push(self, push: m.Push, peer: Peer, number: int, now: float) -> m.Message | None:
        state, pull_push = self._state, self._state.pull_push
        session = state.sessions.worker(peer, push.worker, now)
        pull = push.pull if push.then_pull else None
        if pull is not None:
            pull_push.check_pull(pull)
            state.waiting.require_room(session, held_bytes(pull))
        if is_new("push", push.sequence, session.pushed):
            applied = pull_push.apply(push, session.index)
            session.pushed, session.pushed_late = push.sequence, applied.late
            session.staleness = pull_push.staleness_of.get(session.index, session.staleness)
            if push.operation == "gradient":
                state.progress.patience.reported(session.name)
            self._close_when_complete()
        else:
            late = session.pushed_late and push.sequence == session.pushed
            applied = pull_push.applied(push, session.index, repeated=True, late=late)
        state.push_counts.answered(session.name, applied)
        if pull is None:
            return applied
        later = applied.late or state.over is not None  # `Rows` or `Refused` would not tell what became of the push
        if not later and (rows := pull_push.read(pull, session.index)) is not None:
            state.waiting.remove(peer, number)
            return rows
        self._wait(peer, number, session, pull, woken=later)
        if applied.late:
            return applied
        self._replies.hold(Outgoing(peer, number, applied))
        return None

    def _report(self, report: m.Report, peer: Peer, _: int, now: float) -> m.Message:
        state = self._state
        session = state.sessions.worker(peer, report.worker, now)
        if state.identity.shard:
            raise BadRequest("only shard 0 counts reports")
        if is_new("report", report.sequence, session.reported):
            events = state.progress.count(session, report, now, state.publisher.elapsed(now))
            state.publisher.add(events)
            session.reported, session.bytes_sent = report.sequence, report.bytes_sent
            session.entries += report.entries
            state.pull_push.rounds_complete(state.progress.low_water)
            state.waiting.wake(Condition.LEASE)
            self._close_when_complete()
        return self._recorded()

    def _score(self, score: m.Score, peer: Peer, _: int, now: float) -> m.Message:
        state = self._state
        state.sessions.of(peer, now)
        t, entries = state.publisher.elapsed(now), state.progress.losses.entries
        state.publisher.add([m.QualitySample(t, entries, score.test[:64], score.score)])
        return self._recorded()

    def _proceed(self, proceed: m.Proceed, peer: Peer, _: int, now: float) -> m.Message:
        state = self._state
        state.sessions.of(peer, now)
        state.progress.proceed(proceed.epochs)
        state.waiting.wake(Condition.LEASE)
        self._close_when_complete()
        return self._recorded()

    def _recorded(self) -> m.Recorded:
        losses = self._state.progress.losses
        return m.Recorded(self._state.over is not None, losses.epoch, losses.entries)

    def _answer(self, session: Session, request: MayWait) -> m.Message | None:
        """Return the reply to a Lease, Pull or Create, None while the request must wait."""
        state = self._state
        if isinstance(request, m.Lease):
            if state.over is not None:
                return m.Done(*state.over)
            workers = (worker.name for worker in state.sessions.workers)
            if state.progress.patience.must_pause(session.name, workers):
                return None
            return state.progress.grant(session, request, state.ending or RunEnd(Ending.COMPLETE))
        if state.over is not None:
            raise RunOver(*state.over)
        if isinstance(request, m.Create):
            return state.pull_push.create(request, session)
        return state.pull_push.read(request, session.index)

    def _answer_or_wait(self, peer: Peer, number: int, session: Session, request: MayWait) -> m.Message | None:
        reply = self._answer(session, request)
        if reply is None:
            self._wait(peer, number, session, request)
        else:  # a repeat of a request that waits must not be answered twice
            self._state.waiting.remove(peer, number)
        return reply

    def _wait(self, peer: Peer, number: int, session: Session, request: MayWait, *, woken: bool = False) -> None:
        if isinstance(request, m.Pull):
            condition = self._state.pull_push.condition(request)
        elif isinstance(request, m.Create):
            assert self._state.tensors is not None, "only a dense model takes a Create"
            request, condition = self._state.tensors.shared(request), Condition.VALUES
        else:
            condition = Condition.LEASE
        self._state.waiting.add(WaitingRequest(peer, number, session, request, condition), woken=woken)

    def _answer_woken(self) -> None:
        """Answer waiting requests whose condition has come true."""
        waiting = self._state.waiting
        for request, reply in waiting.retry(self._retry) if waiting.has_woken else ():
            self._replies.send(Outgoing(request.peer, request.number, reply))

    def _retry(self, request: WaitingRequest) -> m.Message | None:
        try:
            return self._answer(request.session, request.message)
        except GlovewireError as error:
            return self._refusal(error)

    # ---- queries and commands

    def _query(self, query: m.Message, _: Peer, __: int, now: float) -> m.Message:
        return status.answer(self._state, query, now)

    def _checkpoint(self, request: m.Checkpoint, peer: Peer, number: int, now: float) -> m.Message | None:
        self._state.sessions.of(peer, now)
        if self._state.over is not None:
            raise RunOver(self._state.over.ending, LAST_CHECKPOINT)
        label = self._state.cuts.request(request.round, peer, number, now)
        return None if label is None else m.Checkpointed(label)

    def _finish(self, finish: m.Finish, _: Peer, __: int, ___: float) -> m.Message:
        end = parse_ending(finish.ending, finish.text)
        if end.ending not in ENDS_A_RUN:
            raise BadRequest(f"a run does not end as {end.ending!r}: give one of {', '.join(ENDS_A_RUN)}")
        self._end(end)
        self._audit.append(("finish", end.as_fields()))
        return m.Finishing(len(self._state.sessions.workers))

    # ---- ending the run

    def _end(self, end: RunEnd) -> None:
        """Start ending the run: close it now, or in exclusive order once the rounds that have begun are complete."""
        state = self._state
        if state.over is not None or state.ending is not None:
            return
        state.ending = end
        state.progress.stop()
        state.waiting.wake(Condition.LEASE)
        is_drained = state.cuts.is_trained if state.progress.schedule is None else state.progress.complete
        if end.ending is Ending.FAILED or not state.cuts.in_order or not state.sessions.workers or is_drained:
            self._close(end)

    def _close(self, end: RunEnd) -> None:
        """Grant no more work, and answer every waiting request."""
        state = self._state
        if state.over is None:
            state.over = end
            state.waiting.wake_all()
            for peer, number in state.cuts.cancel_incomplete():
                self._replies.send(Outgoing(peer, number, self._refusal(RunOver(end.ending, LAST_CHECKPOINT))))

    def _close_when_complete(self) -> None:
        state = self._state
        if state.identity.shard == 0 and state.progress.complete:
            self._close(state.ending or RunEnd(Ending.COMPLETE))

    def _is_finished(self, now: float) -> bool:
        """Return whether serving is over: no worker is left, or the time to drain is up, in which case close the run.

        A complete run waits up to one lease for expected workers that have not joined, to tell them that it is over. So
        does one that was asked to end before a shard was lost: its workers join again.
        """
        state = self._state
        end = state.ending or state.over
        if end is None:
            return False
        if self._ending_since is None:
            self._ending_since = now
        waited_s = now - self._ending_since
        late = waited_s > (BRIEF_DRAIN_S if self._drains_briefly(end) else DRAIN_S)
        if late or not state.sessions.workers:
            self._close(end)
        if state.over is None:
            return False
        waits = state.over.ending is Ending.COMPLETE or state.identity.asked
        if waits and state.sessions.absent and waited_s < state.identity.lease_s:
            return False
        return late or not state.sessions.workers

    def _drains_briefly(self, end: RunEnd) -> bool:
        if end.ending is Ending.STOPPED:
            return True
        progress, workers = self._state.progress, self._state.sessions.workers
        has_strips = end.ending is Ending.COMPLETE and progress.schedule is not None
        return has_strips and not any(progress.patience.is_proven(worker.name) for worker in workers)

    # ---- effects

    def _refusal(self, error: GlovewireError) -> m.Refused:
        self._state.counters["refused"] += 1
        return _as_refusal(error)

    def _audit_refusal(self, request: str, error: GlovewireError) -> None:
        if not isinstance(error, ORDINARY):
            self._audit.append(("refused", {"request": request, "code": error.code, "why": str(error)}))

    def _publish(self, now: float, *, everything: bool = False) -> list[Published]:
        state = self._state
        if not state.identity.shard and now - self._described >= DESCRIBE_EVERY_S:
            self._described = now
            state.publisher.add([status.run_sample(state, now)])
        state.publisher.add(state.progress.losses.samples(now, force=state.over is not None))
        return state.publisher.take_due(
            now, lambda: status.server_sample(state, now), state.sessions.workers, everything=everything
        )

    def _effects(self, published: Sequence[Published] = (), finished: RunEnd | None = None) -> Effects:
        state = self._state
        audit, self._audit = self._audit, []
        return Effects(
            self._replies.take(),
            state.cuts.take_ready(),
            published,
            state.ending or state.over,
            finished,
            state.cuts.requested,
            state.waiting.has_woken,
            audit,
        )


def _as_refusal(error: GlovewireError) -> m.Refused:
    ending = error.ending if isinstance(error, RunOver) else ""
    return m.Refused(error.code, printable(str(error), m.MAX_EXPLANATION), ending)
