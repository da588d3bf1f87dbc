"""What a shard tells of itself: the answer to `stats` and its samples on the stream. Changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from common import messages as m

from .sessions import Session

if TYPE_CHECKING:
    from .core import Core


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
        "hottest": core.exchange.heat.hottest(),
        "pushes": core.tally.summary(),
        "pushes_of": core.tally.workers(),
        "workers": [
            {"name": s.name, "state": s.state, "entries": s.entries, "pushed": s.pushed, "age_s": now - s.seen}
            for s in core.sessions.workers
        ],
    }


def checkpoint_facts(core: Core) -> dict[str, Any]:
    """What a checkpoint says of this shard, beside its rows."""
    return {
        "entries": core.progress.losses.entries,
        **_tensor_facts(core),
        "dataset": core.identity.dataset,
        "options": core.options.as_message(),
        "rows": [core.table.first, core.table.last],
        "shard": core.identity.shard,
        "shards": core.identity.shards,
    }


def _tensor_facts(core: Core) -> dict[str, Any]:
    """Of a dense model: which tensors, and after how many updates."""
    if core.tensors is None:
        return {}
    spec = core.tensors.spec if core.tensors.complete else None
    return {"tensors": spec and spec.text, "updates": core.consistency.version(core.table.first)}


def samples(core: Core, now: float, bytes_in: int, bytes_out: int) -> list[m.Message]:
    """This shard's counters and, from shard 0, the state of every worker."""
    t, who, count, pushes = now - core.news.started, core.identity, core.counters, core.tally.total
    shard = m.ServerSample(
        t, who.shard, who.shards, len(core.table.values), len(core.sessions.workers), count["pulls"], pushes["applied"],
        pushes["repeated"], count["refused"], len(core.parking), bytes_in, bytes_out,
    )  # fmt: skip
    workers = core.sessions.workers if who.shard == 0 else []
    return [shard, *(_worker(session, t, now) for session in workers)]


def _worker(session: Session, t: float, now: float) -> m.WorkerSample:
    rate, age_s = session.entries / max(now - session.joined, 1e-9), now - session.seen
    return m.WorkerSample(t, session.name, session.state, session.entries, rate, session.bytes_sent, age_s)
