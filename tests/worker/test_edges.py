"""Matrices at the edges of what can be trained, and odd lengths of vectors, through the trainer in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from handmade import full_matrix, random_dataset, write_dataset

from glovewire.common.endings import Ending, RunEnd
from glovewire.common.model.options import TrainingOptions
from glovewire.common.model.row_layout import RowLayout
from glovewire.common.protocol import messages as m
from glovewire.common.storage.dataset import Dataset
from glovewire.worker.stores.memory_store import MemoryStore
from glovewire.worker.training.block_trainer import train

EPOCHS = 5


def dataset_of(path: Path, size: int, pairs: list[tuple[int, int]], partitions: int) -> Dataset:
    """A symmetric matrix of `size` words with a count for each pair (i <= j) and its mirror image."""
    both = sorted({*pairs, *((j, i) for i, j in pairs)})
    i, j = np.array(both, np.int64).reshape(-1, 2).T
    matrix = scipy.sparse.coo_matrix((np.full(len(both), 3, np.float32), (i, j)), shape=(size, size))
    words = [f"w{n:03}" for n in range(size)]
    return write_dataset(path, matrix, np.ones(size), words, partitions=partitions)


def trained(dataset: Dataset, **options: object) -> tuple[np.ndarray, list[m.Report]]:
    """The rows and reports of a whole training in place."""
    training = TrainingOptions(**{"dim": 5, "epochs": EPOCHS, **options})  # type: ignore[arg-type]
    rows = RowLayout.of(training).initial(0, dataset.layout.rows, training)
    reports: list[m.Report] = []
    positions = iter(range(1 << 30))

    def tell(report: m.Report) -> bool:
        reports.append(report)
        return False

    def no_minibatch(*_: object) -> Any:
        raise AssertionError("blocks need no step of the store")

    partitions, nothing = dataset.layout.partitions, no_minibatch
    store = MemoryStore(rows, partitions, training, positions.__next__, nothing, nothing, tell)
    assert train(store, dataset, training, 0) == RunEnd(Ending.COMPLETE)
    return rows, reports


@pytest.mark.parametrize(
    ("size", "pairs", "partitions"),
    [
        pytest.param(1, [(0, 0)], 1, id="one word that met itself"),
        pytest.param(2, [(0, 1)], 1, id="one pair"),
        pytest.param(9, [(0, 1), (0, 8)], 3, id="words that met no other"),
        pytest.param(3, [(0, 1), (1, 2)], 8, id="partitions without words"),
        pytest.param(4, [], 2, id="no entry at all"),
    ],
)
@pytest.mark.parametrize("tied", [True, False])
def test_small_and_hollow_matrices_are_trained(
    tmp_path: Path, size: int, pairs: list[tuple[int, int]], partitions: int, tied: bool
) -> None:
    dataset = dataset_of(tmp_path / "data", size, pairs, partitions)
    rows, reports = trained(dataset, tied=tied)
    assert sum(report.entries for report in reports) == EPOCHS * dataset.total_entries
    assert np.isfinite(rows).all()
    by_epoch = np.array([report.loss for report in reports]).reshape(EPOCHS, -1).sum(1)
    assert not pairs or by_epoch[-1] < by_epoch[0]


@pytest.mark.parametrize("symmetric", [True, False])
def test_skip_gram_weighs_a_pair_by_what_is_left_of_its_count(tmp_path: Path, symmetric: bool) -> None:
    """The loss with the vectors at zero knows nothing but the weights: log 2 for a pair and each of its negatives."""
    dataset, _ = random_dataset(tmp_path / "data", symmetric=symmetric)
    _, reports = trained(dataset, objective="sgns", epochs=1, sample=0.04, x_max=3.0, alpha=0.5, negatives=2.0)
    kept = np.minimum(1, np.sqrt(0.04 * dataset.counts.sum() / dataset.counts))
    pairs = full_matrix(dataset)
    weights = np.minimum(1, pairs.data * kept[pairs.row] * kept[pairs.col] / 3) ** 0.5
    assert 0 < (kept < 1).sum() < len(kept)
    assert sum(report.bias_only_loss for report in reports) == pytest.approx(3 * np.log(2) * weights.sum(), rel=1e-5)


@pytest.mark.parametrize("optimizer", ["adagrad-row", "adagrad", "sgd"])
@pytest.mark.parametrize("dim", [1, 100, 300])
def test_any_length_of_vectors_is_trained(tmp_path: Path, optimizer: str, dim: int) -> None:
    pairs = [(i, j) for i in range(30) for j in range(i, 30) if (i + j) % 3]
    dataset = dataset_of(tmp_path / "data", 30, pairs, 2)
    _, reports = trained(dataset, dim=dim, optimizer=optimizer, learning_rate=0.05)
    by_epoch = np.array([report.loss for report in reports]).reshape(EPOCHS, -1).sum(1)
    assert by_epoch[-1] < by_epoch[0]
