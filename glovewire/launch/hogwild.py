"""Run `glovewire train --store local|shared`: processes on this machine train one shared array, without a server.

The training code is that of `glovewire worker`; this module allocates the array, starts the processes, adds up their
reports and writes the same run folder. The death of a process ends the run.
"""

import multiprocessing
import os
import signal
import sys
import time
from contextlib import closing
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import numpy as np

from glovewire.common.array_types import Rows
from glovewire.common.endings import Ending
from glovewire.common.errors import GlovewireError, ProcessDied, SystemLimit, from_wire
from glovewire.common.model.options import TrainingOptions
from glovewire.common.model.row_layout import RowLayout
from glovewire.common.protocol.messages import Report, RunSample
from glovewire.common.protocol.schema import MAX_NAME
from glovewire.common.runtime.signals import PARENT_VARIABLE, die_with_parent, parent_token
from glovewire.common.storage import run_folder as runs
from glovewire.common.storage.artifacts import attempt_all
from glovewire.common.storage.cache import shown_name
from glovewire.common.storage.dataset import Dataset
from glovewire.common.text import printable
from glovewire.monitor.history.history import RunHistory
from glovewire.monitor.sinks.plot import plot
from glovewire.monitor.terminal.view import open_view
from glovewire.server.checkpoints.initial_state import draw_state
from glovewire.server.leases.losses import Losses
from glovewire.server.telemetry.metrics_file import MetricsFile
from glovewire.server.telemetry.status import MEANS

from .config import LocalConfig

POLL_S = 0.1
SHARED = Path("/dev/shm")


def train(config: LocalConfig, dataset: Dataset) -> dict[str, Any]:
    """Train to the end with `config.workers` processes and return the facts of the run."""
    options, layout = config.options, RowLayout.of(config.options)
    memory = _shared_memory(dataset.layout.rows * layout.width * 4)
    try:
        rows: Rows = np.ndarray((dataset.layout.rows, layout.width), np.float32, buffer=memory.buf)
        rows[:] = draw_state(options, dataset, 0, len(rows), config.init).rows
        facts, history = _run(config, dataset, memory.name)
        vectors = np.empty((len(rows), options.dim), np.float32)
        vectors[dataset.permutation] = layout.vectors(rows)
        del rows
        attempt_all(
            partial(runs.write_trained, config.out, dataset, options, vectors, facts),
            partial(plot, history, config.out / runs.PLOT),
        )
        return facts
    finally:
        memory.close()
        memory.unlink()


def _shared_memory(size: int) -> SharedMemory:
    """Return `size` bytes of reserved shared memory, or raise SystemLimit.

    Without the reservation, Linux would end the process with SIGBUS at the first page that does not fit in /dev/shm.
    """
    memory = SharedMemory(create=True, size=size)
    if not SHARED.is_dir():  # not Linux
        return memory
    try:
        with (SHARED / memory.name).open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, size)
    except OSError as error:
        memory.close()
        memory.unlink()  # before the free space is measured
        free = os.statvfs(SHARED).f_bavail * os.statvfs(SHARED).f_frsize
        raise SystemLimit(
            f"the rows take {size >> 20:,} MiB of shared memory, but {SHARED} has room for {free >> 20:,} MiB: "
            "give the container more (docker run --shm-size), or train with --store server"
        ) from error
    return memory


def _run(config: LocalConfig, dataset: Dataset, memory: str) -> tuple[dict[str, Any], RunHistory]:
    options = config.options
    context = multiprocessing.get_context("spawn")
    position, gradients = context.Value("q", -1), context.Value("q", 0)  # the last round granted; how many are applied
    losses = Losses.of(options, dataset.total_entries, time.monotonic())
    processes: dict[Connection, SpawnProcess] = {}
    try:
        os.environ[PARENT_VARIABLE] = parent_token(signal.SIGTERM)
        for rank in range(config.workers):
            ours, theirs = context.Pipe()
            arguments = (config.dataset, options, memory, position, gradients, rank, theirs)
            process = context.Process(target=_work, args=arguments, name=f"worker {rank}")
            process.start()
            theirs.close()
            processes[ours] = process
        history = _follow(config, losses, processes)
        for process in processes.values():
            process.join()
        return _facts(config, losses, dataset.checksum), history
    finally:
        os.environ.pop(PARENT_VARIABLE, None)
        for pipe, process in processes.items():
            if process.is_alive():
                process.terminate()
            process.join()
            pipe.close()


