"""A core for each worker: of processes that compute in step, one that waits behind another holds up all of them.

Linux leaves a thread that it woke beside a busy one where it is for up to 4 ms, though another core may be idle: about
as long as a small gradient takes. With as many workers of one thread as cores, in step, that costs a tenth of the pace
(`glovewire bench dense`); with fewer or more of them it makes no difference.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def own_core(rank: int) -> Iterator[int | None]:
    """Keep this thread, and those that it starts, to one core: the `rank`-th of those it may use, and round again.

    Afterwards it may use what it could before. Yields the core's number; None, and nothing is done, where the system
    refuses it.
    """
    before = os.sched_getaffinity(0)
    core = sorted(before)[rank % len(before)]
    try:
        os.sched_setaffinity(0, {core})
    except OSError:  # a sandbox
        yield None
        return
    try:
        yield core
    finally:
        os.sched_setaffinity(0, before)
