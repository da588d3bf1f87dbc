"""Compare `glovewire bench dense` with a parameter server of Ray actors, as in Ray's own example, in turns.

    python benchmarks/peers/ray_convnet.py [--workers 2] [--batch 128] [--seconds 5] [--repeats 3] [--shards 1]

One actor has the model and makes the steps, the others compute gradients; weights and gradients are sent through Ray's
object store. `ray` draws batches from memory on a core per worker, like Glovewire's side. `ray example` works like the
example: a DataLoader prepares each image when it is drawn, and the system chooses the cores. Prints one JSON object in
the form of `bench dense`, with `ratio`: updates per second of Glovewire relative to each peer, and processor time of a
peer relative to Glovewire, both without that of the gradients. Needs the extras `ray` and `torch`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import fields
from functools import partial
from typing import Any

from glovewire.bench.config import DenseBenchConfig
from glovewire.bench.convnet import (
    DEVIATION,
    MEAN,
    SIDE,
    Batches,
    Stopwatch,
    Throughput,
    gradient_ms,
    loss_of,
    make_network,
    random_batches,
    random_images,
)
from glovewire.bench.dense import (
    MODES,
    WARM_UP_UPDATES,
    gradients_per_update,
    summary,
    table,
    train_convnet,
)
from glovewire.bench.measurements import spread, surroundings
from glovewire.common.errors import UsageError
from glovewire.exits import signals_end_all
from glovewire.worker.dense.affinity import own_core

OURS = "glovewire"
UPDATES_PER_LOOK = 10


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field in fields(DenseBenchConfig):
        parser.add_argument(f"--{field.name}", type=type(field.default), default=field.default)
    try:
        config = DenseBenchConfig(**vars(parser.parse_args()))
    except UsageError as error:
        parser.error(str(error))
    result = bench(config)
    print(table(result), *ratio_lines(result), sep="\n", file=sys.stderr)
    print(json.dumps(result))


def bench(config: DenseBenchConfig) -> dict[str, Any]:
    """Measure all sides in turns."""
    import ray

    before = surroundings()
    sides: dict[str, Callable[[str], Throughput]] = {
        OURS: partial(train_convnet, config=config),
        "ray": partial(train_with_ray, config=config, loading=False),
        "ray example": partial(train_with_ray, config=config, loading=True),
    }
    throughputs: dict[str, list[Throughput]] = {f"{side} {mode}": [] for mode in MODES for side in sides}
    floors: list[float] = []
    ray.init(num_cpus=config.workers + 1, include_dashboard=False, log_to_driver=False, logging_level="error")
    try:
        with signals_end_all():  # after ray.init, which installs handlers of its own
            for _ in range(config.repeats):
                floors.append(gradient_ms(config.batch))
                for mode in MODES:
                    for side, train in sides.items():
                        throughputs[f"{side} {mode}"].append(found := train(mode))
                        print(f"{side} {mode}: {found.updates_per_second:.0f} updates/s", file=sys.stderr)
    finally:
        ray.shutdown()
    return {
        **before,
        "workers": config.workers,
        "batch": config.batch,
        "shards": config.shards,
        **summary(throughputs, floors, config.workers, before["cores"]),
        "ratio": ratios(throughputs, floors, config.workers),
    }


def ratios(
    throughputs: Mapping[str, Sequence[Throughput]], floors: Sequence[float], workers: int
) -> dict[str, dict[str, Any]]:
    """Compare Glovewire with each peer, repeat by repeat; `floors` are the milliseconds of one gradient."""

    def without_gradients(name: str) -> list[float]:
        count = gradients_per_update(name, workers)
        return [each.cpu_ms - count * floor for each, floor in zip(throughputs[name], floors, strict=True)]

    def compared(name: str) -> dict[str, Any]:
        ours = f"{OURS} {name.split()[-1]}"
        rates = zip(throughputs[ours], throughputs[name], strict=True)
        costs = zip(without_gradients(ours), without_gradients(name), strict=True)
        return {
            "updates_per_second": spread(a.updates_per_second / b.updates_per_second for a, b in rates),
            "cpu_besides_gradient": spread(theirs / own for own, theirs in costs),
        }

    return {name: compared(name) for name in throughputs if not name.startswith(OURS)}


def ratio_lines(result: dict[str, Any]) -> list[str]:
    """Return the ratios as text."""
    medians = {
        name: [ratio[key]["median"] for key in ("updates_per_second", "cpu_besides_gradient")]
        for name, ratio in result["ratio"].items()
    }
    return [
        f"{times:.1f} times {name} in updates, {besides:.1f} times in processor time besides the gradient"
        for name, (times, besides) in medians.items()
    ]


def train_with_ray(mode: str, config: DenseBenchConfig, *, loading: bool) -> Throughput:
    """Train in one mode with Ray actors; with `loading`, as Ray's example does (see above)."""
    import ray

    server = ray.remote(num_cpus=0)(ParameterServer).remote()
    actor = ray.remote(num_cpus=0)(GradientActor)
    actors = [actor.remote(rank, config.batch, loading) for rank in range(config.workers)]
    try:
        return (train_sync if mode == "sync" else train_async)(ray, server, actors, config.seconds)
    finally:
        for each in (server, *actors):
            ray.kill(each)


