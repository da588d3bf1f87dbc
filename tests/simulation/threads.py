"""Threads of a simulated process in virtual time: the parts of `threading` and `concurrent.futures` that it uses."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

from world import Action, Process, World


class Event:
    """Stands for `threading.Event`."""

    def __init__(self, world: World) -> None:
        self._world, self._is_set = world, False
        self._wakers: list[Action] = []

    def is_set(self) -> bool:
        """Return whether it is set."""
        return self._is_set

    def set(self) -> None:
        """Set the event, which ends the waits of all threads."""
        self._is_set = True
        wakers, self._wakers = self._wakers, []
        for wake in wakers:
            wake()

    def clear(self) -> None:
        """Clear the event, so that the next thread waits."""
        self._is_set = False

    def wait(self, seconds: float) -> bool:
        """Wait for at most `seconds` until the event is set; return whether it is."""
        if not self._is_set and seconds > 0.0:
            waker = self._world.waker()
            self._wakers.append(waker)
            self._world.wait(seconds)
            if waker in self._wakers:
                self._wakers.remove(waker)
        return self._is_set


class Lock:
    """Stands for `threading.Lock`."""

    def __init__(self, world: World) -> None:
        self._free, self._is_held = Event(world), False

    def __enter__(self) -> None:
        while self._is_held:
            self._free.clear()
            self._free.wait(3600.0)
        self._is_held = True

    def __exit__(self, *_: object) -> None:
        self._is_held = False
        self._free.set()


class Thread:
    """Stands for `threading.Thread`."""

    def __init__(self, world: World, target: Callable[[], object], name: str, *, daemon: bool = False) -> None:
        self._world, self._target, self.name, self._daemon = world, target, name, daemon
        self._ended = Event(world)
        self._process: Process | None = None

    def start(self) -> None:
        """Begin to run the target."""
        self._process = self._world.start_thread(self._run, daemon=self._daemon)

    def join(self, seconds: float = math.inf) -> None:
        """Wait for at most `seconds` until the target has ended."""
        until = self._world.time + seconds
        while self.is_alive() and (left := until - self._world.time) > 0.0:
            self._ended.wait(min(left, 3600.0))

    def is_alive(self) -> bool:
        """Return whether the target is running."""
        assert self._process is not None
        return self._process.alive and not self._ended.is_set()

    def _run(self) -> None:
        try:
            self._target()
        finally:
            self._ended.set()


def threading(world: World) -> SimpleNamespace:
    """Return the stand-in for the module `threading`."""
    return SimpleNamespace(Event=partial(Event, world), Lock=partial(Lock, world), Thread=partial(Thread, world))


class Future:
    """Stands for `concurrent.futures.Future`: what a task in another thread returned or raised."""

    def __init__(self, world: World) -> None:
        self._done = Event(world)
        self._is_done = False
        self._result: Any = None
        self._error: Exception | None = None

    def run(self, task: Callable[[], Any]) -> None:
        """Run the task, in its thread."""
        try:
            self._result = task()
        except Exception as error:  # noqa: BLE001
            self._error = error
        self._is_done = True
        self._done.set()

    def done(self) -> bool:
        """Return whether the task has ended."""
        return self._is_done

    def exception(self) -> Exception | None:
        """Wait for the task; return its error, if there was one."""
        while not self._is_done:
            self._done.wait(3600.0)
        return self._error

    def result(self) -> Any:
        """Wait for the task, and return its result or raise its error."""
        if (error := self.exception()) is not None:
            raise error
        return self._result


class Executor:
    """Stands for `ThreadPoolExecutor` with one thread."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._tasks: list[tuple[Future, Callable[[], Any]]] = []
        self._newest: Future | None = None

    def submit(self, function: Callable[..., Any], *args: Any) -> Future:
        """Run a function in the thread, after those that were submitted before."""
        self._newest = Future(self._world)
        self._tasks.append((self._newest, lambda: function(*args)))
        if len(self._tasks) == 1:
            self._world.start_thread(self._run)
        return self._newest

    def shutdown(self) -> None:
        """Wait for all tasks."""
        if self._newest is not None:
            self._newest.exception()

    def _run(self) -> None:
        while self._tasks:
            future, task = self._tasks[0]
            future.run(task)
            self._tasks.pop(0)
