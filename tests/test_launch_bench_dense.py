"""What `glovewire bench dense` refuses and says; measuring itself needs two libraries and a quiet machine."""

from __future__ import annotations

import pytest

from common.errors import UsageError
from launch.bench_dense import DenseBenchConfig, table


def test_all_problems_are_named_at_once() -> None:
    with pytest.raises(UsageError, match=r"workers must be at least 1; .*seconds must be at least 0\.1"):
        DenseBenchConfig(workers=0, seconds=0.0)


def test_the_table_says_how_many_times_the_peer_it_is() -> None:
    rate = {"median": 300.0, "min": 290.0, "max": 310.0}
    ratio = {"sync": {"median": 3.5, "min": 3.0, "max": 4.0}}
    shown = table({"updates_per_second": {"glovewire sync": rate}, "ratio": ratio})
    assert shown.splitlines() == ["glovewire sync        300 updates/s   (290 to 310)", "sync: 3.5 times Ray's"]
