"""The optimizers that run on the server for pushed gradients. Pure arithmetic on rows: no I/O, no clock.

Accumulators may start at zero: kernels.TINY keeps a gradient of zero on an accumulator of zero from becoming NaN.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from common.options import TrainingOptions
from common.rows import RowLayout

from . import kernels

Rows = npt.NDArray[np.float32]
Indices = npt.NDArray[np.int64]
Scales = npt.NDArray[np.float32]
Step = Callable[[Rows, Indices, Rows, float, Scales], None]
"""(table, distinct rows, gradients of shape (rows, parameters), rate, scales of shape (rows,)): steps in place.

`scales` multiplies each row's final step, behind the preconditioner: accumulators see the gradients as they came.
"""


def warm(options: TrainingOptions) -> None:
    """Compile (or load from the cache) the step, before a worker waits for it."""
    layout = RowLayout.of(options)
    for writable in (True, False):
        gradients = np.zeros((1, layout.parameters), np.float32)
        gradients.setflags(write=writable)
        one, scales = np.ones((1, layout.width), np.float32), np.ones(1, np.float32)
        make(options)(one, np.zeros(1, np.int64), gradients, 0.0, scales)


def make(options: TrainingOptions) -> Step:
    """The step of the optimizer that the options name."""
    layout = RowLayout.of(options)
    if options.optimizer == "sgd":
        return kernels.step_sgd
    if options.optimizer == "adagrad":
        return kernels.step_adagrad
    columns = layout.columns[: layout.roles]

    def adagrad_row(table: Rows, rows: Indices, gradients: Rows, rate: float, scales: Scales) -> None:
        kernels.step_adagrad_row(table, rows, gradients, rate, scales, columns, layout.dim)

    return adagrad_row
