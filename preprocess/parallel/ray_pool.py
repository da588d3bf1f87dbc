"""Run tasks on a Ray cluster instead of local processes: each task goes to a free actor.

Jobs write to the scratch folder beside the dataset, so every machine must have that folder and the corpus under the
same path. The death of an actor ends the run, as that of a worker process does; --resume continues the run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from glovewire.common.errors import ProcessDied, from_wire
from glovewire.common.runtime.ray_cluster import share_of_cpus

from .pool import NO_TASK, Job, run_task

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
        return run_task(lambda: self._job().do(task))

    def finish(self) -> tuple[str, Any]:
        """Complete the phase and forget its Job, which takes memory; return what `run_task` returns."""
        result = run_task(lambda: self._job().finish())
        del self._job
        return result


class RayActors:
    """Context manager of `count` actors for all phases of a run, since starting them takes seconds.

    `ray` is the module, already connected.
    """

    def __init__(self, ray: Any, count: int) -> None:
        self._ray, self._count = ray, count
        self._actors: list[Any] = []
        self._tick: Callable[[list[int]], None]

    def __enter__(self) -> RayActors:
        actor = self._ray.remote(num_cpus=share_of_cpus(self._ray, self._count), scheduling_strategy="SPREAD")(JobActor)
        self._actors = [actor.remote() for _ in range(self._count)]
        return self

    def __exit__(self, *_: object) -> None:
        for actor in self._actors:
            self._ray.kill(actor)

    @contextmanager
    def pool(self, make_job: Callable[[], Job], tick: Callable[[list[int]], None]) -> Iterator[RayActors]:
        """Prepare the actors for a phase, in which each has its own Job, and yield them."""
        self._tick = tick
        made = self._ray.put(self._ray.cloudpickle.dumps(make_job))  # arrays that Ray itself passes are read-only
        for _ in self._each("begin", made):
            pass
        yield self

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
        return self._each("finish")

    def _each(self, method: str, *arguments: Any) -> Iterator[Any]:
        """Call a method of every actor; yield the results as they arrive."""
        running = [getattr(actor, method).remote(*arguments) for actor in self._actors]
        while running:
            for reference, value in self._results(running):
                running.remove(reference)
                yield value

    def _results(self, running: Iterable[Any]) -> list[tuple[Any, Any]]:
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
