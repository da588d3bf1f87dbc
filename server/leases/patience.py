"""Decide which workers hold up the run: they have the strip of the first incomplete round and do not report it.

The lease of that round waits for no other lease, so only its holder can be the cause. A worker that holds such a lease
for `patience_s` without a report is overdue, even if it sends heartbeats: its session ends, and its strips go to
others. It may be slow rather than hostile, so the strip may be held twice as long the next time, and the worker gets
strips again after a pause, which doubles too, or at once if it is the only worker. When a worker leaves with strips and
has never reported one, all newcomers pause.

In minibatch training a worker whose gradient others wait for is overdue in the same way. Each pair of a worker and its
number of pushes then stands for a lease, and a gradient for a report; workers that have never brought a gradient share
one lease per step.

Workers that have never reported a strip are trusted less once others like them have been overdue: each of those halves
their time, down to an eighth, and they pause as long as any worker does. So a crowd of sessions that hold strips and
train none does not cost `patience_s` for each of them. No I/O; `now` is an argument.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

CHECK_EVERY_S = 1.0
MAX_DOUBLINGS = 16
NEWCOMERS = ""
"""Stands in place of a name for all workers that left with strips and had never reported one."""
DESERTED_SHARE = 1 / 4
"""First pause after one of them has left, as a share of the patience: a lease by default."""
MAX_HALVINGS = 3
MAX_NAMES = 4096


Held = tuple[int, str]
"""The round of a lease and the name of the worker that holds it."""


class Patience:
    """Measures how long leases of the first incomplete round are held; `check` must be called about once a second."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._checked: float | None = None
        self._ages: dict[int, tuple[str, float]] = {}  # lease -> holder, seconds without a report of the holder
        self._ran_out: Counter[int] = Counter()
        self._faults: Counter[str] = Counter()
        self._pauses: dict[str, float] = {}
        self._proven: dict[str, None] = {}  # workers that have reported a strip, the latest last

    def is_due(self, now: float) -> bool:
        """Return whether to call `check`."""
        return self._checked is None or now - self._checked >= CHECK_EVERY_S

    def check(self, round: int, held: Mapping[int, Held], now: float) -> list[str]:
        """Return the workers that are overdue; `held` are all leases, by number, of the first incomplete round `round`.

        Time in which this was not called, because the server stalled, counts for two checks at most.
        """
        passed = 0.0 if self._checked is None else min(now - self._checked, 2 * CHECK_EVERY_S)
        self._checked = now
        self._pauses = {worker: left - passed for worker, left in self._pauses.items() if left > passed}
        self._ran_out = Counter({late: times for late, times in self._ran_out.items() if late >= round})
        self._grow_older(held, passed)
        late = [lease for lease in held if self._ages[lease][1] > self._limit(*held[lease])]
        overdue = {held[lease][1] for lease in late}
        for its_round, worker in held.values():
            if worker in overdue:
                self._ran_out[its_round] = min(self._ran_out[its_round] + 1, MAX_DOUBLINGS)
        for worker in overdue:
            self._pause(worker, self._patience_s)
        while len(self._faults) > MAX_NAMES:
            del self._faults[next(iter(self._faults))]
        return sorted(overdue)

    def _limit(self, round: int, worker: str) -> float:
        """Return for how many seconds `worker` may hold the strip of `round` without a report."""
        distrusted = sum(name != worker and name not in self._proven for name in self._faults)
        halvings = 0 if worker in self._proven else min(distrusted, MAX_HALVINGS)
        return float(self._patience_s * 2.0 ** (self._ran_out[round] - halvings))

    def _grow_older(self, held: Mapping[int, Held], passed: float) -> None:
        """Add `passed` seconds to the age of each lease; those of a worker that has reported one begin again at 0."""
        before, self._ages = self._ages, {}
        reported = {worker for lease, (worker, _) in before.items() if lease not in held}
        for lease, (_, worker) in held.items():
            known = lease in before and worker not in reported
            self._ages[lease] = worker, before[lease][1] + passed if known else 0.0

    def _pause(self, worker: str, seconds: float) -> None:
        self._pauses[worker] = seconds * 2 ** self._faults[worker]
        self._faults[worker] = min(self._faults[worker] + 1, MAX_DOUBLINGS)

    def reported(self, worker: str) -> None:
        """Record that a worker has brought a strip or gradient: it makes up for a time when it was overdue."""
        redeemed = [worker] if self.is_proven(worker) else [worker, NEWCOMERS]
        self._proven.pop(worker, None)
        self._proven[worker] = None
        if len(self._proven) > MAX_NAMES:
            del self._proven[next(iter(self._proven))]
        if self._faults:  # each gradient comes here
            self._faults.subtract(name for name in redeemed if name in self._faults)
            self._faults = +self._faults

    def is_proven(self, worker: str) -> bool:
        """Return whether a worker has brought a strip or gradient."""
        return worker in self._proven

    def deserted(self, worker: str) -> None:
        """Record that a worker has left with strips that it had not reported."""
        if not self.is_proven(worker):
            self._pause(NEWCOMERS, DESERTED_SHARE * self._patience_s)

    def must_pause(self, worker: str, workers: Iterable[str]) -> bool:
        """Return whether others of `workers` are to be given strips before this one."""
        return bool(self._pauses) and self._distrust(worker) > min(map(self._distrust, workers), default=0)

    def _distrust(self, worker: str) -> int:
        return 2 if worker in self._pauses else not self.is_proven(worker)

    @property
    def pausing(self) -> int:
        """Return how many workers pause because they were overdue."""
        return len(self._pauses)
