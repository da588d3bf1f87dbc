"""How much memory processes take together, as Linux sees it, and how a process keeps what it has freed."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from pathlib import Path

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
