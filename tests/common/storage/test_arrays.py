"""Arrays in files, piece by piece: the bytes that numpy writes."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

from glovewire.common.storage.artifacts import PIECE_BYTES, load_array, save_array


@pytest.mark.parametrize("shape", [(0, 256), (3, 5), (3, PIECE_BYTES // 8)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_an_array_is_written_as_numpy_writes_it(tmp_path: Path, shape: tuple[int, int], dtype: type) -> None:
    values, rests, expected = np.arange(np.prod(shape)).reshape(shape).astype(dtype), [], io.BytesIO()
    save_array(tmp_path / "a.npy", values, lambda: rests.append(None))
    np.save(expected, values)
    assert (tmp_path / "a.npy").read_bytes() == expected.getvalue()
    assert len(rests) == -(-values.nbytes // PIECE_BYTES)
    np.testing.assert_array_equal(load_array(tmp_path / "a.npy"), values)
