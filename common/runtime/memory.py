"""Measure the memory of processes (Linux), and control what this process does with freed memory (glibc)."""

import ctypes
import gc
import mmap
from pathlib import Path

from .procfs import read_text

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -3, -4, -8
FROM_THE_HEAP_BYTES = 32 << 20
"""Buffers up to this size are allocated on the heap and reused; larger ones (tables) are mapped, and unmapped."""
KEEP_BYTES = 32 << 20


def memory_bytes(pid: int) -> tuple[int, int]:
    """Return a process's memory in bytes, as (proportional set size, anonymous); (0, 0) if it has ended.

    Anonymous memory is what the process has allocated, without pages of mapped files, which the kernel can drop.
    """
    found = {}
    for line in read_text(Path(f"/proc/{pid}/smaps_rollup")).splitlines():
        name, _, rest = line.partition(":")
        if rest.endswith(" kB"):
            found[name] = int(rest.split()[0]) << 10
    return found.get("Pss", 0), found.get("Anonymous", 0)


def keep_freed_memory(keep_bytes: int = KEEP_BYTES, heap_bytes: int | None = FROM_THE_HEAP_BYTES) -> bool:
    """Reuse freed buffers instead of returning them to the kernel; return False if the C library cannot.

    By default glibc returns every freed buffer over 128 KiB, and the kernel must clear the pages of the next one. That
    took a third of the time of exchanging messages of a megabyte (benchmarks/README.md) and of counting co-occurrences.
    At most `keep_bytes` stay free at the end of the heap. Buffers above `heap_bytes` (None: none) are not allocated
    there, but mapped and unmapped.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    wanted = (
        (_M_MMAP_MAX, 0) if heap_bytes is None else (_M_MMAP_THRESHOLD, heap_bytes),
        (_M_TRIM_THRESHOLD, keep_bytes),
        (_M_ARENA_MAX, 1),  # one heap for all threads: ZeroMQ's thread fills what this one frees
    )
    return [mallopt(option, value) for option, value in wanted] == [1] * len(wanted)  # each is tried


def trim() -> None:
    """Return free heap memory to the kernel; call it before a large allocation."""
    if (malloc_trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        malloc_trim(0)


def release_code(library: str) -> None:
    """Drop the machine code of a loaded library, named by a part of its path, from this process's memory (Linux).

    The kernel reads code that is called later from the file again. Once kernels are loaded, 50 MB of libllvmlite are in
    memory, and running the kernels needs none of them.
    """
    if (madvise := getattr(ctypes.CDLL(None), "madvise", None)) is None:
        return
    for line in read_text(Path("/proc/self/maps")).splitlines():
        span, permissions, *_, path = line.split(maxsplit=5)
        if permissions == "r-xp" and library in path:  # code is never written to, so nothing is lost
            first, last = (int(address, 16) for address in span.split("-"))
            madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), mmap.MADV_DONTNEED)


def freeze_loaded_objects() -> None:
    """Exclude all objects that exist now, tens of thousands of them Numba's, from later garbage collections."""
    gc.collect()
    gc.freeze()
