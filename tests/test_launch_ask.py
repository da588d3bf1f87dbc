"""What `glovewire stats` shows of a shard."""

from __future__ import annotations

from pathlib import Path

import pytest
from shards import MINIBATCH, in_memory, report, shard, statistics

from common.dataset import Dataset
from launch.ask import described

WHERE = "tcp://127.0.0.1:5555"


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return in_memory(tmp_path_factory.mktemp("data") / "d")


def test_there_is_no_loss_before_anything_is_trained(dataset: Dataset, tmp_path: Path) -> None:
    one = shard(dataset, out=tmp_path, **MINIBATCH)
    one.hello("w0")
    assert "  loss      none yet" in described(WHERE, statistics(one))
    one.ask(b"w0", report(1))
    (loss,) = (line for line in described(WHERE, statistics(one)) if line.startswith("  loss"))
    assert loss == "  loss      0.10000; with the vectors at zero 0.20000; mean vector norm 1.000"
