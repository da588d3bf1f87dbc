"""Processes on one array, here as threads of this one that take their steps in turn."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import threading
from collections import defaultdict
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import synchronized
from pathlib import Path
from typing import Any

import pytest
from handmade import random_dataset

from glovewire.common.model.options import TrainingOptions
from glovewire.common.runtime import compiled
from glovewire.launch import hogwild
from glovewire.launch.config import LocalConfig
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
