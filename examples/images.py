"""Load handwritten digits: MNIST from a folder or from Hugging Face, or the digits that scikit-learn carries."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from glovewire.common.errors import UsageError
from glovewire.study import workloads as idx

FILES = (idx.IMAGES, idx.LABELS, idx.TEST_IMAGES, idx.TEST_LABELS)
HUB = "ylecun/mnist"
DIGITS = "digits"
TEST_PART = 5

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Images:
    """Images: float32 of shape (n, height, width), about -1 to 3. Labels: int64 of shape (n,)."""

    train: Array
    train_labels: Array
    test: Array
    test_labels: Array


def load(data: str) -> Images:
    """Load `digits` (8 x 8, from scikit-learn), `hub` (MNIST, needs a network) or a folder with the four idx files."""
    if data == DIGITS:
        return _digits()
    if data == "hub":
        return _from_hub()
    images, labels, test, test_labels = (idx.read_idx(Path(data), name) for name in FILES)
    return Images(_scaled(images, 255), labels.astype(np.int64), _scaled(test, 255), test_labels.astype(np.int64))


def require_batch(count: int, size: int) -> None:
    """Raise UsageError unless batches of `size` can be drawn from `count` examples. Call it before workers start."""
    if not 1 <= size <= count:
        raise UsageError(f"a batch has 1 to {count} of the {count} training images, not {size}: choose another size")


def batches(count: int, size: int, seed: int) -> Any:
    """Yield index arrays of random batches of `count` examples without end. Give each worker its own seed."""
    require_batch(count, size)
    draw = np.random.default_rng(seed)
    while True:
        order = draw.permutation(count)
        yield from (order[at : at + size] for at in range(0, count - size + 1, size))


def _scaled(images: Array, most: int) -> Array:
    return ((images.astype(np.float32) / np.float32(most)) - np.float32(0.1307)) / np.float32(0.3081)


def _digits() -> Images:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images = _scaled(images.reshape(-1, 8, 8), 16)
    test = np.arange(len(labels)) % TEST_PART == 0
    return Images(images[~test], labels[~test].astype(np.int64), images[test], labels[test].astype(np.int64))


def _from_hub() -> Images:
    from datasets import load_dataset

    parts = load_dataset(HUB)
    found = []
    for part in ("train", "test"):
        pictures = np.stack([np.asarray(picture) for picture in parts[part]["image"]])
        found += [_scaled(pictures, 255), np.asarray(parts[part]["label"], np.int64)]
    return Images(*found)
