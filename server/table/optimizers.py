"""Choose the optimizer that the server runs for pushed gradients. No I/O, no clock.

A new optimizer also needs changes in kernels.py, common/model/options.py and common/model/row_layout.py. Accumulators
may start at zero: `kernels.TINY` keeps a zero gradient on a zero accumulator from becoming NaN.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from glovewire.common.array_types import Indices, Rows, Scales
from glovewire.common.model.options import TrainingOptions
from glovewire.common.model.row_layout import RowLayout, state_columns
from glovewire.common.model.tensor_layout import ROW

from . import kernels

Step = Callable[[Rows, Indices, Rows, float, Scales], None]
"""(table, distinct rows, gradients of shape (rows, parameters), rate, scales of shape (rows,)): step in place.

`scales` multiplies each row's final step, after the preconditioner: accumulators see the unscaled gradients.
"""


def warm(options: TrainingOptions) -> None:
    """Compile the optimizer's step, or load it from the cache, so that no worker waits for it."""
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
    """Return the step function of the optimizer that the options name, weight decay included."""
    step = _bare_step(options)
    if not options.weight_decay or options.optimizer == "adamw":
        return step

    def decayed(table: Rows, rows: Indices, gradients: Rows, rate: float, scales: Scales) -> None:
        step(table, rows, kernels.add_decay(table, rows, gradients, options.weight_decay), rate, scales)

    return decayed


def _bare_step(options: TrainingOptions) -> Step:
    match options.optimizer:
        case "sgd":
            return kernels.step_sgd
        case "adagrad":
            return kernels.step_adagrad
        case "momentum" | "nesterov":
            return partial(kernels.step_momentum, options.momentum, options.optimizer == "nesterov")
        case "adam" | "adamw":
            decay = options.weight_decay if options.optimizer == "adamw" else 0.0
            return partial(kernels.step_adam, options.beta1, options.beta2, options.epsilon, decay)
    layout = RowLayout.of(options)
    return partial(kernels.step_adagrad_row, layout.columns[: layout.roles], layout.dim)
