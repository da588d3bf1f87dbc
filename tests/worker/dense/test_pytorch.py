"""Any PyTorch module as a worker: tied weights, frozen layers, buffers; workers in step beside torch.optim."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dense_shards import addresses, shards_of

from glovewire.common.model.options import OPTIMIZERS
from glovewire.worker.dense.client import Client

torch = pytest.importorskip("torch", reason="needs the extra torch")

from glovewire.worker.dense.pytorch import TorchModel, TorchTrainer  # noqa: E402 # only where there is PyTorch

RATE, STEPS, BATCH = 0.05, 6, 8


class Odd(torch.nn.Module):  # type: ignore[misc] # PyTorch is skipped by the type checker
    """Everything that modules may have: a tied weight, a frozen layer, integer and float buffers, a scalar."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(6, 6)
        self.frozen = torch.nn.Linear(6, 6).requires_grad_(False)
        self.norm = torch.nn.BatchNorm1d(6)
        self.tied = torch.nn.Linear(6, 6, bias=False)
        self.tied.weight = self.first.weight
        self.scale = torch.nn.Parameter(torch.tensor(1.5))
        self.register_buffer("mask", torch.full((3,), float("-inf")))

    def forward(self, x: Any) -> Any:
        return self.tied(self.norm(self.frozen(torch.tanh(self.first(x))))) * self.scale


def mean_square(x: Any, y: Any) -> Any:
    return lambda model: ((model(x) - y) ** 2).mean()


def test_an_odd_module_is_shared_whole(tmp_path: Path) -> None:
    torch.manual_seed(0)
    one, two = Odd(), Odd()
    with shards_of(tmp_path / "run", 2) as daemons, Client(addresses(daemons), "a") as ps:
        trainer = TorchTrainer(ps, one)
        names = {tensor.name: tensor.trained for tensor in ps.spec.tensors}
        assert {name for name, trained in names.items() if trained} == {
            "first.weight", "first.bias", "norm.weight", "norm.bias", "scale",
        }  # fmt: skip
        x, y = torch.randn(BATCH, 6), torch.randn(BATCH, 6)
        frozen, before = one.frozen.weight.clone(), one.scale.item()
        for _ in range(3):
            assert trainer.step(mean_square(x, y), BATCH)
        assert torch.equal(one.frozen.weight, frozen)
        with Client(addresses(daemons), "b") as other:
            TorchTrainer(other, two)  # takes what the server has
            TorchModel(two).load(other.pull())
            TorchModel(one).load(other.pull())
        assert two.scale.item() != before
        assert two.norm.num_batches_tracked.item() == 3
        for name, value in one.state_dict().items():
            assert torch.equal(two.state_dict()[name], value), name
        ps.finish()
        assert not trainer.step(mean_square(x, y), BATCH)


def optimizer_of(name: str, parameters: Any) -> Any:
    optim = torch.optim
    if name in ("momentum", "nesterov"):
        return optim.SGD(parameters, lr=RATE, momentum=0.9, nesterov=name == "nesterov")
    kinds = {"sgd": optim.SGD, "adagrad": optim.Adagrad, "adam": optim.Adam, "adamw": optim.AdamW}
    return kinds[name](parameters, lr=RATE, weight_decay=0.01 if name == "adamw" else 0.0)


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name != "adagrad-row"])
def test_two_workers_in_step_are_one_process_on_both_batches(tmp_path: Path, name: str) -> None:
    draw = torch.Generator().manual_seed(1)
    x, y = (torch.randn(STEPS, 2, BATCH, 5, generator=draw) for _ in range(2))

    def make() -> Any:
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 5))

    alone = make()
    optimizer = optimizer_of(name, alone.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        mean_square(x[step].flatten(0, 1), y[step].flatten(0, 1))(alone).backward()
        optimizer.step()
    options = {"consistency": "sync", "optimizer": name, "learning_rate": RATE}
    decay = {"weight_decay": 0.01} if name == "adamw" else {}
    with shards_of(tmp_path / "run", 1, 2, **options, **decay) as daemons:
        modules = [make(), make()]

        def work(rank: int) -> None:
            with Client(addresses(daemons), f"w{rank}") as ps:
                trainer = TorchTrainer(ps, modules[rank])
                for step in range(STEPS):
                    trainer.step(mean_square(x[step, rank], y[step, rank]), BATCH)
                trainer.model.load(ps.pull())

        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    for ours, theirs in zip(modules[1].parameters(), alone.parameters(), strict=True):
        np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy(), rtol=2e-4, atol=2e-5)


class Bag(torch.nn.Module):  # type: ignore[misc] # PyTorch is skipped by the type checker
    """Sparse gradients, and a running mean that is a new tensor after every pass."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(9, 4, sparse=True)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, words: Any) -> Any:
        found = self.table(words)
        self.mean = 0.5 * self.mean + found.detach().mean(dim=0)
        return found


def test_a_buffer_is_what_the_module_has_now(tmp_path: Path) -> None:
    with shards_of(tmp_path / "run") as daemons, Client(addresses(daemons), "a") as ps:
        one, two = Bag(), Bag()
        trainer = TorchTrainer(ps, one)
        for _ in range(2):
            assert trainer.step(lambda bag: bag(torch.tensor([1, 1, 3])).square().mean(), 3)
        assert one.mean.abs().sum() > 0
        np.testing.assert_array_equal(ps.pull_fixed()["mean"], one.mean.numpy())
        other = TorchModel(two)
        two(torch.tensor([0]))
        other.load({"mean": np.full(4, 7.0, np.float32)})
        assert (two.mean == 7).all()


def test_a_sparse_gradient_is_that_of_the_whole_tensor() -> None:
    words = torch.tensor([1, 1, 3])
    bag = Bag()
    bag(words).sum().backward()
    assert bag.table.weight.grad.is_sparse
    expected = np.zeros((9, 4), np.float32)
    expected[1], expected[3] = 2, 1
    np.testing.assert_array_equal(TorchModel(bag).gradients()["table.weight"], expected)
