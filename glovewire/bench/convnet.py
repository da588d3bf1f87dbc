"""What both sides of `glovewire bench dense` compute, the tutorials' ConvNet, and how their updates are counted."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from glovewire.common.runtime.procfs import cpu_seconds, descendants

SIDE = 28
IMAGES = 10_000
MEAN, DEVIATION = 0.1307, 0.3081
WARM_GRADIENTS = 20
GRADIENTS = 200
Batches = Iterator[tuple[Any, Any]]


@dataclass(frozen=True)
class Pace:
    """Updates a second, and the milliseconds that one takes of all processors together."""

    updates_per_second: float
    cpu_ms: float


class Watch:
    """Runs from its making on: the time, and what this process and all below it take of the processors.

    What ends meanwhile, such as actors of the measurement before, takes its count along and is left out.
    """

    def __init__(self) -> None:
        self._began, self._used = time.perf_counter(), _used_s()

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.perf_counter() - self._began

    def pace(self, updates: int) -> Pace:
        """Of so many updates since the beginning."""
        used_s = sum(total - self._used.get(pid, 0.0) for pid, total in _used_s().items())
        return Pace(updates / self.seconds, used_s * 1e3 / max(updates, 1))


def make() -> Any:
    """The network, fresh: three filters, ten outputs; one thread a process from now on."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    pooled = (SIDE - 2) // 3
    nn = torch.nn
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.MaxPool2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(3 * pooled**2, 10), nn.LogSoftmax(1)
    )


def loss_of(net: Any, x: Any, y: Any) -> Any:
    """Mean negative log likelihood."""
    import torch

    return torch.nn.functional.nll_loss(net(x), y)


def drawn(rank: int, batch: int) -> Batches:
    """Random batches for ever, out of random images that are in memory as the network wants them."""
    import torch

    images, labels, draw = _random(rank)
    ready = _normal(images)
    while True:
        at = torch.randint(IMAGES, (batch,), generator=draw)
        yield ready[at], labels[at]


def loaded(rank: int, batch: int) -> Batches:
    """The same by a DataLoader that makes each image ready when it is drawn, as in Ray's example.

    That reads torchvision's MNIST, whose every image becomes a picture of Pillow, which ToTensor and Normalize make a
    tensor of mean 0 and deviation 1. The same steps are taken here, its looking for a deviation of zero among them:
    torchvision itself need not be installed.
    """
    from torch.utils.data import DataLoader

    images, labels, draw = _random(rank)
    images = images[:, 0]

    class Ready:
        def __len__(self) -> int:
            return len(images)

        def __getitem__(self, at: int) -> Any:
            image, label = images[at], int(labels[at])
            return _of_picture(image), label

    while True:
        yield from DataLoader(Ready(), batch_size=batch, shuffle=True, drop_last=True, generator=draw)


def gradient_ms(batch: int) -> float:
    """Processor time of one gradient and nothing else: what no parameter server can save."""
    net, batches = make(), drawn(0, batch)
    began = 0.0
    for count in range(WARM_GRADIENTS + GRADIENTS):
        if count == WARM_GRADIENTS:
            began = time.process_time()
        net.zero_grad()
        loss_of(net, *next(batches)).backward()
    return (time.process_time() - began) * 1e3 / GRADIENTS


def _random(rank: int) -> tuple[Any, Any, Any]:
    import torch

    draw = torch.Generator().manual_seed(rank)
    images = torch.randint(256, (IMAGES, 1, SIDE, SIDE), generator=draw, dtype=torch.uint8)
    return images, torch.randint(10, (IMAGES,), generator=draw), draw


def _of_picture(image: Any) -> Any:
    """Shape (1, SIDE, SIDE): the image through Pillow, divided by 255, its mean and deviation taken out in place."""
    import numpy as np
    import torch
    from PIL import Image

    pixels = torch.from_numpy(np.array(Image.fromarray(image.numpy()), np.uint8))
    values = pixels.view(SIDE, SIDE, 1).permute(2, 0, 1).contiguous().float().div(255).clone()
    mean, deviation = (torch.as_tensor([each], dtype=values.dtype) for each in (MEAN, DEVIATION))
    if (deviation == 0).any():
        raise ValueError("no deviation")
    return values.sub_(mean.view(-1, 1, 1)).div_(deviation.view(-1, 1, 1))


def _normal(images: Any) -> Any:
    return (images.float() / 255 - MEAN) / DEVIATION


def _used_s() -> dict[int, float]:
    """Processor time so far of each process."""
    found = {pid: cpu_seconds(pid) for pid in (os.getpid(), *descendants(os.getpid()))}
    return {pid: total for pid, total in found.items() if total}  # without those that ended while we looked
