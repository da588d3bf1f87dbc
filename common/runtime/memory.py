"""What a process does about memory once, when it starts: keep the buffers of messages, drop what only loading took.

glibc gives every buffer over 128 KiB back to the kernel when it is freed, and the kernel clears each page of the next
one: between two processes that exchange messages of a megabyte this is a third of all work (benchmarks/README.md).
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterable
from pathlib import Path

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
FROM_THE_HEAP_BYTES = 32 << 20
"""Buffers up to this size are reused; larger ones (tables) are mapped and given back as before."""
KEEP_BYTES = 32 << 20
"""The most free memory at the heap's end that stays with the process."""
COMPILER = "libllvmlite"
_MADV_DONTNEED = 4


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


def trim() -> None:
    """Give back to the system what is free, for somebody who is about to need much."""
    if (malloc_trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        malloc_trim(0)


def settle() -> None:
    """What the process has loaded stays: look for garbage only among what comes later. The compiler's code may go.

    Numba brings tens of thousands of objects, and all were gone through again and again while nothing of them could go.
    It brings LLVM, too: 70 MB of machine code that nobody needs once the kernels are there.
    """
    gc.collect()
    gc.freeze()
    _forget_code(COMPILER)


def _forget_code(library: str) -> None:
    """Give the pages of a library's code back to the system; what is called after all is read from its file again.

    Where there is no such list of mappings (Linux has it) nothing happens.
    """
    try:
        mappings = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    advise = ctypes.CDLL(None).madvise
    for span, rights, *_, path in (line.split(maxsplit=5) for line in mappings if library in line):
        if rights == "r-xp" and library in path:  # never written, so nothing is lost; other parts may have been
            first, last = (int(address, 16) for address in span.split("-"))
            advise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), _MADV_DONTNEED)


# ---- How much memory processes take together, as Linux sees it, and how a process keeps what it has freed.

# Names of glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3


def proportional_bytes(pids: Iterable[int]) -> int:
    """Sum of PSS (each page divided by the processes that share it) in bytes; 0 where the kernel does not tell."""
    total = 0
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
        except OSError:
            continue
        total += next((int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:")), 0)
    return total


def keep_freed_memory() -> None:
    """Let this process use freed arrays again instead of giving them back: a third of the time was page faults.

    Works with glibc, and does nothing elsewhere.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, 32 << 20)
        mallopt(_TRIM_THRESHOLD, 64 << 20)
