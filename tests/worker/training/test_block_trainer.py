"""When a worker asks for strips, whatever is on its way back; what it pulls, and in which order it trains.

Also where strips of others come back to be trained again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from handmade import random_dataset, write_dataset

from glovewire.common.array_types import Array, Indices
from glovewire.common.client.pending import Pending
from glovewire.common.endings import Ending, RunEnd
from glovewire.common.errors import RunOver
from glovewire.common.model.bfloat16 import BFLOAT16, from_bfloat16, to_bfloat16
from glovewire.common.model.options import TrainingOptions
from glovewire.common.model.rounds import Rounds
from glovewire.common.model.row_layout import RowLayout
from glovewire.common.protocol import messages as m
from glovewire.common.storage.dataset import Dataset
from glovewire.server.leases.schedule import LEASES_PER_WORKER, Schedule
from glovewire.worker.stores.interface import Change
from glovewire.worker.stores.memory_store import MemoryStore
from glovewire.worker.training import strips
from glovewire.worker.training.block_trainer import BlockTrainer
from glovewire.worker.training.strips import STUCK_S

TICK_S = 0.3
PATIENCE_S = 2 * STUCK_S
OPTIONS = TrainingOptions(dim=4)
WIDTH, PARTITIONS = RowLayout.of(OPTIONS).width, 32


class Far:
    """A store behind a long way: strips at once, rows at once or never, no push answered until `until_s`."""

    in_place = False

    def __init__(self, *, rows_come: bool) -> None:
        self._rows_come = rows_come
        self._schedule = Schedule(Rounds(PARTITIONS, 100))
        self._now = 0.0
        self.asked: list[float] = []
        self.pushed: list[tuple[float, int]] = []

    def now(self) -> float:
        return self._now

    def lease(self, has: np.ndarray | None = None) -> Pending[m.Granted | m.Done]:
        self.asked.append(self._now)
        granted = self._schedule.grant("w")
        return Pending() if granted is None else Pending(m.Granted(*granted, 0), 0)

    def pull_range(
        self, first: int, last: int, version: int, rows: Indices | None = None, *, bfloat16: bool = False
    ) -> Pending[Array]:
        del version, bfloat16
        count = last - first if rows is None else len(rows)
        return Pending(np.full((count, WIDTH), 0.1, np.float32), 0) if self._rows_come else Pending()

    def push_range(self, operation: str, lease: m.Granted, change: Change) -> Pending[int]:
        del operation, change
        self.pushed.append((self._now, lease.round))
        return Pending()

    def poll(self) -> None:
        """Nothing arrives."""

    def wait(self) -> None:
        self._now += TICK_S
        if self._now > PATIENCE_S:
            raise RunOver(Ending.ASKED)


def play(folder: Path, *, rows_come: bool) -> Far:
    """What a worker has asked for and pushed in the time of its patience, by the store's clock."""
    far = Far(rows_come=rows_come)
    store: Any = far
    assert BlockTrainer(store, diagonal_dataset(folder), OPTIONS).run() == RunEnd(Ending.ASKED)
    return far


def diagonal_dataset(folder: Path) -> Dataset:
    """Strips that take no time."""
    diagonal = scipy.sparse.eye(2 * PARTITIONS, dtype=np.float32, format="coo")
    words = [f"w{number:02}" for number in range(2 * PARTITIONS)]
    return write_dataset(folder / "data", diagonal, np.ones(2 * PARTITIONS), words, partitions=PARTITIONS)


def test_training_does_not_wait_for_pushes_in_flight(tmp_path: Path) -> None:
    far = play(tmp_path, rows_come=True)
    assert {round for _, round in far.pushed} == set(range(LEASES_PER_WORKER))
    assert len({now for now, _ in far.pushed}) == 1  # nothing was waited for until the server had no more to give


def test_a_worker_has_one_strip_to_train_and_asks_on_only_when_stuck(tmp_path: Path) -> None:
    """The rows that it waits for may be those of a strip that came back from a lost worker."""
    far = play(tmp_path, rows_come=False)
    assert sum(asked <= STUCK_S for asked in far.asked) == 1
    assert len(far.asked) > 1
    assert not far.pushed


