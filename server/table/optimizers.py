"""The optimizers that run on the server for pushed gradients. Pure arithmetic on rows: no I/O, no clock.

Accumulators may start at zero: kernels.TINY keeps a gradient of zero on an accumulator of zero from becoming NaN.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from glovewire.common.array_types import Indices, Rows, Scales
from glovewire.common.model.options import TrainingOptions
from glovewire.common.model.row_layout import RowLayout, state_columns
from glovewire.common.model.tensor_layout import ROW

from . import kernels
from . import kernels as step_kernels

Step = Callable[[Rows, Indices, Rows, float, Scales], None]
"""(table, distinct rows, gradients of shape (rows, parameters), rate, scales of shape (rows,)): steps in place.

`scales` multiplies each row's final step, behind the preconditioner: accumulators see the gradients as they came.
"""


def warm(options: TrainingOptions) -> None:
    """Compile (or load from the cache) the step, before a worker waits for it."""
    words = RowLayout.of(options)
    parameters, width = words.parameters, words.width
    if options.objective == "tensors":
        parameters, width = ROW, ROW + state_columns(options.optimizer, ROW)
    for writable in (True, False):
        gradients = np.zeros((1, parameters), np.float32)
        gradients.setflags(write=writable)
        one, scales = np.ones((1, width), np.float32), np.ones(1, np.float32)
        make(options)(one, np.zeros(1, np.int64), gradients, 0.0, scales)


def make(options: TrainingOptions) -> Step:
    """The step of the optimizer that the options name."""
    step = _preconditioned(options)
    if not options.weight_decay or options.optimizer == "adamw":
        return step

    def decayed(table: Rows, rows: Indices, gradients: Rows, rate: float, scales: Scales) -> None:
        pulled = step_kernels.with_decay(table, rows, gradients, options.weight_decay)
        step(table, rows, pulled, rate, scales)

    return decayed


def _preconditioned(options: TrainingOptions) -> Step:
    if options.optimizer == "sgd":
        return kernels.step_sgd
    if options.optimizer == "adagrad":
        return kernels.step_adagrad
    if options.optimizer in ("momentum", "nesterov"):
        return _momentum(options)
    if options.optimizer in ("adam", "adamw"):
        return _adam(options)
    layout = RowLayout.of(options)
    columns = layout.columns[: layout.roles]

    def adagrad_row(table: Rows, rows: Indices, gradients: Rows, rate: float, scales: Scales) -> None:
        kernels.step_adagrad_row(table, rows, gradients, rate, scales, columns, layout.dim)

    return adagrad_row


def _momentum(options: TrainingOptions) -> Step:
    momentum, ahead = options.momentum, options.optimizer == "nesterov"

    def step(table: Rows, rows: Indices, gradients: Rows, rate: float, scales: Scales) -> None:
        step_kernels.step_momentum(table, rows, gradients, rate, scales, momentum, ahead)

    return step


def _adam(options: TrainingOptions) -> Step:
    beta1, beta2, epsilon = options.beta1, options.beta2, options.epsilon
    decay = options.weight_decay if options.optimizer == "adamw" else 0.0

    def step(table: Rows, rows: Indices, gradients: Rows, rate: float, scales: Scales) -> None:
        step_kernels.step_adam(table, rows, gradients, rate, scales, beta1, beta2, epsilon, decay)

    return step
