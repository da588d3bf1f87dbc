"""Train a PyTorch module with a parameter server: any `nn.Module`, with tied weights, buffers and frozen layers.

    with Client(addresses) as ps:
        trainer = TorchTrainer(ps, ConvNet())
        for images, labels in batches:
            if not trainer.step(lambda model: F.nll_loss(model(images), labels), examples=len(labels)):
                break

The server runs the optimizer, so the module needs none. Needs the extra `torch`.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from glovewire.common.array_types import Array
from glovewire.common.errors import MissingExtra, RunOver

from .client import Client

try:
    import torch
except ImportError as error:
    raise MissingExtra("PyTorch is not installed: pip install 'glovewire[torch]'") from error

Module = Any  # torch.nn.Module, where type checkers do not have PyTorch


class TorchModel:
    """The tensors of a module by name: parameters that require a gradient are trained, all others are fixed.

    A weight that several layers share is one tensor, under the first of its names. Half precision becomes float32.
    """

    def __init__(self, module: Module) -> None:
        self.module = module
        self._trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self._frozen = {name: p for name, p in module.named_parameters() if not p.requires_grad}
        self._buffers = [name for name, _ in module.named_buffers()]

    @property
    def fixed(self) -> list[str]:
        """Return the names of frozen parameters and buffers."""
        return [*self._frozen, *self._buffers]

    def values(self) -> dict[str, Array]:
        """Return the value of every tensor, by name."""
        return {name: _as_numpy(each) for name, each in self._all().items()}

    def buffers(self) -> dict[str, Array]:
        """Return the buffers, such as running means, as the last forward pass left them."""
        return {name: _as_numpy(buffer) for name, buffer in self._buffers_now().items()}

    def load(self, values: Mapping[str, Array]) -> None:
        """Set all or some of the tensors by name."""
        tensors = self._all()
        with torch.no_grad():
            for name, value in values.items():
                tensors[name].copy_(torch.from_numpy(np.ascontiguousarray(value).reshape(value.shape)))

    def gradients(self) -> dict[str, Array]:
        """Return the gradients of the last backward pass by name; parameters that took no part in it are left out."""
        return {name: _as_numpy(p.grad) for name, p in self._trained.items() if p.grad is not None}

    def forget_gradients(self) -> None:
        """Drop the gradients, like `zero_grad` but without visiting every layer."""
        for parameter in self._trained.values():
            parameter.grad = None

    def _all(self) -> dict[str, Any]:
        return {**self._trained, **self._frozen, **self._buffers_now()}

    def _buffers_now(self) -> dict[str, Any]:
        """Return the current buffers by name: a module may have replaced a buffer's tensor."""
        current = dict(self.module.named_buffers(remove_duplicate=False))
        return {name: current[name] for name in self._buffers if name in current}


class TorchTrainer:
    """Trains `module` with the servers of `ps`, from the values on the servers or else those of `module`."""

    def __init__(self, ps: Client, module: Module) -> None:
        self.model = TorchModel(module)
        self._ps = ps
        ps.create(self.model.values(), self.model.fixed)
        if self.model.fixed and not ps.over:
            self.model.load(ps.pull_fixed())

    def step(self, loss_of: Callable[[Module], Any], examples: int = 1) -> bool:
        """Pull the parameters, compute `loss_of(module)` (a mean over `examples`) and its gradients, and push those.

        Also pushes the buffers. Returns False, without a step, if the run is over.
        """
        try:
            self.model.load(self._ps.pull())
        except RunOver:
            return False
        self.model.forget_gradients()
        loss = loss_of(self.model.module)
        loss.backward()
        self._ps.push(self.model.gradients(), loss=float(loss.detach()), examples=examples)
        if buffers := self.model.buffers():
            self._ps.push_fixed(buffers)
        return True


def _as_numpy(tensor: Any) -> Array:
    tensor = tensor.detach().cpu().to_dense()  # a gradient may be sparse
    if tensor.dtype in (torch.bfloat16, torch.float16):
        tensor = tensor.float()
    array: Array = tensor.numpy()
    return array
