"""Choose the columns of the tables of workers and shards: rates while a run lasts, totals once it is over. No I/O."""

from glovewire.common.text import amount

from . import formatting
from .history import RunHistory, ShardRates, WorkerState


def worker_headings(history: RunHistory) -> tuple[str, ...]:
    """Return the headings of the table of workers."""
    unit = history.unit
    if history.finished:
        return ("worker", "state", unit, "share", *(["sent"] if _sent(history) else []))
    rate = "per s" if history.is_dense else f"{unit}/s"  # within nine characters, for 80 columns
    return ("worker", "state", unit, rate, "upload", "staleness", "last seen")


def worker_cells(history: RunHistory, worker: WorkerState, now: float) -> tuple[str, ...]:
    """Return a worker's cells under `worker_headings`, without its name and state."""
    entries = amount(worker.entries)
    if history.finished:
        trained = sum(each.entries for each in history.workers.values())
        share = f"{worker.entries / trained:.0%}" if trained else ""
        sent = amount(worker.sample.bytes_sent, "B") if worker.sample else ""
        return entries, share, *([sent] if _sent(history) else [])
    seen = worker.age_s(now)
    return (
        entries,
        amount(worker.entries_per_second),
        f"{amount(worker.bytes_per_second, 'B')}/s",
        str(worker.sample.staleness) if worker.sample else "",
        "" if seen is None else formatting.age(seen),
    )


def _sent(history: RunHistory) -> bool:
    """Return whether it is known what workers have sent; a recorded run contains only losses."""
    return any(worker.sample for worker in history.workers.values())


def shard_headings(history: RunHistory) -> tuple[str, ...]:
    """Return the headings of a shard's traffic: the first cells of `shard_cells`."""
    return ("pulls", "pushes", "traffic") if history.finished else ("pulls/s", "pushes/s", "traffic")


def shard_cells(history: RunHistory, shard: ShardRates) -> tuple[str, ...]:
    """Return a shard's cells under `shard_headings`."""
    sample = shard.sample
    if history.finished:
        counts = sample.pulls, sample.pushes, sample.bytes_in + sample.bytes_out
        return (amount(counts[0]), amount(counts[1]), amount(counts[2], "B"))
    pulls, pushes = amount(shard.pulls_per_second), amount(shard.pushes_per_second)
    return pulls, pushes, f"{amount(shard.bytes_per_second, 'B')}/s"
