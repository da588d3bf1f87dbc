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
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, partial
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


@dataclass
class _WorkerProcess:
    process: BaseProcess
    connection: Connection
    busy: bool = False


class Pool:
    """Context manager of `processes` workers, each with its own Job; calls `tick` with process ids while waiting."""

    def __init__(self, processes: int, make_job: Callable[[], Job], tick: Callable[[list[int]], None]) -> None:
        self._make_job, self._tick = make_job, tick
        self._processes = processes
        self._workers: list[_WorkerProcess] = []

    def __enter__(self) -> Pool:
        release_code("libllvmlite")  # 47 MB that the budget of --memory does not include
        try:
            for _ in range(self._processes):
                self._workers.append(self._start())
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, tasks: Iterable[Any]) -> Iterator[Any]:
        """Yield the results of the tasks as they arrive; raise the first fault, or ProcessDied if a worker dies."""
        waiting = iter(tasks)
        task = next(waiting, NO_TASK)
        while task is not NO_TASK or any(worker.busy for worker in self._workers):
            for worker in self._workers:
                if task is not NO_TASK and not worker.busy:
                    self._send(worker, ("do", task))
                    task = next(waiting, NO_TASK)
            yield from self._results()

    def finish(self) -> Iterator[Any]:
        """Finish every job; yield once for each that has finished."""
        for worker in self._workers:
            self._send(worker, ("finish", None))
        while any(worker.busy for worker in self._workers):
            yield from self._results()

    def close(self) -> None:
        """Terminate all workers; idempotent."""
        for worker in self._workers:
            worker.connection.close()
            worker.process.terminate()
        for worker in self._workers:
            worker.process.join(_JOIN_S)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.process.close()
        self._workers = []

    def _start(self) -> _WorkerProcess:
        ours, theirs = multiprocessing.Pipe()
        inherited = [worker.connection for worker in self._workers] + [ours]
        context = multiprocessing.get_context("fork")
        process = context.Process(target=_serve, args=(theirs, inherited, self._make_job, os.getpid()), daemon=True)
        process.start()
        theirs.close()
        return _WorkerProcess(process, ours)

    def _send(self, worker: _WorkerProcess, message: tuple[str, Any]) -> None:
        worker.busy = True
        try:
            worker.connection.send(message)
        except OSError:
            raise self._death(worker) from None

    def _results(self) -> Iterator[Any]:
        self._tick([os.getpid(), *(worker.process.pid or 0 for worker in self._workers)])
        busy = {worker.connection: worker for worker in self._workers if worker.busy}
        for ready in wait(list(busy), _TICK_S):
            worker = busy[ready]  # type: ignore[index]  # `wait` returns the objects that it was given
            try:
                kind, value = worker.connection.recv()
            except (EOFError, OSError):
                raise self._death(worker) from None
            if kind == "fault":
                raise from_wire(*value)
            worker.busy = False
            yield value

    def _death(self, worker: _WorkerProcess) -> ProcessDied:
        worker.process.join(_JOIN_S)
        code = worker.process.exitcode
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with status {code}"
        return ProcessDied(f"a worker process ({worker.process.pid}) {how}")


def _serve(connection: Connection, inherited: list[Connection], make_job: Callable[[], Job], parent: int) -> None:
    """Run tasks until the parent closes the pipe or dies."""
    serve_parent(parent)
    keep_freed_memory(64 << 20)
    for other in inherited:
        other.close()
    job = cache(make_job)  # made by the first task, which reports a failure to make it

    def work(kind: str, task: Any) -> Any:
        return job().finish() if kind == "finish" else job().do(task)

    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            connection.send(run_task(partial(work, *connection.recv())))


def run_task(work: Callable[[], Any]) -> tuple[str, Any]:
    """Call `work`; return ("done", result) or ("fault", (code, text)), both of which can be sent to the parent."""
    try:
        return "done", work()
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
