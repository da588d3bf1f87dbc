"""Files of the kind that MNIST comes in: a magic number, the sizes, then bytes. Gzipped (`NAME.gz`) or not."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import numpy.typing as npt

from .errors import ArtifactError

IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
TEST_IMAGES, TEST_LABELS = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"


def read(folder: Path, name: str) -> npt.NDArray[np.uint8]:
    """The array in one file, of the shape that it says; ArtifactError for one that is missing or something else."""
    packed, plain = folder / f"{name}.gz", folder / name
    try:
        raw = gzip.decompress(packed.read_bytes()) if packed.exists() else plain.read_bytes()
        sizes = np.frombuffer(raw, ">i4", raw[3], 4)
        return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(sizes)
    except (OSError, EOFError, ValueError, IndexError) as error:
        raise ArtifactError(f"{folder} has no images in {name}: {error}") from error