class Table:
    """A store of a whole table that grants rounds as it is told, and answers a pull when its partition is there."""

    in_place = False

    def __init__(self, dataset: Dataset, options: TrainingOptions, granted: Sequence[int]) -> None:
        layout = RowLayout.of(options)
        self.rows = layout.initial(0, dataset.layout.rows, options)
        self._dataset, self._rounds = dataset, Rounds.of(options, dataset.layout.partitions)
        self._granted, self._bfloat16 = list(granted), options.bfloat16
        self._version = dict.fromkeys(dataset.layout.bounds[:-1], 0)
        self._waiting: list[tuple[Pending[Array], int, Any, int]] = []
        self.pulled = self.waits = self.trained = 0
        self.order: list[int] = []

    def now(self) -> float:
        return float(self.waits)

    def lease(self, has: np.ndarray | None = None) -> Pending[m.Granted | m.Done]:
        if not self._granted:
            return Pending(m.Done(Ending.COMPLETE), 0)
        round = self._granted.pop(0)
        return Pending(m.Granted(round + 1, round, 0), 0)

    def pull_range(
        self, first: int, last: int, version: int, rows: Indices | None = None, *, bfloat16: bool = False
    ) -> Pending[Array]:
        which = slice(first, last) if rows is None else rows
        reply: Pending[Array] = Pending()
        assert bfloat16 == self._bfloat16
        self._waiting.append((reply, first, which, version))
        self._answer()
        return reply

    def push_range(self, operation: str, lease: m.Granted, change: Change) -> Pending[int]:
        which = slice(change.first, change.last) if change.rows is None else change.rows
        if self._bfloat16:
            assert (operation, change.values.dtype) == ("add", BFLOAT16)
            self.rows[which] += from_bfloat16(change.values)
        else:
            assert operation == "assign"
            self.rows[which] = change.values
        self._version[change.first] = lease.round + 1
        self.order.append(lease.round)
        self._answer()
        return Pending(0, 0)

    def report(self, report: Callable[[int, int], m.Report]) -> Pending[m.Recorded]:
        self.trained += report(1, 0).entries
        return Pending(m.Recorded(stop=False, epoch=0, entries=0), 0)

    def poll(self) -> None:
        """Nothing arrives."""

    def wait(self) -> None:
        self.waits += 1
        if self.waits > 1000:
            raise RunOver(text="it waits for ever")

    def _answer(self) -> None:
        partition = {first: p for p, first in enumerate(self._dataset.layout.bounds[:-1])}
        for reply, first, which, version in self._waiting:
            if not reply.done and self._rounds.next_visit(partition[first], self._version[first]) >= version:
                rows = self.rows[which]
                reply.value, reply.missing = to_bfloat16(rows) if self._bfloat16 else rows.copy(), 0
                self.pulled += len(reply.value)


def trained(dataset: Dataset, options: TrainingOptions, granted: Sequence[int]) -> Table:
    table = Table(dataset, options, granted)
    store: Any = table
    assert BlockTrainer(store, dataset, options).run() == RunEnd(Ending.COMPLETE)
    return table


@pytest.mark.parametrize("objective", ["glove", "sgns"])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bfloat16", [True, False])
@pytest.mark.parametrize("local_epochs", [1, 2])
def test_distinct_rows_are_trained_as_whole_partitions_are(
    tmp_path: Path, symmetric: bool, objective: str, bfloat16: bool, local_epochs: int
) -> None:
    """In memory the rows of a whole partition are there; over the network only those that a strip needs."""
    dataset = sparse_dataset(tmp_path, symmetric=symmetric)
    options = TrainingOptions(
        dim=4, epochs=2, local_epochs=local_epochs, objective=objective, tied=False, bfloat16=bfloat16
    )
    rounds = Rounds.of(options, dataset.layout.partitions)
    over_network = trained(dataset, options, range(rounds.total))
    rows = RowLayout.of(options).initial(0, dataset.layout.rows, options)
    following = iter(range(1000))
    store = MemoryStore(
        rows, dataset.layout.partitions, options, following.__next__, lambda *_: None, lambda n: n, lambda _: False
    )
    assert BlockTrainer(store, dataset, options).run() == RunEnd(Ending.COMPLETE)
    if bfloat16:
        np.testing.assert_allclose(over_network.rows, rows, rtol=0.01, atol=0.01)
    else:
        np.testing.assert_array_equal(over_network.rows, rows)
    whole = sum(sum(map(dataset.layout.size, rounds.visits(round))) for round in range(rounds.total))
    assert 0 < over_network.pulled < whole


def test_epochs_of_a_sweep_train_what_epochs_one_by_one_train_and_send_rows_once(tmp_path: Path) -> None:
    """With a single partition, the order of the entries is the same."""
    dense = np.random.default_rng(7).integers(0, 9, (20, 20)).astype(np.float32)
    words = [f"w{number:02}" for number in range(20)]
    data = write_dataset(tmp_path / "data", scipy.sparse.coo_matrix(dense + dense.T), np.ones(20), words, partitions=1)
    both = [TrainingOptions(dim=4, epochs=4, local_epochs=n, bfloat16=False) for n in (1, 2)]
    single, double = (trained(data, options, range(options.sweeps)) for options in both)
    np.testing.assert_array_equal(single.rows, double.rows)
    assert single.trained == double.trained == 4 * data.total_entries
    assert single.pulled == 2 * double.pulled


def sparse_dataset(folder: Path, *, symmetric: bool) -> Dataset:
    """60 words in six partitions; most rows of a partition are not in a strip."""
    random = np.random.default_rng(5)
    dense = random.integers(1, 90, (60, 60)) * (random.random((60, 60)) < 0.03)
    dense = (dense + dense.T if symmetric else dense).astype(np.float32)
    words = [f"w{number:02}" for number in range(60)]
    matrix = scipy.sparse.coo_matrix(dense)
    return write_dataset(folder / "data", matrix, np.ones(60), words, partitions=6, symmetric=symmetric)


def test_a_strip_that_comes_back_is_trained_before_the_later_one_that_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lost worker had round 1; this one has begun round 2 when round 1 comes to it."""
    monkeypatch.setattr(strips, "STUCK_S", 0.0)
    dataset, _ = random_dataset(tmp_path / "data")
    options = TrainingOptions(dim=4, epochs=2, tied=True)
    total = Rounds(3, 2).total
    in_order = trained(dataset, options, range(total))
    stuck = trained(dataset, options, [0, 2, 1, *range(3, total)])
    assert in_order.order == sorted(in_order.order)
    np.testing.assert_array_equal(stuck.rows, in_order.rows)
