"""Describe one shard: replies to queries, samples for the stream, the summary of its run. Changes no state."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from glovewire.common.endings import RunEnd
from glovewire.common.errors import BadRequest, LimitExceeded, ProtocolError
from glovewire.common.protocol import messages as m

if TYPE_CHECKING:
    from ..core.state import ShardState

MAX_WORDS = 1 << 16
MEANS = ("loss", "bias_only_loss", "mean_vector_norm")
"""Results that are means over the last sweep, or of a dense model over the newest reports."""


def answer(state: ShardState, query: m.Message, now: float) -> m.Message:
    """Return the reply to a query; ProtocolError for any other message."""
    match query:
        case m.GetStatus():
            return m.Status(np.frombuffer(json.dumps(statistics(state, now)).encode(), np.uint8))
        case m.GetHistory():
            return state.publisher.history(query.after)
        case m.GetWords():
            return _words(state, query.first, query.last)
        case m.GetData():
            return _data(state, query)
    raise ProtocolError(f"{type(query).__name__} is not a query")


def statistics(state: ShardState, now: float) -> dict[str, Any]:
    """Return the counters and states of a shard as plain JSON values."""
    losses, schedule, table = state.progress.losses, state.progress.schedule, state.table
    return {
        "run": state.identity.run,
        "shard": state.identity.shard,
        "shards": state.identity.shards,
        "state": "serving" if state.over is None else f"finishing ({state.over})",
        "rows": [table.first, table.last],
        "epoch": losses.epoch,
        "epochs": state.options.epochs,
        "schedule": state.options.schedule,
        "round": schedule.round if schedule else -1,
        "blocks_done": schedule.completed if schedule else -1,
        "entries": losses.entries,
        "total": losses.total,
        "seconds": losses.seconds(),
        **_means(state, ("loss", "bias_only_loss", "norm")),
        **({} if state.tensors is None else {"updates": state.consistency.version(0), "steps": state.options.steps}),
        "waiting": len(state.waiting),
        "missing": state.consistency.missing,
        "hot_rows": state.pull_push.hot_rows.hottest(),
        **_counts(state),
        "pushes_of": state.push_counts.by_worker(),
        "workers": [
            {"name": s.name, "state": s.state, "entries": s.entries, "pushed": s.pushed, "age_s": now - s.seen}
            for s in state.sessions.workers
        ],
    }


def summary(state: ShardState, end: RunEnd) -> dict[str, Any]:
    """Return the results of the training as plain JSON values, for `--json` and the facts of the vectors."""
    losses = state.progress.losses
    return {
        **end.as_fields(),
        "dataset": state.identity.dataset_name,
        "dataset_checksum": state.identity.dataset,
        "seconds": losses.seconds(),
        "entries": losses.entries,
        "entries_per_second": losses.entries_per_second(),
        **_means(state, MEANS),
        "epochs": losses.epoch,
        "servers": state.identity.shards,
        "bytes_sent": state.left_bytes_sent + sum(session.bytes_sent for session in state.sessions.workers),
        "bytes_received": state.network.bytes_out,
        **_counts(state),
    }


def _means(state: ShardState, names: tuple[str, str, str]) -> dict[str, float]:
    return dict(zip(names, state.progress.losses.last_means(), strict=True))


def _counts(state: ShardState) -> dict[str, Any]:
    network = {name: getattr(state.network, name) for name in ("undelivered", "ignored", "cut_off", "turned_away")}
    return {
        "counters": {**state.counters, **{name: count for name, count in network.items() if count}},
        "pushes": state.push_counts.summary(),
        "staleness": state.pull_push.staleness.as_fields(),
        "row_ages": state.pull_push.ages.as_fields(),
    }


def server_sample(state: ShardState, now: float) -> m.ServerSample:
    """Return the sample of this shard for the stream: its rows, sessions and counters."""
    who, table, network = state.identity, state.table, state.network
    count, pushes = state.counters, state.push_counts.total
    return m.ServerSample(
        t=state.publisher.elapsed(now),
        shard=who.shard,
        shards=who.shards,
        rows=table.rows,
        workers=len(state.sessions.workers),
        pulls=count["pulls"],
        pushes=pushes["applied"],
        repeated=pushes["repeated"],
        refused=count["refused"],
        waiting=len(state.waiting),
        bytes_in=network.bytes_in,
        bytes_out=network.bytes_out,
        undelivered=network.undelivered,
        table_bytes=table.values.nbytes,
        checkpoints=count["checkpoints"],
        checkpoint_s=state.checkpoint_s,
        port=network.port,
        staleness={**state.pull_push.staleness.as_fields()},
        hot_rows={**state.pull_push.hot_rows.hottest()},
    )


def run_sample(state: ShardState, now: float) -> m.RunSample:
    """Return what this run trains, for the stream."""
    who, total = state.identity, state.progress.losses.total
    return m.RunSample(state.publisher.elapsed(now), who.name, who.dataset_name, total, state.options.as_message())


def _words(state: ShardState, first: int, last: int) -> m.Words:
    low, high = state.table.local_range(first, last)
    if last - first > MAX_WORDS:
        raise LimitExceeded(f"ask for at most {MAX_WORDS} words at a time")
    return m.Words(np.frombuffer("".join(f"{word}\n" for word in state.words[low:high]).encode(), np.uint8))


def _data(state: ShardState, query: m.GetData) -> m.Data:
    if state.read_data is None:
        raise BadRequest("this run trains tensors: it has no dataset")
    body, size = state.read_data(query.file, query.offset, query.allowed)
    return m.Data(query.offset, size, np.frombuffer(body, np.uint8))
