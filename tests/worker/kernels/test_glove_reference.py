"""GloVe's mathematics: the seeds' reference values, and all four gradients against finite differences."""

from __future__ import annotations

from typing import Any

import glove_reference as glove
import numpy as np
import pytest

BATCH: tuple[Any, ...] = (
    np.sin(np.linspace(0, 10, 40)).reshape(4, 10),
    np.cos(np.linspace(10, 20, 40)).reshape(4, 10),
    np.linspace(-3, 2, 4),
    np.linspace(4, -1, 4),
    np.abs(np.sin(np.linspace(1, 100, 4)) * 150),
)
"""The seeds' dummy batch: v_i, v_j, b_i, b_j, counts."""


def test_weights_are_those_of_the_seeds() -> None:
    found = glove.weights(np.arange(0, 200, 30))
    np.testing.assert_allclose(found, [0, 0.40536, 0.681731, 0.92402, 1, 1, 1], atol=1e-5)


def test_the_loss_is_that_of_the_seeds() -> None:
    assert glove.loss(*BATCH) == pytest.approx(1.84289356, rel=1e-8)


@pytest.mark.parametrize("which", range(4), ids=["v_i", "v_j", "b_i", "b_j"])
@pytest.mark.parametrize(("x_max", "alpha"), [(100.0, 0.75), (10.0, 0.5)])
def test_gradients_are_the_slopes_of_the_loss(which: int, x_max: float, alpha: float) -> None:
    gradient = glove.gradients(*BATCH, x_max, alpha)[which]
    step = 1e-6
    slopes = np.empty_like(BATCH[which])
    for place in np.ndindex(slopes.shape):
        losses = []
        for sign in (1, -1):
            moved = [part.copy() for part in BATCH]
            moved[which][place] += sign * step
            losses.append(glove.loss(*moved, x_max, alpha))
        slopes[place] = (losses[0] - losses[1]) / (2 * step)
    assert gradient.shape == BATCH[which].shape
    np.testing.assert_allclose(gradient, slopes, rtol=1e-4, atol=1e-8)


def test_weights_take_any_shape_and_exponent() -> None:
    assert glove.weights(25.0, x_max=100, alpha=0.5) == pytest.approx(0.5)
    assert glove.weights([[1, 1000], [10, 10]], x_max=10, alpha=1.0).tolist() == [[0.1, 1.0], [1.0, 1.0]]
    assert glove.weights(3.0, alpha=0.0) == 1.0


def test_a_perfect_fit_has_no_loss_and_no_slope() -> None:
    counts = np.array([2.0, 50.0])
    fit = (np.zeros((2, 3)), np.ones((2, 3)), np.log(counts), np.zeros(2), counts)
    assert glove.loss(*fit) == 0
    assert not any(part.any() for part in glove.gradients(*fit))
