"""What a process does about memory once, when it starts: keep the buffers of messages, leave what it has loaded alone.

glibc gives every buffer over 128 KiB back to the kernel when it is freed, and the kernel clears each page of the next
one: between two processes that exchange messages of a megabyte this is a third of all work (benchmarks/README.md).
"""

from __future__ import annotations

import ctypes
import gc

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
FROM_THE_HEAP_BYTES = 32 << 20
"""Buffers up to this size are reused; larger ones (tables) are mapped and given back as before."""
KEEP_BYTES = 32 << 20
"""The most free memory at the heap's end that stays with the process."""


def keep_buffers() -> bool:
    """Reuse freed buffers; False where the C library has no such setting (it then does as it always did)."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    wanted = (
        (_M_MMAP_THRESHOLD, FROM_THE_HEAP_BYTES),
        (_M_TRIM_THRESHOLD, KEEP_BYTES),
        (_M_ARENA_MAX, 1),  # one heap for all threads: ZeroMQ's thread fills what ours frees
    )
    return [mallopt(option, value) for option, value in wanted] == [1] * len(wanted)  # each is tried


def settle() -> None:
    """What the process has loaded stays: look for garbage only among what comes later.

    Numba brings tens of thousands of objects, and all were gone through again and again while nothing of them could go.
    """
    gc.collect()
    gc.freeze()
