"""Minibatches: uniform over the full matrix, mirrored entries and diagonal included, one stream a worker."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from handmade import full_matrix
from shards import in_memory

from glovewire.common.storage.dataset import Dataset
from glovewire.worker.training.minibatch_trainer import Minibatch, MinibatchSampler


def rows_of(batch: Minibatch) -> list[tuple[int, int, float]]:
    i, j = batch.rows[batch.at_i], batch.rows[batch.at_j]
    return list(zip(i.tolist(), j.tolist(), batch.counts.tolist(), strict=True))


def by_row(dataset: Dataset) -> dict[tuple[int, int], float]:
    """The full matrix in row numbers."""
    matrix, row_of = full_matrix(dataset), np.argsort(dataset.permutation)
    places = zip(row_of[matrix.row].tolist(), row_of[matrix.col].tolist(), strict=True)
    return dict(zip(places, matrix.data.tolist(), strict=True))


@pytest.mark.parametrize("symmetric", [True, False])
def test_every_entry_of_the_full_matrix_is_drawn_as_often_as_any_other(tmp_path: Path, symmetric: bool) -> None:
    dataset = in_memory(tmp_path / "d", symmetric=symmetric)
    full = by_row(dataset)
    batches = MinibatchSampler(dataset, 1000, seed=3, worker=0)
    drawn = [entry for _ in range(100) for entry in rows_of(batches.next())]
    assert all(full[i, j] == count for i, j, count in drawn)
    times = Counter((i, j) for i, j, _ in drawn)
    counts = np.array([times[place] for place in full])
    mean = len(drawn) / len(full)
    chi_squared = ((counts - mean) ** 2 / mean).sum()
    degrees = len(full) - 1
    assert abs(chi_squared - degrees) < 5 * np.sqrt(2 * degrees)
    diagonal = np.array([i == j for i, j in full])
    assert diagonal.any()
    assert counts[diagonal].mean() == pytest.approx(mean, rel=0.1)


def test_rows_are_distinct_and_ascending(tmp_path: Path) -> None:
    batches = MinibatchSampler(in_memory(tmp_path / "d"), 64, seed=0, worker=0)
    for _ in range(20):
        batch = batches.next()
        assert (np.diff(batch.rows) > 0).all()
        assert batch.rows.dtype == np.int64
        assert len(batch.at_i) == len(batch.at_j) == len(batch.counts) == 64
        assert batch.counts.dtype == np.float32


def test_a_stream_is_a_function_of_seed_and_worker(tmp_path: Path) -> None:
    dataset = in_memory(tmp_path / "d")
    streams = []
    for seed, worker in ((0, 0), (0, 0), (0, 1), (1, 0)):
        batches = MinibatchSampler(dataset, 16, seed, worker)
        streams.append([rows_of(batches.next()) for _ in range(3)])
    assert streams[0] == streams[1]
    assert streams[0] != streams[2]
    assert streams[0] != streams[3]
    assert streams[2] != streams[3]
    assert streams[0][0] != streams[0][1]


def test_a_worker_that_goes_on_draws_what_comes_next_and_nothing_again(tmp_path: Path) -> None:
    dataset = in_memory(tmp_path / "d")
    first = MinibatchSampler(dataset, 16, seed=5, worker=2)
    drawn = [rows_of(first.next()) for _ in range(5)]
    later = MinibatchSampler(dataset, 16, seed=5, worker=2, step=3)
    assert [rows_of(later.next()) for _ in range(2)] == drawn[3:]
