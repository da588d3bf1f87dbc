"""The same work as `pool`'s, spread over a Ray cluster: tasks to actors, whichever is free; results as they come.

What jobs write lies in the scratch folder beside the dataset, so every machine must find that, and the corpus, under
the same path. An actor that dies ends the run, as a worker process does; --resume goes on.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any

from glovewire.common.errors import ProcessDied, from_wire
from glovewire.common.runtime import ray_cluster as cluster

from .pool import Job, outcome

_TICK_S = 0.2


class Hand:
    """Has a Job and does its tasks; lives in a Ray actor. Faults come back as values, in their code and words."""

    def __init__(self, make_job: bytes) -> None:
        from ray import cloudpickle

        self._job: Job = cloudpickle.loads(make_job)()

    def do(self, task: Any) -> tuple[str, Any]:
        """One task to its outcome."""
        return outcome(lambda: self._job.do(task))

    def finish(self) -> tuple[str, Any]:
        """What is left to do at the end."""
        return outcome(self._job.finish)


class RayPool:
    """`processes` actors, each with its own Job; a context manager. `ray` is the connected module."""

    def __init__(
        self, ray: Any, processes: int, make_job: Callable[[], Job], tick: Callable[[list[int]], None]
    ) -> None:
        self._ray, self._tick = ray, tick
        self._make_job, self._processes = make_job, processes
        self._hands: list[Any] = []

    def __enter__(self) -> RayPool:
        cores = cluster.share_of_cpus(self._ray, self._processes)
        actor = self._ray.remote(num_cpus=cores, scheduling_strategy="SPREAD")(Hand)
        made = self._ray.cloudpickle.dumps(self._make_job)  # arrays that Ray itself hands over cannot be written to
        self._hands = [actor.remote(made) for _ in range(self._processes)]
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        for hand in self._hands:
            self._ray.kill(hand)
        self._hands = []

    def run(self, tasks: Iterable[Any]) -> Iterator[Any]:
        """Results of the tasks, as they come; raises the first fault, or ProcessDied."""
        waiting, free, asked = iter(tasks), list(self._hands), dict[Any, Any]()
        more = True
        while more or asked:
            while more and free:
                for task in waiting:
                    hand = free.pop()
                    asked[hand.do.remote(task)] = hand
                    break
                else:
                    more = False
            for reference, value in self._answered(asked):
                free.append(asked.pop(reference))
                yield value

    def finish(self) -> Iterator[Any]:
        """Results of every job's `finish`."""
        asked = {hand.finish.remote(): hand for hand in self._hands}
        while asked:
            for reference, value in self._answered(asked):
                del asked[reference]
                yield value

    def _answered(self, asked: dict[Any, Any]) -> list[tuple[Any, Any]]:
        self._tick([os.getpid()])
        if not asked:
            return []
        ready, _ = self._ray.wait(list(asked), num_returns=1, timeout=_TICK_S)
        return [(reference, self._value(reference)) for reference in ready]

    def _value(self, reference: Any) -> Any:
        try:
            kind, value = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            raise ProcessDied(f"an actor of Ray died: {str(error).splitlines()[0]}") from error
        if kind == "fault":
            raise from_wire(*value)
        return value
