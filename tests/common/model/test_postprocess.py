"""Directions that count less: against a singular value decomposition, and what stays as it is."""

from __future__ import annotations

import numpy as np
import pytest

from glovewire.common.model.postprocess import CHUNK_ROWS, flatten_spectrum


def some(words: int, dim: int = 6) -> np.ndarray:
    """Vectors with directions of very different strength."""
    draw = np.random.default_rng(words)
    turn = np.linalg.qr(draw.normal(size=(dim, dim)))[0]
    return ((draw.normal(size=(words, dim)) * 3.0 ** -np.arange(dim)) @ turn).astype(np.float32)


@pytest.mark.parametrize("power", [0.0, 0.5, 0.9, 1.3])
@pytest.mark.parametrize("words", [50, 2 * CHUNK_ROWS + 5])
def test_singular_values_of_vectors_of_length_1_are_raised_to_the_power(words: int, power: float) -> None:
    before = some(words)
    lengths = np.linalg.norm(before.astype(np.float64), axis=1, keepdims=True)
    u, values, v = np.linalg.svd(before / lengths, full_matrices=False)
    middle = np.sqrt((values**2).mean())
    expected = (u * (values / middle) ** power * middle) @ v * lengths
    np.testing.assert_allclose(flatten_spectrum(before, power), expected, rtol=1e-3, atol=1e-6)


def test_lengths_stay_about_the_same() -> None:
    vectors = some(300)
    before = np.linalg.norm(vectors)
    assert np.linalg.norm(flatten_spectrum(vectors, 0.9)) == pytest.approx(before, rel=0.2)


def test_directions_without_vectors_do_not_matter() -> None:
    """Fewer words than dimensions, and columns of zeros: nothing is blown up."""
    vectors = np.pad(some(3), ((0, 0), (0, 40)))
    found = flatten_spectrum(vectors.copy(), 0.5)
    assert np.abs(found[:, 6:]).max() < 1e-6
    assert 0.1 < np.linalg.norm(found) / np.linalg.norm(vectors) < 10


@pytest.mark.parametrize("odd", [np.nan, np.inf, 0.0, None], ids=["nan", "inf", "zeros", "no words"])
def test_what_has_no_spectrum_stays_as_it_is(odd: float | None) -> None:
    """Whoever writes the vectors says what is wrong with them."""
    vectors = np.zeros((0 if odd is None else 4, 3), np.float32)
    vectors[1:2, 1] = odd or 0.0
    np.testing.assert_array_equal(flatten_spectrum(vectors.copy(), 0.9), vectors)


def test_the_power_of_one_changes_no_bit() -> None:
    vectors = some(50)
    assert flatten_spectrum(vectors, 1.0).tobytes() == some(50).tobytes()
