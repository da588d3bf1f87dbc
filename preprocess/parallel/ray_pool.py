"""Run tasks on a Ray cluster instead of local processes: each task goes to a free actor.

Jobs write to the scratch folder beside the dataset, so every machine must have that folder and the corpus under the
same path. The death of an actor ends the run, as that of a worker process does; --resume continues the run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from glovewire.common.errors import ProcessDied
from glovewire.common.runtime.ray_cluster import connected, share_of_cpus

from .pool import Job, Workers, run_task

_TICK_S = 0.2


class JobActor:
    """Runs a Job in a Ray actor; faults are returned as values, see `run_task`."""

    def begin(self, make_job: bytes) -> tuple[str, Any]:
        """Prepare for a phase, whose Job is made by the first task; see `pool._serve`."""
        from ray import cloudpickle

        self._job: Callable[[], Job] = cache(cloudpickle.loads(make_job))
        return "done", None

    def do(self, task: Any) -> tuple[str, Any]:
        """Process a task; return what `run_task` returns."""
        return run_task(self._job, "do", task)

    def finish(self) -> tuple[str, Any]:
        """Complete the phase and forget its Job, which takes memory; return what `run_task` returns."""
        result = run_task(self._job, "finish")
        del self._job
        return result


@contextmanager
def ray_actors(address: str | None, count: int) -> Iterator[RayActors]:
    """Connect to Ray and yield `count` actors for all phases of a run, since starting them takes seconds."""
    with connected(address) as ray:
        actor = ray.remote(num_cpus=share_of_cpus(ray, count), scheduling_strategy="SPREAD")(JobActor)
        actors = [actor.remote() for _ in range(count)]
        try:
            yield RayActors(ray, actors)
        finally:
            for each in actors:
                ray.kill(each)


class RayActors(Workers):
    """Actors of `ray`, the module, already connected."""

    def __init__(self, ray: Any, actors: list[Any]) -> None:
        super().__init__()
        self._ray, self._idle = ray, list(actors)

    @contextmanager
    def pool(self, make_job: Callable[[], Job], tick: Callable[[list[int]], None]) -> Iterator[Workers]:
        """Prepare the actors for a phase, in which each has its own Job, and yield them."""
        self._tick = tick
        made = self._ray.put(self._ray.cloudpickle.dumps(make_job))  # arrays that Ray itself passes are read-only
        for _ in self._each("begin", made):
            pass
        yield self

    def _send(self, worker: Any, method: str, *arguments: Any) -> None:
        self._busy[getattr(worker, method).remote(*arguments)] = worker

    def _arrived(self) -> Iterator[tuple[Any, tuple[str, Any]]]:
        self._tick([os.getpid()])
        ready, _ = self._ray.wait(list(self._busy), num_returns=1, timeout=_TICK_S)
        for reference in ready:
            try:
                result = self._ray.get(reference)
            except self._ray.exceptions.RayError as error:
                raise ProcessDied(f"a Ray actor died: {str(error).splitlines()[0]}") from error
            yield reference, result
