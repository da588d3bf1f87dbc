"""`glovewire bench dense`: updates a second of a small ConvNet, here and by Ray's actors, in turns in one run.

Both sides compute the same gradients of the same batches, which are in memory; one thread a process.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import MissingExtra
from common.measured import spread, surroundings
from common.settings import require

MODES = ("sync", "async")
WARM_UPDATES = 20
SIDE = 28


@dataclass(frozen=True)
class DenseBenchConfig:
    """Options of `glovewire bench dense`; a figure is taken over `seconds`."""

    workers: int = 2
    batch: int = 128
    seconds: float = 5.0
    repeats: int = 3
    shards: int = 1
    peer: bool = True

    def __post_init__(self) -> None:
        """Refuse what cannot be meant, all problems in one UsageError."""
        least = {"workers": 1, "batch": 1, "repeats": 1, "shards": 1, "seconds": 0.1}
        problems = [f"{name} must be at least {low}" for name, low in least.items() if not getattr(self, name) >= low]
        require(problems)


def bench(config: DenseBenchConfig, tell: Callable[[str], None]) -> dict[str, Any]:
    """Measure; needs torch, and ray for the peer."""
    _require("torch")
    if config.peer:
        _require("ray")
        import ray

        ray.init(num_cpus=config.workers + 1, include_dashboard=False, log_to_driver=False, logging_level="error")
    before = surroundings()
    rates: dict[str, list[float]] = {f"{who} {mode}": [] for mode in MODES for who in _sides(config)}
    try:
        for repeat in range(config.repeats):
            for mode in MODES:
                for who, measure in _sides(config).items():
                    rates[f"{who} {mode}"].append(measure(mode, config))
                    tell(f"{repeat + 1}/{config.repeats}  {who} {mode}: {rates[f'{who} {mode}'][-1]:.0f} updates/s")
    finally:
        if config.peer:
            ray.shutdown()
    found: dict[str, Any] = {"updates_per_second": {name: spread(each) for name, each in rates.items()}}
    if config.peer:
        found["ratio"] = {
            mode: spread(
                ours / theirs for ours, theirs in zip(rates[f"glovewire {mode}"], rates[f"ray {mode}"], strict=True)
            )
            for mode in MODES
        }
    return {**before, "workers": config.workers, "batch": config.batch, "shards": config.shards, **found}


def table(result: dict[str, Any]) -> str:
    """The figures for people."""
    lines = [
        f"{name:<16} {each['median']:8.0f} updates/s   ({each['min']:.0f} to {each['max']:.0f})"
        for name, each in result["updates_per_second"].items()
    ]
    lines += [f"{mode}: {each['median']:.1f} times Ray's" for mode, each in result.get("ratio", {}).items()]
    return "\n".join(lines)


def make() -> Any:
    """The ConvNet of the tutorials, fresh: three filters, ten outputs."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    pooled = (SIDE - 2) // 3
    nn = torch.nn
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.MaxPool2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(3 * pooled**2, 10), nn.LogSoftmax(1)
    )


def examples(rank: int, batch: int) -> tuple[Any, Any]:
    """One batch of random images and labels, another one for each worker."""
    import torch

    draw = torch.Generator().manual_seed(rank)
    return torch.randn(batch, 1, SIDE, SIDE, generator=draw), torch.randint(10, (batch,), generator=draw)


def loss_of(net: Any, x: Any, y: Any) -> Any:
    """Mean negative log likelihood."""
    import torch

    return torch.nn.functional.nll_loss(net(x), y)


def work(addresses: list[str], rank: int, batch: int, together: Any) -> None:
    """One of our workers, until the run is over; it begins when `together`, a barrier, has seen them all."""
    from worker.dense import Client
    from worker.torch_model import TorchTrainer

    x, y = examples(rank, batch)
    together.wait()
    with Client(addresses, f"w{rank}") as ps:
        trainer = TorchTrainer(ps, make())
        while trainer.step(lambda net: loss_of(net, x, y), batch):
            pass


def _ours(mode: str, config: DenseBenchConfig) -> float:
    from worker.dense import Client

    from .serving import serving

    options: dict[str, Any] = {"consistency": mode, "optimizer": "sgd", "learning_rate": 0.01}
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(Path(folder) / "run", config.shards, workers=config.workers, **options) as place,
    ):
        spawn = multiprocessing.get_context("spawn")
        together = spawn.Barrier(config.workers)
        jobs = [(place.addresses, rank, config.batch, together) for rank in range(config.workers)]
        processes = [spawn.Process(target=work, args=job, daemon=True) for job in jobs]
        for process in processes:
            process.start()
        with Client(place.addresses, "bench", observe=True) as eye:
            eye.attach()
            eye.pull(after=WARM_UPDATES)
            first, began = eye.updates, time.perf_counter()
            time.sleep(config.seconds)
            eye.pull()
            rate = (eye.updates - first) / (time.perf_counter() - began)
            eye.finish()
        for process in processes:
            process.join()
    return rate


def _ray(mode: str, config: DenseBenchConfig) -> float:
    from . import bench_ray

    return bench_ray.updates_per_second(mode, config.workers, config.batch, config.seconds)


def _sides(config: DenseBenchConfig) -> dict[str, Callable[[str, DenseBenchConfig], float]]:
    return {"glovewire": _ours, "ray": _ray} if config.peer else {"glovewire": _ours}


def _require(library: str) -> None:
    try:
        __import__(library)
    except ImportError as error:
        raise MissingExtra(f"bench dense needs {library}: pip install 'glovewire[{library}]'") from error
