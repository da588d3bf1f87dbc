"""Run tasks on a Ray cluster instead of local processes: each task goes to a free actor.

Jobs write to the scratch folder beside the dataset, so every machine must have that folder and the corpus under the
same path. The death of an actor ends the run, as that of a worker process does; --resume continues the run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

from glovewire.common.errors import ProcessDied, from_wire
from glovewire.common.runtime.ray_cluster import share_of_cpus

from .pool import NO_TASK, Job, run_task

_TICK_S = 0.2


class JobActor:
    """Runs a Job in a Ray actor; faults are returned as values, see `run_task`."""

    def __init__(self, make_job: bytes) -> None:
        from ray import cloudpickle

        self._job: Callable[[], Job] = cache(cloudpickle.loads(make_job))  # see `pool._serve`

    def do(self, task: Any) -> tuple[str, Any]:
        """Process a task; return what `run_task` returns."""
        return run_task(lambda: self._job().do(task))

    def finish(self) -> tuple[str, Any]:
        """Complete the work; return what `run_task` returns."""
        return run_task(lambda: self._job().finish())


class RayPool:
    """Context manager of `processes` actors, each with its own Job; `ray` is the module, already connected."""

    def __init__(
        self, ray: Any, processes: int, make_job: Callable[[], Job], tick: Callable[[list[int]], None]
    ) -> None:
        self._ray, self._tick = ray, tick
        self._make_job, self._processes = make_job, processes
        self._actors: list[Any] = []

    def __enter__(self) -> RayPool:
        cores = share_of_cpus(self._ray, self._processes)
        actor = self._ray.remote(num_cpus=cores, scheduling_strategy="SPREAD")(JobActor)
        made = self._ray.cloudpickle.dumps(self._make_job)  # arrays that Ray itself passes are read-only
        self._actors = [actor.remote(made) for _ in range(self._processes)]
        return self

    def __exit__(self, *_: object) -> None:
        for actor in self._actors:
            self._ray.kill(actor)
        self._actors = []

    def run(self, tasks: Iterable[Any]) -> Iterator[Any]:
        """Yield the results of the tasks as they arrive; raise the first fault, or ProcessDied if an actor dies."""
        waiting, free, running = iter(tasks), list(self._actors), dict[Any, Any]()
        task = next(waiting, NO_TASK)
        while task is not NO_TASK or running:
            while task is not NO_TASK and free:
                actor = free.pop()
                running[actor.do.remote(task)] = actor
                task = next(waiting, NO_TASK)
            for reference, value in self._results(running):
                free.append(running.pop(reference))
                yield value

    def finish(self) -> Iterator[Any]:
        """Finish every job; yield once for each that has finished."""
        running = {actor.finish.remote(): actor for actor in self._actors}
        while running:
            for reference, value in self._results(running):
                del running[reference]
                yield value

    def _results(self, running: dict[Any, Any]) -> list[tuple[Any, Any]]:
        self._tick([os.getpid()])
        ready, _ = self._ray.wait(list(running), num_returns=1, timeout=_TICK_S)
        return [(reference, self._value(reference)) for reference in ready]

    def _value(self, reference: Any) -> Any:
        try:
            kind, value = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            raise ProcessDied(f"a Ray actor died: {str(error).splitlines()[0]}") from error
        if kind == "fault":
            raise from_wire(*value)
        return value
