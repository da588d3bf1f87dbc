"""Numbers in 16 bits: each the nearest, in numpy and in compiled loops alike."""

from __future__ import annotations

import numpy as np
import pytest

from glovewire.common.model import bfloat16_kernels as kernels
from glovewire.common.model.bfloat16 import from_bfloat16, to_bfloat16

EDGES = [0.0, -0.0, 1.0, 1.0 + 2.0**-8, 1.0 + 3 * 2.0**-8, -2.5e-45, 1e-38, 3.3e38]


def edges_and_numbers() -> np.ndarray:
    draw = np.random.default_rng(0)
    spread = draw.normal(size=10_000) * 10.0 ** draw.uniform(-30, 30, 10_000)
    return np.concatenate([EDGES, spread]).astype(np.float32)


def test_each_becomes_the_nearest_and_a_tie_the_one_farther_from_zero() -> None:
    values = edges_and_numbers()
    halves = to_bfloat16(values)
    found, away = from_bfloat16(halves).astype(float), np.abs(from_bfloat16(halves).astype(float) - values)
    for other in (from_bfloat16(halves + np.uint16(1)), from_bfloat16(halves - np.uint16(1))):
        near = np.isfinite(other) & (np.sign(other) == np.sign(found))
        distance = np.abs(other[near].astype(float) - values[near])
        assert (away[near] <= distance).all()
        tied = away[near] == distance
        assert (np.abs(found[near][tied]) > np.abs(other[near][tied])).all()
    np.testing.assert_array_equal(to_bfloat16(from_bfloat16(halves)), halves)
    assert np.isinf(from_bfloat16(to_bfloat16(np.array([3.4e38, -1e300]))[:1])).all()


def test_pytorch_rounds_alike_but_for_ties() -> None:
    torch = pytest.importorskip("torch")
    values = edges_and_numbers()
    values = values[(values.view(np.uint32) & 0xFFFF) != 0x8000]
    theirs = torch.from_numpy(values).to(torch.bfloat16).float().numpy()
    np.testing.assert_array_equal(from_bfloat16(to_bfloat16(values)), theirs)


def test_the_lower_half_makes_the_float32_whole_again() -> None:
    """Whether a number was rounded up follows from its lower half, also of ties and next to them."""
    ends = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    upper = edges_and_numbers().view(np.uint32) & np.uint32(0xFFFF0000)
    values = (upper[:, None] | ends).view(np.float32)
    low = values.view(np.uint32).astype(np.uint16)
    whole = kernels.join(kernels.narrow(values), low)
    np.testing.assert_array_equal(whole.view(np.uint32), values.view(np.uint32))


def test_compiled_loops_round_alike() -> None:
    values = edges_and_numbers().reshape(-1, 8)
    halves, wide = kernels.narrow(values), np.empty_like(values)
    np.testing.assert_array_equal(halves, to_bfloat16(values))
    kernels.widen(halves, wide)
    np.testing.assert_array_equal(wide, from_bfloat16(halves))


def test_differences_are_taken_in_full_and_then_rounded() -> None:
    values = edges_and_numbers().reshape(-1, 8)
    values = values[np.abs(values).max(axis=1) < 1e38]
    halves = to_bfloat16(values)
    expected = to_bfloat16(values * np.float32(1.5) - from_bfloat16(halves))
    kernels.subtract_from(values * np.float32(1.5), halves)
    np.testing.assert_array_equal(halves, expected)


@pytest.mark.parametrize("strange", [np.inf, -np.inf, np.nan, -np.nan])
@pytest.mark.parametrize("place", [0, 37, 79])
def test_one_that_is_not_finite_is_found(strange: float, place: int) -> None:
    values = np.full(80, 3.3e38, np.float32)
    assert kernels.all_finite(to_bfloat16(values).reshape(10, 8))
    values[place] = strange
    assert not kernels.all_finite((values.view(np.uint32) >> 16).astype(np.uint16).reshape(10, 8))
