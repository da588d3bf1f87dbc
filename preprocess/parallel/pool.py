"""Run tasks in worker processes, which take one task at a time and end with their parent.

Processes are forked, so a worker starts with everything that its parent has loaded; no other thread runs at that time.
The death of a worker, a fault that a worker reports, or Ctrl-C ends the pool at once and leaves no process behind.
Tasks and results travel over private pipes.
"""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

from glovewire.common.errors import CorpusError, GlovewireError, OutputError, ProcessDied, from_wire
from glovewire.common.runtime.memory import keep_freed_memory, release_code
from glovewire.common.runtime.signals import serve_parent

_TICK_S = 0.2
_JOIN_S = 5.0
NO_TASK = object()
"""Marks the end of the tasks."""


class Job(Protocol):
    """Processes tasks; created inside the worker process."""

    def do(self, task: Any) -> Any:
        """Process a task and return its result; raise GlovewireError for expected faults."""

    def finish(self) -> None:
        """Complete the work after the last task; by default there is nothing to do."""
        return


class Workers(ABC):
    """Deals tasks to idle workers, one at a time to each; a subclass sends them and receives the results."""

    def __init__(self) -> None:
        self._idle: list[Any] = []
        self._busy: dict[Any, Any] = {}
        """Busy workers, by where the result will arrive."""

    def run(self, tasks: Iterable[Any]) -> Iterator[Any]:
        """Yield the results of the tasks as they arrive; raise the first fault, or ProcessDied if a worker dies."""
        waiting = iter(tasks)
        task = next(waiting, NO_TASK)
        while task is not NO_TASK or self._busy:
            while task is not NO_TASK and self._idle:
                self._send(self._idle.pop(), "do", task)
                task = next(waiting, NO_TASK)
            yield from self._results()

    def finish(self) -> Iterator[Any]:
        """Finish every job; yield once for each that has finished."""
        return self._each("finish")

    def _each(self, method: str, *arguments: Any) -> Iterator[Any]:
        """Call a method of every worker; yield the results as they arrive."""
        while self._idle:
            self._send(self._idle.pop(), method, *arguments)
        while self._busy:
            yield from self._results()

    def _results(self) -> Iterator[Any]:
        for source, (kind, value) in self._arrived():
            if kind == "fault":
                raise from_wire(*value)
            self._idle.append(self._busy.pop(source))
            yield value

    @abstractmethod
    def _send(self, worker: Any, method: str, *arguments: Any) -> None:
        """Begin a call of an idle worker, which is busy from then on."""

    @abstractmethod
    def _arrived(self) -> Iterator[tuple[Any, tuple[str, Any]]]:
        """Wait a short time for results; yield where each has arrived, and the result as `run_task` returns it."""


@contextlib.contextmanager
def local_pool(processes: int, make_job: Callable[[], Job], tick: Callable[[list[int]], None]) -> Iterator[Workers]:
    """Yield `processes` worker processes, each with its own Job; calls `tick` with process ids while waiting."""
    release_code("libllvmlite")  # 47 MB that the budget of --memory does not include
    with contextlib.closing(_Pool(tick)) as pool:
        for _ in range(processes):
            pool.start(make_job)
        yield pool


class _Pool(Workers):
    def __init__(self, tick: Callable[[list[int]], None]) -> None:
        super().__init__()
        self._tick = tick
        self._processes: dict[Connection, BaseProcess] = {}

    def start(self, make_job: Callable[[], Job]) -> None:
        ours, theirs = multiprocessing.Pipe()
        inherited = [*self._processes, ours]
        context = multiprocessing.get_context("fork")
        process = context.Process(target=_serve, args=(theirs, inherited, make_job, os.getpid()), daemon=True)
        process.start()
        theirs.close()
        self._processes[ours] = process
        self._idle.append(ours)

    def close(self) -> None:
        """Terminate all workers; idempotent."""
        for connection, process in self._processes.items():
            connection.close()
            process.terminate()
        for process in self._processes.values():
            process.join(_JOIN_S)
            if process.is_alive():
                process.kill()
                process.join()
            process.close()
        self._processes = {}

    def _send(self, worker: Connection, method: str, *arguments: Any) -> None:
        self._busy[worker] = worker
        try:
            worker.send((method, *arguments))
        except OSError:
            raise self._death(worker) from None

    def _arrived(self) -> Iterator[tuple[Any, tuple[str, Any]]]:
        self._tick([os.getpid(), *(process.pid or 0 for process in self._processes.values())])
        for ready in wait(list(self._busy), _TICK_S):
            worker = self._busy[ready]
            try:
                result = worker.recv()
            except (EOFError, OSError):
                raise self._death(worker) from None
            yield worker, result

    def _death(self, worker: Connection) -> ProcessDied:
        process = self._processes[worker]
        process.join(_JOIN_S)
        code = process.exitcode
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with status {code}"
        return ProcessDied(f"a worker process ({process.pid}) {how}")


def _serve(connection: Connection, inherited: list[Connection], make_job: Callable[[], Job], parent: int) -> None:
    """Run tasks until the parent closes the pipe or dies."""
    serve_parent(parent)
    keep_freed_memory(64 << 20)
    for other in inherited:
        other.close()
    job = cache(make_job)  # made by the first task, which reports a failure to make it
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            connection.send(run_task(job, *connection.recv()))


def run_task(job: Callable[[], Job], method: str, *arguments: Any) -> tuple[str, Any]:
    """Call a method of the job; return ("done", result) or ("fault", (code, text)), which can be sent to the parent."""
    try:
        return "done", getattr(job(), method)(*arguments)
    except GlovewireError as error:
        return "fault", (error.code, str(error))
    except MemoryError:
        return "fault", (CorpusError.code, "out of memory: give a smaller --memory, or fewer --processes")
    except OSError as error:
        return "fault", (OutputError.code, disk_error(error))


def disk_error(error: OSError) -> str:
    """Return the message for an error that occurred while counts were written."""
    if error.errno == errno.ENOSPC:
        return "no space left on the disk for the counts"
    return f"the counts cannot be written: {error.strerror or error}"