class ParameterServer:
    """Keeps the weights and makes steps of plain gradient descent."""

    def __init__(self) -> None:
        import torch

        self._net = make_network()
        self._optimizer = torch.optim.SGD(self._net.parameters(), lr=0.01)

    def weights(self) -> dict[str, Any]:
        """Return every tensor by name."""
        return {name: value.numpy() for name, value in self._net.state_dict().items()}

    def apply(self, *gradients: list[Any]) -> dict[str, Any]:
        """Step by the mean of the workers' gradients, and return the new weights."""
        import torch

        for parameter, each in zip(self._net.parameters(), zip(*gradients, strict=True), strict=True):
            parameter.grad = torch.from_numpy(sum(each) / len(each))
        self._optimizer.step()
        return self.weights()


class GradientActor:
    """Computes gradients of its own batches."""

    def __init__(self, rank: int, batch: int, loading: bool) -> None:
        self._core = nullcontext() if loading else own_core(rank)
        self._core.__enter__()  # for the life of the actor
        self._net, self._batches = make_network(), (loaded_batches if loading else random_batches)(rank, batch)

    def gradients(self, weights: dict[str, Any]) -> list[Any]:
        """Return the gradients at these weights, in the order of the parameters."""
        import torch

        self._net.load_state_dict({name: torch.from_numpy(value.copy()) for name, value in weights.items()})
        self._net.zero_grad()
        loss_of(self._net, *next(self._batches)).backward()
        return [parameter.grad.numpy() for parameter in self._net.parameters()]


def train_sync(ray: Any, server: Any, actors: list[Any], seconds: float) -> Throughput:
    """Apply the gradients of all actors in each update."""
    weights = server.weights.remote()

    def update() -> int:
        nonlocal weights
        for _ in range(UPDATES_PER_LOOK):
            weights = server.apply.remote(*[actor.gradients.remote(weights) for actor in actors])
        ray.get(weights)
        return UPDATES_PER_LOOK

    return measured(update, seconds)


def train_async(ray: Any, server: Any, actors: list[Any], seconds: float) -> Throughput:
    """Apply each gradient as it arrives."""
    weights = server.weights.remote()
    running = {actor.gradients.remote(weights): actor for actor in actors}

    def update() -> int:
        ready, _ = ray.wait(list(running))
        actor = running.pop(ready[0])
        running[actor.gradients.remote(server.apply.remote(ready[0]))] = actor
        return 1

    return measured(update, seconds)


def measured(update: Callable[[], int], seconds: float) -> Throughput:
    """Return the throughput of `update`, which returns its number of updates, over about `seconds`."""
    warm_up = 0
    while warm_up < WARM_UP_UPDATES:
        warm_up += update()
    stopwatch, count = Stopwatch(), 0
    while stopwatch.seconds < seconds:
        count += update()
    return stopwatch.throughput(count)


def loaded_batches(rank: int, batch: int) -> Batches:
    """Yield batches of a DataLoader that prepares each image when it is drawn, as in Ray's example.

    The example reads torchvision's MNIST: each image becomes a Pillow image, which ToTensor and Normalize turn into a
    tensor of mean 0 and deviation 1. The same steps are taken here without torchvision.
    """
    from torch.utils.data import DataLoader

    images, labels, draw = random_images(rank)
    images = images[:, 0]

    class Prepared:
        def __len__(self) -> int:
            return len(images)

        def __getitem__(self, at: int) -> Any:
            return prepared(images[at]), int(labels[at])

    while True:
        yield from DataLoader(Prepared(), batch_size=batch, shuffle=True, drop_last=True, generator=draw)


def prepared(image: Any) -> Any:
    """Convert an image by Pillow, divide by 255 and normalise in place as torchvision does; shape (1, SIDE, SIDE)."""
    import numpy as np
    import torch
    from PIL import Image

    pixels = torch.from_numpy(np.array(Image.fromarray(image.numpy()), np.uint8))
    values = pixels.view(SIDE, SIDE, 1).permute(2, 0, 1).contiguous().float().div(255).clone()
    mean, deviation = (torch.as_tensor([each], dtype=values.dtype) for each in (MEAN, DEVIATION))
    if (deviation == 0).any():  # torchvision checks this for every image
        raise ValueError("no deviation")
    return values.sub_(mean.view(-1, 1, 1)).div_(deviation.view(-1, 1, 1))


if __name__ == "__main__":
    main()
