"""Pin each worker to a core, because in synchronous training a worker that waits for a busy core delays all workers.

Linux may queue a thread that was just woken behind a busy one for up to 4 ms although another core is idle; a small
gradient takes about as long. With as many single-threaded synchronous workers as cores, this costs a tenth of the speed
(`glovewire bench dense`); with fewer or more workers, pinning makes no difference.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def own_core(rank: int) -> Iterator[int | None]:
    """Pin this thread, and threads it starts in the `with` block, to its allowed core `rank` (modulo their number).

    Yields the core's number, or None where the system refuses; restores the allowed cores afterwards.
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
