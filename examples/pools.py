"""Run one function in many processes with any pool; workers of a parameter server need nothing else."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from glovewire.common.errors import require_extra

POOLS = ("processes", "futures", "lithops", "ray")

Results = Callable[[], list[Any]]


@contextmanager
def started(pool: str, work: Callable[..., Any], jobs: Sequence[tuple[Any, ...]]) -> Iterator[Results]:
    """Start `work(*job)` for all jobs at once; yield a function that waits for the results and returns them."""
    starters = {"processes": _processes, "futures": _futures, "lithops": _lithops, "ray": _ray}
    with starters[pool](work, jobs) as results:
        yield results


@contextmanager
def _processes(work: Callable[..., Any], jobs: Sequence[tuple[Any, ...]]) -> Iterator[Results]:
    with multiprocessing.get_context("spawn").Pool(len(jobs)) as pool:
        yield pool.starmap_async(work, jobs, chunksize=1).get


@contextmanager
def _futures(work: Callable[..., Any], jobs: Sequence[tuple[Any, ...]]) -> Iterator[Results]:
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(len(jobs), mp_context=context) as pool:
        futures = [pool.submit(work, *job) for job in jobs]
        yield lambda: [future.result() for future in futures]


@contextmanager
def _lithops(work: Callable[..., Any], jobs: Sequence[tuple[Any, ...]]) -> Iterator[Results]:
    """Use Lithops' localhost backend, which needs no account; a Lithops configuration file is not read."""
    require_extra("lithops", "lithops", "--pool lithops")
    from lithops import multiprocessing as lithops
    from lithops.multiprocessing import config

    here = {"lithops": {"backend": "localhost", "storage": "localhost"}, "localhost": {"worker_processes": len(jobs)}}
    config.set_parameter(config.LITHOPS_CONFIG, {"config": here, "log_level": "ERROR"})
    with lithops.Pool(len(jobs)) as pool:
        yield pool.starmap_async(work, jobs).get


@contextmanager
def _ray(work: Callable[..., Any], jobs: Sequence[tuple[Any, ...]]) -> Iterator[Results]:
    require_extra("ray", "ray", "--pool ray")
    import ray

    ray.init(num_cpus=len(jobs), include_dashboard=False, log_to_driver=False)
    try:
        tasks = [ray.remote(work).remote(*job) for job in jobs]
        yield lambda: list(ray.get(tasks))
    finally:
        ray.shutdown()
