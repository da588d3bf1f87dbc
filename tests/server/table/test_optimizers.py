"""Every server-side optimizer against PyTorch's own, on rows of float32 and float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from glovewire.common.model.options import OPTIMIZERS, TrainingOptions
from glovewire.common.model.row_layout import state_columns
from glovewire.common.model.tensor_layout import ROW
from glovewire.server.table import optimizers

RATE, ROWS, STEPS = 0.1, 3, 20

Make = Callable[..., Any]


def of_torch(torch: Any, name: str) -> Make:
    """PyTorch's constructor for one of ours."""
    optim = torch.optim
    return {
        "sgd": optim.SGD,
        "momentum": lambda *a, **k: optim.SGD(*a, momentum=0.9, **k),
        "nesterov": lambda *a, **k: optim.SGD(*a, momentum=0.9, nesterov=True, **k),
        "adagrad": optim.Adagrad,
        "adam": optim.Adam,
        "adamw": optim.AdamW,
    }[name]


@pytest.mark.parametrize("decay", [0.0, 0.01])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name != "adagrad-row"])
def test_steps_are_those_of_torch(name: str, dtype: type, decay: float) -> None:
    torch = pytest.importorskip("torch", reason="needs the extra torch")
    options = TrainingOptions.of_tensors(optimizer=name, weight_decay=decay)
    draw = np.random.default_rng(0)
    table = np.zeros((ROWS, ROW + state_columns(name, ROW)), dtype)
    table[:, :ROW] = draw.normal(size=(ROWS, ROW))
    parameters = torch.tensor(table[:, :ROW].copy(), requires_grad=True)
    theirs, ours = of_torch(torch, name)([parameters], lr=RATE, weight_decay=decay), optimizers.make(options)
    for _ in range(STEPS):
        gradient = draw.normal(size=(ROWS, ROW)).astype(dtype)
        parameters.grad = torch.tensor(gradient)
        theirs.step()
        ours(table, np.arange(ROWS), gradient, RATE, np.ones(ROWS, np.float32))
    np.testing.assert_allclose(table[:, :ROW], parameters.detach().numpy(), atol=4e-6 if dtype == np.float32 else 1e-6)


def test_the_rate_rises_and_falls_as_asked() -> None:
    options = TrainingOptions.of_tensors(learning_rate=1.0, rate_shape="cosine", final_rate=0.2, warmup=0.25, steps=100)
    rates = [options.rate_of_step(step) for step in range(100)]
    assert np.argmax(rates) == 24
    assert rates[0] == pytest.approx(0.04, rel=0.01)
    assert rates[62] == pytest.approx(0.2 + 0.8 * (1 + np.cos(np.pi * 0.63)) / 2)
    assert rates[99] == pytest.approx(0.2)
    assert TrainingOptions.of_tensors(learning_rate=0.3).rate_of_step(10**6) == 0.3
