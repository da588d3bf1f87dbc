"""A step on a word with itself, whose row has both roles, against plain numpy; for others see test_worker_kernels."""

from __future__ import annotations

from typing import Any

import glove_reference as glove
import numpy as np
import pytest

from glovewire.common.model.options import TrainingOptions
from glovewire.common.model.row_layout import RowLayout
from glovewire.common.storage.dataset import ENTRY
from glovewire.worker.kernels import glove as kernels

X_MAX, ALPHA, RATE = 10.0, 0.75, 0.05


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("optimizer", ["adagrad-row", "adagrad", "sgd"])
@pytest.mark.parametrize("dim", [3, 20])
def test_a_tied_word_with_itself_is_one_step_of_its_vector_and_its_bias(
    optimizer: str, dim: int, symmetric: bool
) -> None:
    """A step is on the gradient of a stored entry by its images: of one with two where the matrix is symmetric."""
    options = TrainingOptions(dim=dim, tied=True, optimizer=optimizer, init_scale=2.0)
    layout = RowLayout.of(options)
    rows = layout.initial(0, 6, options)
    rows[:, layout.columns[0, 1]] = np.random.default_rng(1).normal(size=6)
    row = rows[2].astype(np.float64)
    vector, bias, state, bias_state = layout.columns[0].tolist()
    v, x = row[vector : vector + dim].copy(), 3.0
    floor = 2 * row[bias] - np.log(x)
    g = float(glove.weights(x, X_MAX, ALPHA)) * (floor + v @ v)
    slope = g if symmetric else 2 * g
    scale: Any = 1.0
    if optimizer == "adagrad":
        row[state : state + dim] += (slope * v) ** 2
        scale = np.sqrt(row[state : state + dim])
    elif optimizer == "adagrad-row":
        row[state] += ((slope * v) ** 2).mean()
        scale = np.sqrt(row[state])
    if optimizer != "sgd":
        row[bias_state] += slope**2
    row[vector : vector + dim] -= RATE * slope * v / scale
    row[bias] -= RATE * slope / (1.0 if optimizer == "sgd" else np.sqrt(row[bias_state]))
    others = np.delete(rows, 2, axis=0)
    entry = np.array([(2, 2, x)], ENTRY)
    entry.setflags(write=False)  # as a dataset's: for others the loops are compiled once more
    pairs, counts = kernels.as_plain_arrays(entry)
    found = kernels.train_block(
        rows, rows, pairs, counts, np.array([0, 1]), *np.zeros((2, 1), np.int64), 3, layout.columns, dim, layout.span,
        kernels.OPTIMIZERS[optimizer], True, symmetric, True, X_MAX, ALPHA, RATE,
    )  # fmt: skip
    np.testing.assert_allclose(rows[2], row, rtol=2e-5, atol=2e-6)
    np.testing.assert_array_equal(np.delete(rows, 2, axis=0), others)
    loss = g * (floor + v @ v)
    assert found == pytest.approx((loss, float(glove.weights(x, X_MAX, ALPHA)) * floor**2, 1), rel=1e-5)
