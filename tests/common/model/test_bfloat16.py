"""Gradients in half the bytes: the nearest of the numbers that there are, and none that are not."""

from __future__ import annotations

import numpy as np
import pytest

from glovewire.common.model.tensor_layout import from_bfloat16, to_bfloat16

EDGES = [0.0, -0.0, 1.0, 1.0 + 2.0**-8, 1.0 + 3 * 2.0**-8, -2.5e-45, 1e-38, 3.3e38]


def numbers() -> np.ndarray:
    draw = np.random.default_rng(0)
    spread = draw.normal(size=10_000) * 10.0 ** draw.uniform(-30, 30, 10_000)
    return np.concatenate([EDGES, spread]).astype(np.float32)


def test_each_becomes_the_nearest_and_a_tie_the_even_one() -> None:
    values = numbers()
    halves = to_bfloat16(values)
    found, away = from_bfloat16(halves).astype(float), np.abs(from_bfloat16(halves).astype(float) - values)
    for other in (from_bfloat16(halves + np.uint16(1)), from_bfloat16(halves - np.uint16(1))):
        near = np.isfinite(other) & (np.sign(other) == np.sign(found))
        distance = np.abs(other[near].astype(float) - values[near])
        assert (away[near] <= distance).all()
        assert not (halves[near][away[near] == distance] & 1).any()
    np.testing.assert_array_equal(to_bfloat16(from_bfloat16(halves)), halves)
    assert np.isinf(from_bfloat16(to_bfloat16(np.array([3.4e38, -1e300]))[:1])).all()


def test_pytorch_rounds_alike() -> None:
    torch = pytest.importorskip("torch")
    theirs = torch.from_numpy(numbers()).to(torch.bfloat16).float().numpy()
    np.testing.assert_array_equal(from_bfloat16(to_bfloat16(numbers())), theirs)
