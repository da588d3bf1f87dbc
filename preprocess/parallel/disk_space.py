"""Estimate what a run will write, and check before each large phase that it fits on the disk."""

import shutil
from pathlib import Path

from glovewire.common.errors import OutputError
from glovewire.common.storage.dataset import ENTRY

# For English prose, with a margin: bytes of text per token, share of pairs that become records, and share of records
# that are distinct cells.
_BYTES_PER_TOKEN = 5.0
_SPILLED_PAIRS = 0.6
_DISTINCT = 0.25
_TOKEN_BYTES = 4
_GIB = 1 << 30


def text_bytes(nbytes: int, window: int) -> int:
    """Estimate the scratch folder's peak bytes for `nbytes` of text and 4-byte records, without the dataset."""
    tokens = int(nbytes / _BYTES_PER_TOKEN)
    return tokens * _TOKEN_BYTES + record_bytes(tokens, window, 4)


def record_bytes(tokens: int, window: int, record_size: int) -> int:
    """Estimate the bytes of the records, `record_size` each, of a corpus of `tokens` tokens."""
    return int(tokens * window * _SPILLED_PAIRS * record_size)


def entry_bytes(records: int) -> int:
    """Estimate the bytes of the entries from `records` records, stored twice: in parts and in the dataset."""
    return int(2 * ENTRY.itemsize * records * _DISTINCT)


def require(folder: Path, needed: int) -> None:
    """Raise OutputError unless the disk of `folder` has `needed` bytes free."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise OutputError(
            f"this needs about {_size(needed)} of disk in {folder.parent}, which has {_size(free)} free: "
            "name an --out on a larger disk, or take fewer --lines"
        )


def _size(nbytes: int) -> str:
    return f"{nbytes / _GIB:.2f} GiB" if nbytes >= _GIB / 10 else f"{nbytes * 1024 / _GIB:.1f} MiB"
