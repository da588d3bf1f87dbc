"""Refuse limits of this process (`ulimit`) so low that libraries would hang or fail with obscure errors."""

import resource

from ..errors import SystemLimit

MIN_FILES = 64
MIN_ADDRESS_SPACE = 1 << 30
"""Compiled code needs 500 to 750 MB on two cores. With too little, OpenBLAS waits forever for its threads' buffers."""


def require_files() -> None:
    """Raise SystemLimit if this process may have fewer than MIN_FILES files open."""
    _require(resource.RLIMIT_NOFILE, MIN_FILES, "may open only {:,} files and connections", f"ulimit -n {MIN_FILES}")


def require_address_space() -> None:
    """Raise SystemLimit if this process may have less than MIN_ADDRESS_SPACE bytes of virtual memory."""
    text = "may have only {:,} bytes of virtual memory"
    _require(resource.RLIMIT_AS, MIN_ADDRESS_SPACE, text, f"ulimit -v {MIN_ADDRESS_SPACE >> 10}")


def _require(limit: int, least: int, text: str, remedy: str) -> None:
    allowed, _ = resource.getrlimit(limit)
    if allowed != resource.RLIM_INFINITY and allowed < least:
        raise SystemLimit(f"this process {text.format(allowed)}: raise the limit to at least {least:,} (`{remedy}`)")
