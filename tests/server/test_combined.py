"""What several gradients that are carried out together come to."""

from __future__ import annotations

import numpy as np
import pytest

from glovewire.server.consistency.staleness import Part, combined
from glovewire.server.table.table import numbers, ones


def test_together_gradients_are_their_mean_or_sum_over_all_rows_and_each_has_its_own_scale() -> None:
    """Row 2 stands in both, with scales 1 and 1/2: the step is exactly the sum of scaled gradients."""
    one = Part(np.array([0, 2]), np.array([[1, 2], [3, 4]], np.float32), np.array([1, 1], np.float32))
    two = Part(np.array([2, 3]), np.array([[5, 6], [7, 8]], np.float32), np.array([0.5, 0.25], np.float32))
    for mean, share in ((False, 1), (True, 2)):
        both = combined([one, two], mean=mean)
        np.testing.assert_array_equal(both.rows, [0, 2, 3])
        steps = both.scales[:, None] * both.gradients * share
        np.testing.assert_allclose(steps, [[1, 2], [3 + 2.5, 4 + 3], [7 / 4, 2]], rtol=1e-6)
        np.testing.assert_allclose(both.scales, [1, 0.75, 0.25])
    assert combined([one], mean=True) is one


def test_gradients_of_one_range_and_one_weight_are_just_added_up_and_others_are_not() -> None:
    """All of them have the arrays of rows and scales in common that the table keeps, or one of them, or none."""
    rows, once = numbers(0, 2), ones(2)
    half, above = np.full(2, 0.5, np.float32), np.array([1, 2])
    one, two = np.float32([[3], [6]]), np.float32([[9], [12]])
    for other, weight, expected, scale in (
        (rows, once, {0: 12, 1: 18}, 1.0),
        (rows.copy(), once.copy(), {0: 12, 1: 18}, 1.0),
        (rows, half, {0: 3 * 4 / 3 + 9 * 2 / 3, 1: 6 * 4 / 3 + 12 * 2 / 3}, 0.75),
        (above, once, {0: 3, 1: 15, 2: 12}, 1.0),
    ):
        sums = combined([Part(rows, one, once), Part(other, two, weight)], mean=False)
        assert dict(zip(sums.rows.tolist(), sums.gradients[:, 0].tolist(), strict=True)) == pytest.approx(expected)
        assert sums.scales.tolist() == [scale] * len(expected)
    assert (one.tolist(), once.tolist()) == ([[3], [6]], [1, 1])