def _follow(config: LocalConfig, losses: Losses, processes: dict[Connection, SpawnProcess]) -> RunHistory:
    """Count reports, show progress and write metrics until every process has closed its pipe; return the samples."""
    history, left = RunHistory(config.out.name), {pipe: f"w{rank}" for rank, pipe in enumerate(processes)}
    name, dataset = (printable(shown_name(path), MAX_NAME) for path in (config.out, config.dataset))
    about = RunSample(0.0, name, dataset, losses.total, config.options.as_message())
    history.add(about, time.monotonic())
    shown = open_view(sys.stderr) if config.progress else None
    with closing(MetricsFile(config.out / runs.METRICS)) as metrics:
        metrics.add(about)
        while left:
            ready: list[Any] = wait(list(left), POLL_S)
            for pipe in ready:
                if not _receive_report(pipe, processes[pipe], left[pipe], losses, config.options):
                    del left[pipe]
            now = time.monotonic()
            for sample in losses.samples(now, force=not left):
                metrics.add(sample)
                history.add(sample, now)
            if shown is not None:
                shown.show(history, now)
    if shown is not None:
        shown.close(history, time.monotonic())
    return history


def _receive_report(pipe: Any, process: SpawnProcess, worker: str, losses: Losses, options: TrainingOptions) -> bool:
    """Count one report and reply whether training is over; return False if the process has ended successfully instead.

    Raises the error that the process reports, and ProcessDied if it was killed.
    """
    try:
        report: Report | tuple[str, str] = pipe.recv()
        if isinstance(report, tuple):
            raise from_wire(*report)
        sweep = min(losses.sweep, options.sweeps - 1)
        losses.add(worker, sweep, report, time.monotonic())
        pipe.send(options.schedule == "minibatch" and losses.entries >= losses.total)
    except (EOFError, OSError):
        process.join()
        if process.exitcode:
            raise ProcessDied(f"{process.name} ended with exit status {process.exitcode}") from None
        return False
    return True


def _facts(config: LocalConfig, losses: Losses, checksum: str) -> dict[str, Any]:
    return {
        "ending": Ending.COMPLETE,
        "dataset": printable(shown_name(config.dataset)),
        "dataset_checksum": checksum,
        "seconds": losses.seconds(),
        "entries": losses.entries,
        "entries_per_second": losses.entries_per_second(),
        **dict(zip(MEANS, losses.last_means(), strict=True)),
        "epochs": losses.epoch,
        "workers": config.workers,
        "servers": 0,
        "bytes_sent": 0,
        "bytes_received": 0,
        "run": str(config.out),
    }


def _add(counter: Any, number: int) -> int:
    """Add `number` to a counter that all processes share; return the sum."""
    with counter.get_lock():
        counter.value += number
        return int(counter.value)


def _work(
    folder: Path, options: TrainingOptions, memory: str, position: Any, gradients: Any, rank: int, pipe: Connection
) -> None:
    """Train on the shared array in one process; report each piece of work, or an error, to the parent over `pipe`."""
    die_with_parent()
    shared = SharedMemory(memory)
    try:
        _train_rows(shared.buf, folder, options, position, gradients, rank, pipe)
    except GlovewireError as error:
        pipe.send((error.code, str(error)))
    finally:
        shared.close()
        pipe.close()


def _train_rows(
    memory: Any,
    folder: Path,
    options: TrainingOptions,
    position: Any,
    gradients: Any,
    rank: int,
    pipe: Connection,
) -> None:
    from glovewire.common.runtime.compiled import without_blas
    from glovewire.server.table import optimizers
    from glovewire.worker.kernels import objectives
    from glovewire.worker.stores.memory_store import MemoryStore
    from glovewire.worker.training import block_trainer as trainer

    def send_report(report: Report) -> bool:
        pipe.send(report)
        return bool(pipe.recv())

    dataset = Dataset.open(folder, verify=False)
    with without_blas():
        objectives.warm_objective(options.objective)
    rows: Rows = np.ndarray((dataset.layout.rows, RowLayout.of(options).width), np.float32, buffer=memory)
    step, next_round, count = optimizers.make(options), partial(_add, position, 1), partial(_add, gradients)
    store = MemoryStore(rows, dataset.layout.partitions, options, next_round, step, count, send_report)
    trainer.train(store, dataset, options, rank)
