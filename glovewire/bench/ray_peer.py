"""The peer of `glovewire bench dense`: a parameter server of Ray actors, in the manner of Ray's own example.

One actor has the model and takes the steps, others compute gradients; weights and gradients travel through Ray's
object store. A driver passes them on and looks at them once in LOOK_EVERY updates. Needs the extras `ray` and `torch`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from glovewire.worker.dense.affinity import own_core

from .convnet import Pace, Watch, drawn, loaded, loss_of, make

WARM_UPDATES = 20
LOOK_EVERY = 10


def pace(mode: str, workers: int, batch: int, seconds: float, *, loading: bool) -> Pace:
    """Of so many workers with batches of `batch`, `sync` or `async`, over about `seconds`.

    With `loading` each worker has its batches made ready image by image and the cores that it gets, as in the example,
    else batches that are ready and a core of its own, as ours.
    """
    import ray

    server = ray.remote(num_cpus=0)(ParameterServer).remote()
    found = [ray.remote(num_cpus=0)(Worker).remote(rank, batch, loading) for rank in range(workers)]
    try:
        return (_in_step if mode == "sync" else _apart)(ray, server, found, seconds)
    finally:
        for actor in (server, *found):
            ray.kill(actor)


class ParameterServer:
    """Has the weights; a step is one of plain descent."""

    def __init__(self) -> None:
        import torch

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

    def __init__(self, rank: int, batch: int, loading: bool) -> None:
        self._core = nullcontext() if loading else own_core(rank)
        self._core.__enter__()  # for as long as the actor lives
        self._net, self._batches = make(), (loaded if loading else drawn)(rank, batch)

    def gradients(self, weights: dict[str, Any]) -> list[Any]:
        """At these weights, in the order of the parameters."""
        import torch

        self._net.load_state_dict({name: torch.from_numpy(value.copy()) for name, value in weights.items()})
        self._net.zero_grad()
        loss_of(self._net, *next(self._batches)).backward()
        return [parameter.grad.numpy() for parameter in self._net.parameters()]


def _in_step(ray: Any, server: Any, workers: list[Any], seconds: float) -> Pace:
    weights = server.weights.remote()

    def updates() -> int:
        nonlocal weights
        for _ in range(LOOK_EVERY):
            weights = server.apply.remote(*[worker.gradients.remote(weights) for worker in workers])
        ray.get(weights)
        return LOOK_EVERY

    return _pace(updates, seconds)


def _apart(ray: Any, server: Any, workers: list[Any], seconds: float) -> Pace:
    weights = server.weights.remote()
    running = {worker.gradients.remote(weights): worker for worker in workers}

    def updates() -> int:
        ready, _ = ray.wait(list(running))
        worker = running.pop(ready[0])
        running[worker.gradients.remote(server.apply.remote(ready[0]))] = worker
        return 1

    return _pace(updates, seconds)


def _pace(updates: Callable[[], int], seconds: float) -> Pace:
    warm = 0
    while warm < WARM_UPDATES:
        warm += updates()
    watch, count = Watch(), 0
    while watch.seconds < seconds:
        count += updates()
    return watch.pace(count)
