"""`glovewire bench dense`: updates a second of a small ConvNet, here and by Ray's actors, in turns in one run.

All compute gradients of batches that are drawn from memory, one thread a process, each worker on a core of its own;
Ray's side once more as its example does it: batches are made ready image by image, and the system chooses cores. What
one gradient takes is the floor for everybody.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from glovewire.common.errors import MissingExtra

from ..exits import signals_end_all
from .config import DenseBenchConfig
from .convnet import Pace, Watch, drawn, gradient_ms, loss_of, make
from .measurements import spread, surroundings

MODES = ("sync", "async")
WARM_UPDATES = 20
OURS = "glovewire"


def bench(config: DenseBenchConfig, tell: Callable[[str], None]) -> dict[str, Any]:
    """Measure; needs torch, and ray for the peer."""
    _require("torch")
    if config.peer:
        _require("ray")
        import ray

        ray.init(num_cpus=config.workers + 1, include_dashboard=False, log_to_driver=False, logging_level="error")
    before = surroundings()
    sides = _sides(config)
    paces: dict[str, list[Pace]] = {f"{who} {mode}": [] for mode in MODES for who in sides}
    floors: list[float] = []
    try:
        with signals_end_all():  # again: Ray has a handler of its own
            for repeat in range(config.repeats):
                floors.append(gradient_ms(config.batch))
                for mode in MODES:
                    for who, measure in sides.items():
                        paces[f"{who} {mode}"].append(pace := measure(mode, config))
                        tell(f"{repeat + 1}/{config.repeats}  {who} {mode}: {pace.updates_per_second:.0f} updates/s")
    finally:
        if config.peer:
            ray.shutdown()
    return {
        **before,
        "workers": config.workers,
        "batch": config.batch,
        "shards": config.shards,
        **summary(paces, floors, config.workers, before["cores"]),
    }


def summary(paces: dict[str, list[Pace]], floors: list[float], workers: int, cores: int) -> dict[str, Any]:
    """The figures of all repeats; `floors` are the milliseconds of one gradient, of which `sync` takes `workers`.

    `at_most` is what `cores` could do if nothing but gradients had to be computed. `ratio` compares us with each peer,
    repeat by repeat: in updates a second, and in processor time for everything but the gradient.
    """
    gradients = {mode: workers if mode == "sync" else 1 for mode in MODES}

    def besides(name: str) -> list[float]:
        mode = name.rpartition(" ")[2]
        return [each.cpu_ms - gradients[mode] * floor for each, floor in zip(paces[name], floors, strict=True)]

    def beside(name: str) -> dict[str, Any]:
        ours = f"{OURS} {name.rpartition(' ')[2]}"
        rates = zip(paces[ours], paces[name], strict=True)
        return {
            "updates_per_second": spread(a.updates_per_second / b.updates_per_second for a, b in rates),
            "cpu_besides_gradient": spread(b / a for a, b in zip(besides(ours), besides(name), strict=True)),
        }

    return {
        "gradient_cpu_ms": spread(floors),
        "at_most": {mode: round(cores * 1e3 / (gradients[mode] * min(floors))) for mode in MODES},
        "updates_per_second": {name: spread(each.updates_per_second for each in of) for name, of in paces.items()},
        "cpu_ms_per_update": {name: spread(each.cpu_ms for each in of) for name, of in paces.items()},
        "ratio": {name: beside(name) for name in paces if not name.startswith(OURS)},
    }


def table(result: dict[str, Any]) -> str:
    """The figures for people."""
    rates, cpu, floor = (result[key] for key in ("updates_per_second", "cpu_ms_per_update", "gradient_cpu_ms"))
    lines = [
        f"{name:<19} {rate['median']:6.0f} updates/s ({rate['min']:.0f} to {rate['max']:.0f}), "
        f"{cpu[name]['median']:.2f} ms of processor time each"
        for name, rate in rates.items()
    ]
    at_most = ", ".join(f"{mode} {most}" for mode, most in result["at_most"].items())
    lines.append(f"one gradient alone takes {floor['median']:.2f} ms: at most {at_most} updates/s on these cores")
    for name, ratio in result["ratio"].items():
        times, besides = (ratio[key]["median"] for key in ("updates_per_second", "cpu_besides_gradient"))
        lines.append(f"{times:.1f} times {name} in updates, {besides:.1f} times in all but the gradient")
    return "\n".join(lines)


def work(addresses: list[str], rank: int, batch: int, together: Any) -> None:
    """One of our workers, until the run is over; it begins when `together`, a barrier, has seen them all."""
    from glovewire.worker.dense.affinity import own_core
    from glovewire.worker.dense.client import Client
    from glovewire.worker.dense.pytorch import TorchTrainer

    batches = drawn(rank, batch)
    together.wait()
    with own_core(rank), Client(addresses, f"w{rank}") as ps:
        trainer = TorchTrainer(ps, make())
        for x, y in batches:
            if not trainer.step(partial(loss_of, x=x, y=y), batch):
                break


def _ours(mode: str, config: DenseBenchConfig) -> Pace:
    from glovewire.worker.dense.client import Client

    from ..launch.serving import serving

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
        try:
            with Client(place.addresses, "bench", observe=True) as eye:
                eye.attach()
                eye.pull(after=WARM_UPDATES)
                first, watch = eye.updates, Watch()
                time.sleep(config.seconds)
                eye.pull()
                pace = watch.pace(eye.updates - first)
                eye.finish()
            for process in processes:
                process.join()
        finally:
            for process in processes:
                process.kill()
    return pace


def _ray(mode: str, config: DenseBenchConfig, *, loading: bool = False) -> Pace:
    from . import ray_peer as bench_ray

    return bench_ray.pace(mode, config.workers, config.batch, config.seconds, loading=loading)


def _ray_example(mode: str, config: DenseBenchConfig) -> Pace:
    return _ray(mode, config, loading=True)


def _sides(config: DenseBenchConfig) -> dict[str, Callable[[str, DenseBenchConfig], Pace]]:
    peers = {"ray": _ray, "ray example": _ray_example} if config.peer else {}
    return {OURS: _ours, **peers}


def _require(library: str) -> None:
    try:
        __import__(library)
    except ImportError as error:
        raise MissingExtra(f"bench dense needs {library}: pip install 'glovewire[{library}]'") from error
