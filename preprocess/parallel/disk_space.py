"""Whether what a run will write fits on the disk: asked before each phase that writes much."""

from __future__ import annotations

import shutil
from pathlib import Path

from glovewire.common.errors import OutputError
from glovewire.common.storage.dataset import ENTRY

# English prose, with a margin: bytes of text a token takes, and the share of pairs that are not added up in memory.
_BYTES_PER_TOKEN = 5.0
_SPILLED_PAIRS = 0.6
# Of the records, how many are distinct cells.
_DISTINCT = 0.25
_TOKEN_BYTES = 4
_GIB = 1 << 30


def for_text(nbytes: int, window: int, record_bytes: int) -> int:
    """Bytes that preprocessing this much text writes at most at one time, roughly, before the dataset itself."""
    tokens = nbytes / _BYTES_PER_TOKEN
    return int(tokens * _TOKEN_BYTES) + for_records(int(tokens), window, record_bytes)


def for_records(tokens: int, window: int, record_bytes: int) -> int:
    """Bytes of the records of that many tokens, roughly."""
    return int(tokens * window * _SPILLED_PAIRS * record_bytes)


def for_entries(records: int) -> int:
    """Bytes of finished entries, roughly: as parts, and then joined in the dataset."""
    return int(2 * ENTRY.itemsize * records * _DISTINCT)


def require(folder: Path, needed: int) -> None:
    """Raise OutputError unless the disk of `folder` has room for `needed` bytes more."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise OutputError(
            f"this needs about {_size(needed)} of disk in {folder.parent}, which has {_size(free)} free: "
            "name an --out on a larger disk, or take fewer --lines"
        )


def _size(nbytes: int) -> str:
    return f"{nbytes / _GIB:.2f} GiB" if nbytes >= _GIB / 10 else f"{nbytes * 1024 / _GIB:.1f} MiB"
