"""Choose the columns of the tables of workers and shards: rates while a run lasts, totals once it is over. No I/O."""

from glovewire.common.text import amount

from . import formatting
from .history import RunHistory, ShardRates, WorkerState


def worker_cells(history: RunHistory, worker: WorkerState, now: float) -> dict[str, str]:
    """Return a worker's cells by their headings, without its name and state."""
    cells = {history.unit: amount(worker.entries)}
    if history.finished:
        trained = sum(each.entries for each in history.workers.values())
        cells["share"] = f"{worker.entries / trained:.0%}" if trained else ""
        if any(each.sample for each in history.workers.values()):  # a recorded run contains only losses
            cells["sent"] = amount(worker.sample.bytes_sent, "B") if worker.sample else ""
        return cells
    seen = worker.age_s(now)
    rate = "per s" if history.is_dense else f"{history.unit}/s"  # within nine characters, for 80 columns
    return cells | {
        rate: amount(worker.entries_per_second),
        "upload": f"{amount(worker.bytes_per_second, 'B')}/s",
        "staleness": str(worker.sample.staleness) if worker.sample else "",
        "last seen": "" if seen is None else formatting.age(seen),
    }


def shard_cells(history: RunHistory, shard: ShardRates) -> dict[str, str]:
    """Return the cells of a shard's traffic by their headings."""
    sample = shard.sample
    if history.finished:
        moved = amount(sample.bytes_in + sample.bytes_out, "B")
        return {"pulls": amount(sample.pulls), "pushes": amount(sample.pushes), "traffic": moved}
    pulls, pushes = amount(shard.pulls_per_second), amount(shard.pushes_per_second)
    return {"pulls/s": pulls, "pushes/s": pushes, "traffic": f"{amount(shard.bytes_per_second, 'B')}/s"}
