"""Processes on one array, here as threads of this one that take their steps in turn."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import multiprocessing
import os
import shutil
import subprocess
import sys
import threading
from collections import defaultdict
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from multiprocessing.sharedctypes import synchronized
from pathlib import Path
from typing import Any

import pytest
from handmade import random_dataset

from glovewire.common.errors import ProcessDied, SystemLimit
from glovewire.common.model.options import TrainingOptions
from glovewire.common.protocol.messages import Report
from glovewire.common.runtime import compiled
from glovewire.launch import hogwild
from glovewire.launch.config import LocalConfig
from glovewire.server.leases.losses import Losses
from glovewire.server.table import optimizers

BATCH, EPOCHS = 16, 4


class Threads:
    """Stands for the context of multiprocessing; workers that train wait for each other before each step."""

    def __init__(self, workers: int) -> None:
        self.Pipe, self._together = multiprocessing.Pipe, threading.Barrier(workers)
        self.rates: dict[str, list[float]] = defaultdict(list)

    def Value(self, _: str, value: int) -> Any:
        """A counter with a lock, as that of processes has."""
        return synchronized(ctypes.c_longlong(value), threading.RLock())  # type: ignore[call-overload]

    def Process(self, target: Any, args: tuple[Any, ...], name: str) -> Any:
        """A thread with a pipe of its own, as a process has."""
        *others, pipe = args

        def work(theirs: Connection) -> None:
            try:
                target(*others, theirs)
            finally:
                self._together.abort()

        thread: Any = threading.Thread(target=work, args=(Connection(os.dup(pipe.fileno())),), name=name)
        thread.exitcode = 0
        return thread

    def step(self, *arguments: Any) -> None:
        """The optimizer's; changes nothing."""
        with contextlib.suppress(threading.BrokenBarrierError):  # the others have left
            self._together.wait()
        self.rates[threading.current_thread().name].append(arguments[3])


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_the_rate_of_minibatches_falls_with_the_gradients_of_all_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    dataset, _ = random_dataset(tmp_path / "data", size=60)
    threads = Threads(workers)
    monkeypatch.setattr(multiprocessing, "get_context", lambda _: threads)
    monkeypatch.setattr(optimizers, "make", lambda _: threads.step)
    monkeypatch.setattr(compiled, "without_blas", contextlib.nullcontext)  # is for one thread
    monkeypatch.setattr(hogwild, "plot", lambda *_: None)
    monkeypatch.setattr(hogwild, "die_with_parent", lambda: None)
    options = TrainingOptions.from_flags(
        schedule="minibatch", optimizer="sgd", batch_size=BATCH, epochs=EPOCHS, dim=4, learning_rate=1.0, final_rate=0.0
    )
    (tmp_path / "run").mkdir()
    facts = hogwild.train(
        LocalConfig(
            dataset=tmp_path / "data",
            out=tmp_path / "run",
            options=options,
            workers=workers,
            store="shared",
            progress=False,
        ),
        dataset,
    )
    assert facts["entries"] >= dataset.total_entries * EPOCHS
    a_step = BATCH / (dataset.total_entries * EPOCHS)
    assert len(threads.rates) == workers
    for rates in threads.rates.values():
        assert rates[0] >= 1 - workers * a_step
        assert rates == sorted(rates, reverse=True)
        assert rates[-1] < 3 * workers * a_step < 0.1


def test_shared_memory_that_cannot_be_reserved_is_refused_and_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    dataset, _ = random_dataset(tmp_path / "data", size=60)
    monkeypatch.setattr(os, "posix_fallocate", full)
    made: list[SharedMemory] = []
    monkeypatch.setattr(hogwild, "SharedMemory", lambda **how: (made.append(SharedMemory(**how)), made[-1])[1])
    options = TrainingOptions.from_flags(dim=4)
    config = LocalConfig(
        dataset=tmp_path / "data", out=tmp_path / "run", options=options, workers=2, store="shared", progress=False
    )
    with pytest.raises(SystemLimit, match=r"take \d+ MiB .* /dev/shm has room for [\d,]+ MiB: .*--shm-size"):
        hogwild.train(config, dataset)
    (memory,) = made
    assert not (hogwild.SHARED / memory.name).exists()


def test_a_container_with_little_shared_memory_is_told_in_one_line(tmp_path: Path) -> None:
    """Docker gives 64 MiB. The kernel sent SIGBUS to a process that wrote to a page without room."""
    small = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size=16k tmpfs /dev/shm && exec "$@"', "sh"]
    if shutil.which("unshare") is None or subprocess.run([*small, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a tiny /dev/shm")
    random_dataset(tmp_path / "data", size=60)
    command = [sys.executable, "-m", "glovewire", "train", str(tmp_path / "data"), "--store", "shared"]
    ended = subprocess.run(
        [*small, *command, "--out", str(tmp_path / "run"), "--workers", "2"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[3],
        timeout=120,
        check=False,
    )
    assert (ended.returncode, ended.stderr.count("\n")) == (1, 1), ended
    assert "--store server" in ended.stderr


@pytest.mark.parametrize("moment", ["before it reports", "after it has reported", "before it reads a reply"])
def test_a_killed_process_is_named(moment: str) -> None:
    """Seen to fail: a report that could not be answered ended the command in silence, a lost reply with a traceback."""

    class Killed:
        name, exitcode = "worker 0", -9

        def join(self) -> None:
            pass

    with contextlib.ExitStack() as pipes:
        ours, theirs = map(pipes.enter_context, multiprocessing.Pipe())
        if moment == "after it has reported":
            theirs.send(Report(1, -1, 1, 0.0, 0.0, 1.0, 0.0, 0))
        elif moment == "before it reads a reply":
            ours.send(False)
        theirs.close()
        process: Any = Killed()
        with pytest.raises(ProcessDied, match="worker 0 ended with exit status -9"):
            hogwild._receive_report(ours, process, "w0", Losses(1, 1, started=0.0), TrainingOptions())
