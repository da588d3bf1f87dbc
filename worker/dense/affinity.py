"""Pin each worker to a core: in synchronous training, one that waits behind another delays all of them.

Linux may leave a thread that it woke behind a busy one for up to 4 ms although another core is idle: about as long as a
small gradient takes. With as many single-threaded synchronous workers as cores that costs a tenth of the speed
(`glovewire bench dense`); with fewer or more of them it makes no difference.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def own_core(rank: int) -> Iterator[int | None]:
    """Pin this thread, and those that it starts in the block, to the `rank`-th (modulo their number) core it may use.

    Yields the core's number, or None where the system refuses.
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
