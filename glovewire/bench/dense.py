"""Measure updates of a small ConvNet for `glovewire bench dense`, synchronous and asynchronous.

Each worker computes gradients of batches drawn from memory, in one thread on a core of its own. The processor time of
one gradient is also measured, as a lower bound of the processor time of an update.
"""

import multiprocessing
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from glovewire.common.errors import require_extra

from ..exits import signals_end_all
from .config import DenseBenchConfig
from .convnet import Stopwatch, Throughput, gradient_ms, loss_of, make_network, random_batches
from .measurements import spread, surroundings

MODES = ("sync", "async")
WARM_UP_UPDATES = 20


def bench(config: DenseBenchConfig, report: Callable[[str], None]) -> dict[str, Any]:
    """Measure both modes in turns; `report` gets a line per figure. Raises MissingExtra without PyTorch."""
    require_extra("torch", "torch", "bench dense")
    before = surroundings()
    throughputs: dict[str, list[Throughput]] = {mode: [] for mode in MODES}
    floors: list[float] = []
    with signals_end_all():
        for repeat in range(config.repeats):
            floors.append(gradient_ms(config.batch))
            for mode in MODES:
                throughputs[mode].append(found := train_convnet(mode, config))
                report(f"repeat {repeat + 1} of {config.repeats}: {mode} {found.updates_per_second:.0f} updates/s")
    return {
        **before,
        "workers": config.workers,
        "batch": config.batch,
        "shards": config.shards,
        **summary(throughputs, floors, config.workers, before["cores"]),
    }


def gradients_per_update(name: str, workers: int) -> int:
    """Return the number of gradients in an update; `name` is `sync` or `async`, or ends with one of these words."""
    return workers if name.split()[-1] == "sync" else 1


def summary(
    throughputs: Mapping[str, Sequence[Throughput]], floors: Sequence[float], workers: int, cores: int
) -> dict[str, Any]:
    """Return figures over all repeats; `floors` has the milliseconds of one gradient in each repeat.

    `at_most` is the number of updates per second on `cores` cores if computing gradients were the only work.
    """
    return {
        "gradient_cpu_ms": spread(floors),
        "at_most": {mode: round(cores * 1e3 / (gradients_per_update(mode, workers) * min(floors))) for mode in MODES},
        "updates_per_second": {name: spread(x.updates_per_second for x in each) for name, each in throughputs.items()},
        "cpu_ms_per_update": {name: spread(x.cpu_ms for x in each) for name, each in throughputs.items()},
    }


def table(result: dict[str, Any]) -> str:
    """Return the result of `bench` as text."""
    rates, cpu, floor = (result[key] for key in ("updates_per_second", "cpu_ms_per_update", "gradient_cpu_ms"))
    width = max(map(len, rates))
    lines = [
        f"{name:<{width}} {rate['median']:6.0f} updates/s ({rate['min']:.0f} to {rate['max']:.0f}), "
        f"{cpu[name]['median']:.2f} ms of processor time each"
        for name, rate in rates.items()
    ]
    at_most = ", ".join(f"{mode} {most}" for mode, most in result["at_most"].items())
    lines.append(f"one gradient alone takes {floor['median']:.2f} ms: at most {at_most} updates/s on these cores")
    return "\n".join(lines)


def train_convnet(mode: str, config: DenseBenchConfig) -> Throughput:
    """Train in `mode` with worker processes, and return the throughput over `config.seconds` after a warm-up."""
    from glovewire.worker.dense.client import Client

    from ..launch.serving import serving

    options: dict[str, Any] = {"consistency": mode, "optimizer": "sgd", "learning_rate": 0.01}
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(Path(folder) / "run", config.shards, workers=config.workers, **options) as place,
    ):
        spawn = multiprocessing.get_context("spawn")
        start = spawn.Barrier(config.workers)
        jobs = [(place.addresses, rank, config.batch, start) for rank in range(config.workers)]
        processes = [spawn.Process(target=work, args=job, daemon=True) for job in jobs]
        for process in processes:
            process.start()
        try:
            with Client(place.addresses, "bench", observe=True) as observer:
                observer.attach()
                observer.pull(after=WARM_UP_UPDATES)
                first, stopwatch = observer.updates, Stopwatch()
                time.sleep(config.seconds)
                observer.pull()
                throughput = stopwatch.throughput(observer.updates - first)
                observer.finish()
            for process in processes:
                process.join()
        finally:
            for process in processes:
                process.kill()
    return throughput


def work(addresses: list[str], rank: int, batch: int, start: Any) -> None:
    """Train as one worker until the run is over; `start` is a barrier for all workers."""
    from glovewire.worker.dense.affinity import own_core
    from glovewire.worker.dense.client import Client
    from glovewire.worker.dense.pytorch import TorchTrainer

    batches = random_batches(rank, batch)
    start.wait()
    with own_core(rank), Client(addresses, f"w{rank}") as ps:
        trainer = TorchTrainer(ps, make_network())
        for x, y in batches:
            if not trainer.step(partial(loss_of, x=x, y=y), batch):
                break
