"""Name the array types that several packages share; the functions that take them document the shapes."""

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.floating[Any]]
Rows = npt.NDArray[np.float32]
"""Rows of a table, or vectors, one per word."""
Halves = npt.NDArray[np.uint16]
"""The bits of bfloat16 numbers (common/model/bfloat16.py)."""
Scales = npt.NDArray[np.float32]
"""A learning rate or weight for each row."""
Indices = npt.NDArray[np.int64]
"""Row numbers, offsets or versions."""
Entries = npt.NDArray[np.void]
"""Entries of a block, as records."""
Pairs = npt.NDArray[np.uint16]
"""Positions of an entry's two words in their partitions."""
Bytes = npt.NDArray[np.uint8]
"""Text in UTF-8, or a message's bytes."""
Ids = npt.NDArray[np.int32]
"""Numbers of strings, words or n-grams."""
