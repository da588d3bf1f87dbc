"""One array in one `.npy` file: never a pickle, never an archive, always closed or mapped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

UNREADABLE = (OSError, ValueError, EOFError, OverflowError, SyntaxError, TypeError)
"""What numpy raises for a file that is missing, cut, or no array."""
PIECE_BYTES = 1 << 20


def load_array(path: Path, *, mapped: bool = False) -> npt.NDArray[Any]:
    """The array in `path`, in memory or `mapped` read-only; raises one of UNREADABLE.

    `numpy.load` would open an archive instead when the file's first bytes say so, and leave it open. A file is always
    mapped first: one that claims to hold more than it has bytes is refused before memory is asked for.
    """
    there = np.lib.format.open_memmap(path, mode="r")
    return there if mapped else np.array(there, order="C", subok=False)


def save_array(path: Path, values: npt.NDArray[Any], rest: Callable[[], None]) -> None:
    """Write what `numpy.save` would, and `rest` after each piece of it."""
    with path.open("wb") as stream:
        np.lib.format.write_array_header_1_0(stream, np.lib.format.header_data_from_array_1_0(values))
        flat = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        for start in range(0, len(flat), PIECE_BYTES):
            stream.write(flat[start : start + PIECE_BYTES].data)
            rest()
