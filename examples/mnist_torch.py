"""Train on handwritten digits with PyTorch and a parameter server: the tutorials' ConvNet (Ray, Lithops) or LeNet.

    python examples/mnist_torch.py                              # scikit-learn's digits, two workers, synchronous
    python examples/mnist_torch.py --data path/to/mnist --model lenet --mode async
    python examples/mnist_torch.py --workers 25 --pool lithops

Each worker is one call of `work`; five of its lines concern the server.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import click
import images
import numpy as np
import pools
import torch
import training
from torch import nn
from torch.nn import functional

from glovewire.worker.dense import Client, own_core
from glovewire.worker.dense.pytorch import TorchModel, TorchTrainer


class ConvNet(nn.Module):
    """The tutorials' network: three filters, one layer of 10 outputs. Pools images of 28 x 28 only."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.pool = 3 if side == 28 else 1
        self.conv1 = nn.Conv2d(1, 3, kernel_size=3)
        self.fc = nn.Linear(3 * ((side - 2) // self.pool) ** 2, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return log probabilities of the ten digits, shape (batch, 10)."""
        x = functional.relu(functional.max_pool2d(self.conv1(x), self.pool))
        return functional.log_softmax(self.fc(x.flatten(1)), dim=1)


class LeNet(nn.Module):
    """Two convolutional and three dense layers (LeCun et al. 1998), with ReLU and max pooling."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, kernel_size=5, padding=2)
        self.conv2 = nn.Conv2d(6, 16, kernel_size=5, padding=2)
        self.fc = nn.Sequential(
            nn.Linear(16 * (side // 4) ** 2, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return log probabilities of the ten digits, shape (batch, 10)."""
        x = functional.max_pool2d(functional.relu(self.conv1(x)), 2)
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2)
        return functional.log_softmax(self.fc(x.flatten(1)), dim=1)


MODELS = {"convnet": ConvNet, "lenet": LeNet}


def make(model: str, side: int) -> nn.Module:
    """Build a network for images of `side` x `side`, with the same initial values at every call."""
    torch.manual_seed(0)
    return MODELS[model](side)


def work(addresses: list[str], rank: int, model: str, data: str, batch: int) -> int:
    """Train as one worker until the run is over; return the number of batches."""
    torch.set_num_threads(1)
    found = images.load(data)
    pictures, labels = torch.from_numpy(found.train)[:, None], torch.from_numpy(found.train_labels)
    with own_core(rank), Client(addresses, f"w{rank}") as ps:
        trainer = TorchTrainer(ps, make(model, found.train.shape[-1]))
        for seen, at in enumerate(images.batches(len(labels), batch, seed=rank)):
            x, y = pictures[at], labels[at]
            if not trainer.step(lambda net, x=x, y=y: functional.nll_loss(net(x), y), examples=batch):
                return seen
    return 0


def accuracy(net: nn.Module, found: images.Images) -> float:
    """Return the accuracy on the test images."""
    with torch.no_grad():
        guesses = net.eval()(torch.from_numpy(found.test)[:, None]).argmax(dim=1)
    return float(np.mean(guesses.numpy() == found.test_labels))


@click.command()
@click.option("--data", default=images.DIGITS, help="digits, hub (MNIST by datasets), or a folder with the idx files.")
@click.option("--model", type=click.Choice(sorted(MODELS)), default="convnet")
@click.option("--mode", default="sync", help="sync, async, ssp:S or softsync:N.")
@click.option("--workers", default=2)
@click.option("--pool", type=click.Choice(pools.POOLS), default="processes")
@click.option("--shards", default=1)
@click.option("--steps", default=400, help="Updates of the model.")
@click.option("--batch", default=128, help="Examples per gradient of one worker.")
@click.option("--lr", default=0.01)
@click.option("--every", default=100, help="Score the model every N updates.")
@click.option("--out", default=None, help="Run folder; a temporary one unless given.")
def main(
    data: str,
    model: str,
    mode: str,
    workers: int,
    pool: str,
    shards: int,
    steps: int,
    batch: int,
    lr: float,
    every: int,
    out: str | None,
) -> None:
    """Train a network on handwritten digits with a parameter server and a pool of workers."""
    torch.set_num_threads(1)
    found = images.load(data)
    images.require_batch(len(found.train_labels), batch)
    net = make(model, found.train.shape[-1])

    def score(tensors: training.Tensors) -> float:
        TorchModel(net).load(tensors)
        return accuracy(net, found)

    schedule = {"learning_rate": lr, "rate_shape": "cosine", "warmup": 0.05}
    with tempfile.TemporaryDirectory() as scratch:
        training.train(
            Path(out or f"{scratch}/run"), work, (model, data, batch), score, pool=pool, workers=workers,
            shards=shards, every=every, steps=steps, consistency=mode, **schedule,
        )  # fmt: skip


if __name__ == "__main__":
    import mnist_torch  # import by name, so that pools can pickle `work`

    training.run(mnist_torch.main)
