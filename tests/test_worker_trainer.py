"""When a worker asks for blocks: few ahead, however many are on their way back, and on when nothing comes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from handmade import write_dataset

from common import messages as m
from common.errors import Finishing
from common.options import TrainingOptions
from common.rows import RowLayout
from server.schedule import LEASES_PER_WORKER, Schedule
from worker import trainer
from worker.stores import Reply, Rows
from worker.trainer import STUCK_S, TASKS, BlockTrainer

TICK_S = 0.3
PATIENCE_S = 2 * STUCK_S


class Far:
    """A store behind a long way: blocks at once, rows at once or never, no push answered until `until_s`."""

    in_place = False

    def __init__(self, width: int, partitions: int, *, rows_come: bool, until_s: float) -> None:
        self._width, self._rows_come, self._until_s = width, rows_come, until_s
        self._schedule = Schedule(partitions, 100, 0)
        self.now = 0.0
        self.asked: list[float] = []
        self.pushed: list[float] = []

    def lease(self) -> Reply[m.Granted | m.Done]:
        self.asked.append(self.now)
        if (granted := self._schedule.grant("w")) is None:
            return Reply()
        lease, block = granted
        return Reply(m.Granted(lease, self._schedule.epoch_of(block), block.round, block.a, block.b, 0), 0)

    def pull_range(self, first: int, last: int, version: int) -> Reply[Rows]:
        del version
        return Reply(np.full((last - first, self._width), 0.1, np.float32), 0) if self._rows_come else Reply()

    def push_block(self, operation: str, lease: m.Granted, changes: object) -> Reply[None]:
        del operation, lease, changes
        self.pushed.append(self.now)
        return Reply()

    def poll(self) -> None:
        """Nothing arrives."""

    def wait(self) -> None:
        self.now += TICK_S
        if self.now > self._until_s:
            raise Finishing("seen enough")


def play(folder: Path, monkeypatch: pytest.MonkeyPatch, *, rows_come: bool) -> Far:
    """What a worker has asked for and pushed in the time of its patience."""
    diagonal = scipy.sparse.eye(64, dtype=np.float32, format="coo")
    words = [f"w{number:02}" for number in range(64)]
    dataset = write_dataset(folder / "data", diagonal, np.ones(64), words, partitions=32)
    options = TrainingOptions(dim=4)
    far = Far(RowLayout.of(options).width, dataset.layout.partitions, rows_come=rows_come, until_s=PATIENCE_S)
    monkeypatch.setattr(trainer, "time", SimpleNamespace(perf_counter=lambda: far.now))
    store: Any = far
    assert BlockTrainer(store, dataset, options, 0, 0).run() == "seen enough"
    return far


def test_blocks_on_their_way_back_keep_nobody_from_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    far = play(tmp_path, monkeypatch, rows_come=True)
    assert len(far.pushed) == LEASES_PER_WORKER > TASKS
    assert len({*far.pushed}) == 1  # nothing was waited for until the server had no more to give


def test_a_worker_has_few_blocks_to_train_and_asks_on_only_when_stuck(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The blocks that it waits for may have come back from a lost worker, and everybody has enough of others."""
    far = play(tmp_path, monkeypatch, rows_come=False)
    assert sum(asked <= STUCK_S for asked in far.asked) == TASKS
    assert len(far.asked) > TASKS
    assert not far.pushed
