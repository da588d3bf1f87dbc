"""When a worker asks for blocks: few ahead, however many are on their way back, and on when nothing comes.

And which rows it trains where blocks of others come back to be trained again.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from handmade import write_dataset

from glovewire.common.array_types import Rows
from glovewire.common.endings import Ending, RunEnd
from glovewire.common.errors import RunOver
from glovewire.common.model.options import TrainingOptions
from glovewire.common.model.row_layout import RowLayout
from glovewire.common.protocol import messages as m
from glovewire.common.storage.dataset import Dataset
from glovewire.server.leases.schedule import LEASES_PER_WORKER, Schedule
from glovewire.worker.stores.interface import Reply
from glovewire.worker.training import block_trainer as trainer
from glovewire.worker.training import prefetch
from glovewire.worker.training.block_trainer import STUCK_S, BlockTrainer
from glovewire.worker.training.prefetch import MIN_TASKS, MIN_TASKS_OF_BIG_ROWS

TICK_S = 0.3
PATIENCE_S = 2 * STUCK_S
BLOCK_S, UNTIL_S = 0.1, 10.0


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
            raise RunOver(Ending.ASKED)


class Slow(Far):
    """One to which a push is answered after `way_s`; time passes while blocks are trained, too."""

    def __init__(self, width: int, partitions: int, way_s: float) -> None:
        super().__init__(width, partitions, rows_come=True, until_s=UNTIL_S)
        self._way_s, self._leases = way_s, 0
        self._answers: list[tuple[float, Reply[None]]] = []
        self.tasks: list[int] = []

    def lease(self) -> Reply[m.Granted | m.Done]:
        reply = super().lease()
        self._leases += reply.done
        self.tasks.append(self._leases - len(self.pushed))
        return reply

    def push_block(self, operation: str, lease: m.Granted, changes: object) -> Reply[None]:
        self._answers.append((self.now + self._way_s, reply := super().push_block(operation, lease, changes)))
        return reply

    def report(self, report: Callable[[int, int], m.Report]) -> Reply[m.Recorded]:
        self._schedule.finish(report(1, 1).lease)
        return Reply(m.Recorded(stop=False, epoch=0, entries=0), 0)

    def poll(self) -> None:
        self._pass(BLOCK_S)

    def wait(self) -> None:
        self._pass(BLOCK_S / 10)

    def _pass(self, seconds: float) -> None:
        self.now += seconds
        if self.now > self._until_s:
            raise RunOver(Ending.ASKED)
        for due, reply in self._answers:
            reply.missing = int(due > self.now)


class Returned:
    """A store that grants a block of a late round, then two of earlier ones that a lost worker had trained already.

    Rows of the first round come when the late block is pushed. The lead in the order is partition 0's.
    """

    in_place = False
    blocks = (m.Granted(1, 0, 2, 0, 0, 0), m.Granted(2, 0, 0, 0, 1, 0), m.Granted(3, 0, 1, 0, 2, 0))

    def __init__(self, width: int) -> None:
        self._width = width
        self._granted = self.waited = 0
        self._late: list[Reply[Rows]] = []
        self.pulled: list[tuple[int, int]] = []
        self.pushed: list[int] = []

    def lease(self) -> Reply[m.Granted | m.Done]:
        self._granted += 1
        return Reply(
            self.blocks[self._granted - 1] if self._granted <= len(self.blocks) else m.Done(Ending.COMPLETE), 0
        )

    def pull_range(self, first: int, last: int, version: int) -> Reply[Rows]:
        self.pulled.append((first, version))
        reply = Reply(np.full((last - first, self._width), 0.1, np.float32), 0)
        if not version:
            reply.missing = 1
            self._late.append(reply)
        return reply

    def push_block(self, operation: str, lease: m.Granted, changes: object) -> Reply[None]:
        del operation, changes
        self.pushed.append(lease.round)
        for reply in self._late:
            reply.missing = 0
        return Reply(None, 0)

    def report(self, report: object) -> Reply[m.Recorded]:
        del report
        return Reply(m.Recorded(stop=False, epoch=0, entries=0), 0)

    def poll(self) -> None:
        """Nothing arrives."""

    def wait(self) -> None:
        self.waited += 1
        if self.waited > 100:
            raise RunOver(text="it waits for ever")


def test_blocks_that_come_back_are_trained_beside_later_rounds_of_their_partition(tmp_path: Path) -> None:
    """The second one needs what the first one makes of partition 0, of which a later round is here by then."""
    store = Returned(WIDTH)
    stored: Any = store
    assert BlockTrainer(stored, diagonal_dataset(tmp_path), OPTIONS).run() == RunEnd(Ending.COMPLETE)
    assert store.pushed == [2, 0, 1]
    assert (0, 1) not in store.pulled  # (first row, version): partition 0 at round 1 is what the worker made of it


OPTIONS = TrainingOptions(dim=4)
WIDTH, PARTITIONS = RowLayout.of(OPTIONS).width, 32


def play(folder: Path, monkeypatch: pytest.MonkeyPatch, *, rows_come: bool) -> Far:
    """What a worker has asked for and pushed in the time of its patience."""
    far = Far(WIDTH, PARTITIONS, rows_come=rows_come, until_s=PATIENCE_S)
    play_with(far, folder, monkeypatch)
    return far


def play_with(far: Far, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Train through a store, by its clock, until it has seen enough."""
    monkeypatch.setattr(trainer, "time", SimpleNamespace(perf_counter=lambda: far.now))
    store: Any = far
    assert BlockTrainer(store, diagonal_dataset(folder), OPTIONS).run() == RunEnd(Ending.ASKED)


def diagonal_dataset(folder: Path) -> Dataset:
    """Blocks that take no time."""
    diagonal = scipy.sparse.eye(2 * PARTITIONS, dtype=np.float32, format="coo")
    words = [f"w{number:02}" for number in range(2 * PARTITIONS)]
    return write_dataset(folder / "data", diagonal, np.ones(2 * PARTITIONS), words, partitions=PARTITIONS)


def test_training_does_not_wait_for_pushes_in_flight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    far = play(tmp_path, monkeypatch, rows_come=True)
    assert len(far.pushed) == LEASES_PER_WORKER > MIN_TASKS
    assert len({*far.pushed}) == 1  # nothing was waited for until the server had no more to give


def test_a_worker_has_few_blocks_to_train_and_asks_on_only_when_stuck(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The blocks that it waits for may have come back from a lost worker, and every worker has enough of others."""
    far = play(tmp_path, monkeypatch, rows_come=False)
    assert sum(asked <= STUCK_S for asked in far.asked) == MIN_TASKS
    assert len(far.asked) > MIN_TASKS
    assert not far.pushed


def test_fewer_blocks_where_their_rows_are_many_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch, "BIG_ROWS_BYTES", 1)
    far = play(tmp_path, monkeypatch, rows_come=False)
    assert sum(asked <= STUCK_S for asked in far.asked) == MIN_TASKS_OF_BIG_ROWS < MIN_TASKS


@pytest.mark.parametrize(("blocks", "expected"), [(0.5, MIN_TASKS), (2.5, 5)])
def test_a_worker_has_more_blocks_ahead_where_its_pushes_take_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blocks: float, expected: int
) -> None:
    slow = Slow(WIDTH, PARTITIONS, blocks * BLOCK_S)
    play_with(slow, tmp_path, monkeypatch)
    assert max(slow.tasks) == expected
