"""The peer of `glovewire bench dense`: a parameter server of Ray actors, in the manner of Ray's own example.

One actor has the model and takes the steps, others compute gradients; weights and gradients travel through Ray's object
store, and a driver passes them on. Needs the extras `ray` and `torch`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

WARM_UPDATES = 20


def updates_per_second(mode: str, workers: int, batch: int, seconds: float) -> float:
    """Updates a second of so many workers with batches of `batch`, `sync` or `async`, over about `seconds`."""
    import ray

    server = ray.remote(num_cpus=0)(ParameterServer).remote()
    found = [ray.remote(num_cpus=0)(Worker).remote(rank, batch) for rank in range(workers)]
    try:
        return (_in_step if mode == "sync" else _apart)(ray, server, found, seconds)
    finally:
        for actor in (server, *found):
            ray.kill(actor)


class ParameterServer:
    """Has the weights; a step is one of plain descent."""

    def __init__(self) -> None:
        import torch

        from .bench_dense import make

        self._net = make()
        self._optimizer = torch.optim.SGD(self._net.parameters(), lr=0.01)

    def weights(self) -> dict[str, Any]:
        """Every tensor by name."""
        return {name: value.numpy() for name, value in self._net.state_dict().items()}

    def apply(self, *gradients: list[Any]) -> dict[str, Any]:
        """Step by the mean of what the workers bring; the weights after it."""
        import torch

        for parameter, each in zip(self._net.parameters(), zip(*gradients, strict=True), strict=True):
            parameter.grad = torch.from_numpy(sum(each) / len(each))
        self._optimizer.step()
        return self.weights()


class Worker:
    """Computes gradients of its own batches."""

    def __init__(self, rank: int, batch: int) -> None:
        from .bench_dense import examples, make

        self._net, (self._x, self._y) = make(), examples(rank, batch)

    def gradients(self, weights: dict[str, Any]) -> list[Any]:
        """At these weights, in the order of the parameters."""
        import torch

        from .bench_dense import loss_of

        self._net.load_state_dict({name: torch.from_numpy(value.copy()) for name, value in weights.items()})
        self._net.zero_grad()
        loss_of(self._net, self._x, self._y).backward()
        return [parameter.grad.numpy() for parameter in self._net.parameters()]


def _in_step(ray: Any, server: Any, workers: list[Any], seconds: float) -> float:
    weights = server.weights.remote()

    def update() -> None:
        nonlocal weights
        weights = server.apply.remote(*[worker.gradients.remote(weights) for worker in workers])
        ray.get(weights)

    return _rate(update, seconds)


def _apart(ray: Any, server: Any, workers: list[Any], seconds: float) -> float:
    weights = server.weights.remote()
    running = {worker.gradients.remote(weights): worker for worker in workers}

    def update() -> None:
        ready, _ = ray.wait(list(running))
        worker = running.pop(ready[0])
        running[worker.gradients.remote(server.apply.remote(ready[0]))] = worker

    return _rate(update, seconds)


def _rate(update: Callable[[], None], seconds: float) -> float:
    for _ in range(WARM_UPDATES):
        update()
    began, count = time.perf_counter(), 0
    while (gone := time.perf_counter() - began) < seconds:
        update()
        count += 1
    return count / gone
