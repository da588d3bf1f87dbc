"""One array from one `.npy` file: never a pickle, never an archive, always closed or mapped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

UNREADABLE = (OSError, ValueError, EOFError, OverflowError, SyntaxError)
"""What numpy raises for a file that is missing, cut, or no array."""


def load_array(path: Path, *, mapped: bool = False) -> npt.NDArray[Any]:
    """The array in `path`, in memory or `mapped` read-only; raises one of UNREADABLE.

    `numpy.load` would open an archive instead when the file's first bytes say so, and leave it open.
    """
    if mapped:
        return np.lib.format.open_memmap(path, mode="r")
    with path.open("rb") as stream:
        array: npt.NDArray[Any] = np.lib.format.read_array(stream, allow_pickle=False)
    return array
