"""Threads of a simulated process: what it uses of `threading` and `concurrent.futures`, in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from world import Action, World


class Event:
    """Stands for `threading.Event`."""

    def __init__(self, world: World) -> None:
        self._world, self._is_set = world, False
        self._wake: Action | None = None

    def set(self) -> None:
        """End the wait of a thread."""
        self._is_set = True
        if self._wake is not None:
            self._wake()

    def clear(self) -> None:
        """Let the next one wait."""
        self._is_set = False

    def wait(self, seconds: float) -> None:
        """Wait until it is set, but at most so many seconds."""
        if not self._is_set and seconds > 0.0:
            self._wake = self._world.waker()
            self._world.wait(seconds)
            self._wake = None


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
        """Wait until all is done."""
        if self._newest is not None:
            self._newest.exception()

    def _run(self) -> None:
        while self._tasks:
            future, task = self._tasks[0]
            future.run(task)
            self._tasks.pop(0)
