"""What a shard tells of itself: the answer to `stats` and its samples on the stream. Changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from glovewire.common.protocol import messages as m

from ..sessions import Session

if TYPE_CHECKING:
    from ..core.core import Core
import json
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from glovewire.common.errors import BadRequest, LimitExceeded, ProtocolError

if TYPE_CHECKING:
    from ..core.core import Core


WORKER_EVERY_S = 0.5
NEVER = ("", -1e9)


def statistics(core: Core, now: float) -> dict[str, Any]:
    """Counters and states as plain JSON values."""
    losses, schedule, table = core.progress.losses, core.progress.schedule, core.table
    loss, floor, norm = losses.epoch_means(losses.last_epoch())
    return {
        "run": core.identity.run,
        "shard": core.identity.shard,
        "shards": core.identity.shards,
        "state": "serving" if core.finishing is None else f"finishing ({core.finishing})",
        "rows": [table.first, table.last],
        "epoch": losses.epoch,
        "epochs": core.options.epochs,
        "round": schedule.round if schedule else -1,
        "blocks_done": schedule.completed if schedule else -1,
        "entries": losses.entries,
        "total": losses.total,
        "seconds": losses.seconds(),
        "loss": loss,
        "bias_only_loss": floor,
        "norm": norm,
        "parked": len(core.parking),
        "counters": dict(core.counters),
        "staleness": core.exchange.staleness.as_fields(),
        "row_ages": core.exchange.ages.as_fields(),
        "missing": core.consistency.missing,
        "hottest": core.exchange.heat.hottest(),
        "pushes": core.tally.summary(),
        "pushes_of": core.tally.workers(),
        "workers": [
            {"name": s.name, "state": s.state, "entries": s.entries, "pushed": s.pushed, "age_s": now - s.seen}
            for s in core.sessions.workers
        ],
    }


def checkpoint_facts(core: Core) -> dict[str, Any]:
    """What a checkpoint says of this shard, beside its rows; NotReady while its tensors lack values."""
    return {
        "entries": core.progress.losses.entries,
        "updates": core.consistency.version(core.table.first) if core.table.versions is not None else 0,
        **_tensor_facts(core),
        "gradients": core.consistency.gradients,
        "generation": core.identity.generation,
        "dataset": core.identity.dataset,
        "options": core.options.as_message(),
        "rows": [core.table.first, core.table.last],
        "shard": core.identity.shard,
        "shards": core.identity.shards,
    }


def _tensor_facts(core: Core) -> dict[str, Any]:
    """Of a dense model: which tensors."""
    return {} if core.tensors is None else {"tensors": core.tensors.require_complete().text}


def shard_sample(core: Core, now: float, port: int, bytes_in: int, bytes_out: int) -> m.ServerSample:
    """What this shard is and has counted."""
    who, count, pushes, table = core.identity, core.counters, core.tally.total, core.table
    return m.ServerSample(
        now - core.news.started, who.shard, who.shards, table.rows, len(core.sessions.workers), count["pulls"],
        pushes["applied"], pushes["repeated"], count["refused"], len(core.parking), bytes_in, bytes_out,
        count["undelivered"], table.nbytes, count["checkpoints"], core.checkpoint_s, port,
        {**core.exchange.staleness.as_fields()}, {**core.exchange.heat.hottest()},
    )  # fmt: skip


def worker_sample(session: Session, t: float, now: float, state: str) -> m.WorkerSample:
    """What one worker is doing, or how it went: `lost` or `left`."""
    rate = session.entries / max(now - session.joined, 1e-9)
    age_s = now - session.seen
    return m.WorkerSample(
        t, session.name, state, session.entries, rate, session.bytes_sent, age_s, session.staleness
    )  # fmt: skip


class Roll:
    """Whose sample goes out next: every worker twice a second while there is room, news of its state before others."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[str, float]] = {}

    def call(self, core: Core, now: float, room: int) -> list[m.WorkerSample]:
        """Samples of at most `room` workers, those first that have waited longest; shard 0 alone has any."""
        if core.identity.shard or not room:
            return []
        workers = core.sessions.workers
        self._told = {s.name: self._told.get(s.name, NEVER) for s in workers}
        waiting = sorted((self._said(session), session.index, session) for session in workers)
        due = [session for said, _, session in waiting if said <= now - WORKER_EVERY_S][:room]
        self._told |= {session.name: (session.state, now) for session in due}
        return [worker_sample(session, now - core.news.started, now, session.state) for session in due]

    def _said(self, session: Session) -> float:
        """When its state was said; never, if it was another one."""
        state, when = self._told[session.name]
        return when if state == session.state else NEVER[1]


# ---- Answers to whoever asks, without a session: what the server does and has said, and what its rows mean.
#
# Looks at the core and changes nothing.
#

MAX_WORDS = 1 << 16


def answer(core: Core, question: m.Message, now: float) -> m.Message:
    """The reply to a question."""
    match question:
        case m.GetStatus():
            return m.Status(np.frombuffer(json.dumps(statistics(core, now)).encode(), np.uint8))
        case m.GetHistory():
            return core.stream.history(question.after)
        case m.GetWords():
            return m.Words(_words(core, question.first, question.last))
    raise ProtocolError(f"{type(question).__name__} is not a question")


def _words(core: Core, first: int, last: int) -> npt.NDArray[np.uint8]:
    table = core.table
    if not table.first <= first <= last <= table.last:
        raise BadRequest(f"rows {first}..{last} are not on this shard, which has {table.first}..{table.last}")
    if last - first > MAX_WORDS:
        raise LimitExceeded(f"ask for at most {MAX_WORDS} words at a time")
    words = core.words[first - table.first : last - table.first]
    return np.frombuffer("".join(f"{word}\n" for word in words).encode(), np.uint8)
