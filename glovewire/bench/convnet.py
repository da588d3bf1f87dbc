"""Define the ConvNet of `glovewire bench dense`, its batches, and a stopwatch for updates."""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from glovewire.common.runtime.procfs import cpu_seconds, descendants

SIDE = 28
IMAGES = 10_000
MEAN, DEVIATION = 0.1307, 0.3081
WARM_UP_GRADIENTS = 20
GRADIENTS = 200
Batches = Iterator[tuple[Any, Any]]


@dataclass(frozen=True)
class Throughput:
    """Updates per second, and processor milliseconds per update, summed over all processes."""

    updates_per_second: float
    cpu_ms: float


class Stopwatch:
    """Measures time, and the processor time of this process and its descendants, since its creation.

    Leaves out processes that have ended by the time of reading, such as workers of the previous measurement.
    """

    def __init__(self) -> None:
        self._began, self._used = time.perf_counter(), _cpu_seconds()

    @property
    def seconds(self) -> float:
        """Return the seconds since the creation."""
        return time.perf_counter() - self._began

    def throughput(self, updates: int) -> Throughput:
        """Return the throughput, given the number of updates since the creation."""
        used_s = sum(total - self._used.get(pid, 0.0) for pid, total in _cpu_seconds().items())
        return Throughput(updates / self.seconds, used_s * 1e3 / max(updates, 1))


def make_network() -> Any:
    """Return the network, with three filters and ten outputs; limit PyTorch to one thread in this process."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    pooled = (SIDE - 2) // 3
    nn = torch.nn
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.MaxPool2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(3 * pooled**2, 10), nn.LogSoftmax(1)
    )


def loss_of(net: Any, x: Any, y: Any) -> Any:
    """Return the mean negative log likelihood of a batch."""
    import torch

    return torch.nn.functional.nll_loss(net(x), y)


def random_images(rank: int) -> tuple[Any, Any, Any]:
    """Return random images, uint8 (IMAGES, 1, SIDE, SIDE), their labels, and the generator that drew them."""
    import torch

    draw = torch.Generator().manual_seed(rank)
    images = torch.randint(256, (IMAGES, 1, SIDE, SIDE), generator=draw, dtype=torch.uint8)
    return images, torch.randint(10, (IMAGES,), generator=draw), draw


def random_batches(rank: int, batch: int) -> Batches:
    """Yield batches of `batch` random normalised images and their labels, without end."""
    import torch

    images, labels, draw = random_images(rank)
    normalised = (images.float() / 255 - MEAN) / DEVIATION
    while True:
        at = torch.randint(IMAGES, (batch,), generator=draw)
        yield normalised[at], labels[at]


def gradient_ms(batch: int) -> float:
    """Measure the processor milliseconds of one gradient, a lower bound of an update by any parameter server."""
    net, batches = make_network(), random_batches(0, batch)
    began = 0.0
    for count in range(WARM_UP_GRADIENTS + GRADIENTS):
        if count == WARM_UP_GRADIENTS:
            began = time.process_time()
        net.zero_grad()
        loss_of(net, *next(batches)).backward()
    return (time.process_time() - began) * 1e3 / GRADIENTS


def _cpu_seconds() -> dict[int, float]:
    """Return the processor seconds so far of this process and its descendants, by process id."""
    found = {pid: cpu_seconds(pid) for pid in (os.getpid(), *descendants(os.getpid()))}
    return {pid: total for pid, total in found.items() if total}  # without processes that have just ended
