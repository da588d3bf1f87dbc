"""Decide how many strips to hold, and how many visits of a strip to prefetch. No I/O."""

import math

MOST_TASKS = 3
WAYS = 2
"""Transfers before this worker can use rows of another worker's strip: that worker's push, this worker's pull."""
KEPT_WEIGHT = 7 / 8
"""Weight of the previous moving average when another push or strip is measured."""
OWN_BYTES = 32 << 20
"""Further strips are not prefetched while the partitions of those that wait take more than this, but for one."""
VISIT_BYTES = 8 << 20
FEWEST_VISITS, MOST_VISITS = 2, 6
"""Visits to prefetch: as many as take VISIT_BYTES, within these limits."""


class PrefetchWindow:
    """Computes the number of strips to hold: just enough to keep training while rows are transferred."""

    def __init__(self) -> None:
        self._way_s = self._strip_s = 0.0

    def pushed(self, seconds: float) -> None:
        """Record that the answer to a push took at least this long."""
        self._way_s += (1 - KEPT_WEIGHT) * (seconds - self._way_s)

    def trained(self, seconds: float) -> None:
        """Record how long a strip took to train."""
        self._strip_s += (1 - KEPT_WEIGHT) * (seconds - self._strip_s)

    def needs_strip(self, tasks: int, waiting_bytes: int, left: float) -> bool:
        """Return whether to lease another strip while `tasks` are held.

        `waiting_bytes`: of the partitions of those that are not in training; `left`: the share of the work of the one
        in training that is to be done. A strip that is granted too early waits here although another worker is idle.
        """
        if tasks < 1 or (tasks > 1 and waiting_bytes > OWN_BYTES):
            return tasks < 1
        meanwhile = math.ceil(WAYS * self._way_s / self._strip_s) if self._strip_s else 0
        return tasks < min((1 if left > 0.5 else 2) + max(meanwhile - 1, 0), MOST_TASKS)


def needs_visit(visits: int, nbytes: int) -> bool:
    """Return whether to prefetch another visit of the strip in training while `visits` of `nbytes` bytes are."""
    return visits < FEWEST_VISITS or (visits < MOST_VISITS and nbytes < VISIT_BYTES)
