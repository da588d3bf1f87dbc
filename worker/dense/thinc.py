"""Train a Thinc model with a parameter server: the parameters of every node that `Model.walk` finds.

    with Client(addresses) as ps:
        trainer = ThincTrainer(ps, model)           # initialised: its shapes are known
        for X, Y in batches:
            if not trainer.step(X, Y):
                break

The server runs the optimizer, so Thinc's is not needed. Needs the extra `thinc`.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from glovewire.common.array_types import Array
from glovewire.common.errors import RunOver, UsageError

from .client import Client

Gradient = Callable[[Any, Any], tuple[Any, float]]
"""(guesses, truth) -> the gradient of the mean loss with respect to the guesses, and the mean loss."""


class ThincModel:
    """The parameters of a model by name, such as `3.relu.W`: position in the walk, node name, parameter name.

    A node that occurs twice in the model is visited once. Raises UsageError for a model that was not initialised.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self._places = {
            f"{place}.{node.name}.{name}": (node, name)
            for place, node in enumerate(model.walk())
            for name in node.param_names
        }
        if missing := [name for name, (node, of) in self._places.items() if not node.has_param(of)]:
            raise UsageError(f"the model has no values for {missing[0]!r} yet: call initialize with a batch first")

    def values(self) -> dict[str, Array]:
        """Return the value of every parameter, by name."""
        return {name: _as_numpy(node.get_param(of)) for name, (node, of) in self._places.items()}

    def load(self, values: Mapping[str, Array]) -> None:
        """Set parameters by name."""
        for name, value in values.items():
            node, of = self._places[name]
            node.set_param(of, self.model.ops.asarray(value))

    def take_gradients(self) -> dict[str, Array]:
        """Return the gradients of the last backward pass by name, and zero them in the model."""
        found = {}
        for name, (node, of) in self._places.items():
            if node.has_grad(of):
                found[name] = _as_numpy(node.get_grad(of)).copy()
                node.set_grad(of, node.ops.alloc(node.get_grad(of).shape))
        return found


class ThincTrainer:
    """Trains `model` with the servers of `ps`; the default `gradient` is `cross_entropy`."""

    def __init__(self, ps: Client, model: Any, gradient: Gradient | None = None) -> None:
        self.model = ThincModel(model)
        self._ps, self._gradient = ps, gradient or cross_entropy
        ps.create(self.model.values())

    def step(self, X: Any, Y: Any) -> bool:
        """Pull, run the batch forward and backward, and push; return False, without a step, if the run is over."""
        try:
            self.model.load(self._ps.pull())
        except RunOver:
            return False
        guesses, backprop = self.model.model.begin_update(X)
        gradient, loss = self._gradient(guesses, Y)
        backprop(gradient)
        self._ps.push(self.model.take_gradients(), loss=loss, examples=len(X))
        return True


def cross_entropy(guesses: Any, truth: Any) -> tuple[Any, float]:
    """Return gradient and mean loss for softmax outputs `guesses` and one-hot `truth`, both (examples, classes)."""
    picked = (_as_numpy(guesses) * _as_numpy(truth)).sum(axis=1)
    return (guesses - truth) / len(truth), float(-np.log(np.maximum(picked, 1e-30)).mean())


def _as_numpy(array: Any) -> Array:
    return np.asarray(array.get() if hasattr(array, "get") else array)
