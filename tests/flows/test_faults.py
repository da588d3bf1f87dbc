"""What of the matrix of faults the simulation does not have: real sockets, signals and disks.

Real processes are killed in test_leftovers.py, test_generations.py and test_minibatch.py. benchmarks/faults.py plays
all of the matrix. docs/decisions/0012-faults-on-purpose.md says which protections were taken out to see a test fail.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from handmade import random_dataset
from matrix import play, undisturbed
from relay import Fault
from small_disk import may_mount
from stage import Cell, Role

EXCLUSIVE = "blocks/exclusive"
CELLS = [
    Cell(Fault.STOP, Role.SHARD, EXCLUSIVE, epochs=600),
    Cell(Fault.CUT, Role.WORKER, EXCLUSIVE, epochs=600),
    Cell(Fault.REORDER, Role.SHARD, EXCLUSIVE, 0.3, epochs=2),
    Cell(Fault.DISK, Role.SHARD, EXCLUSIVE, epochs=600),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("faults")
    random_dataset(found / "data", size=40)
    return found


@pytest.fixture(scope="module")
def vectors(folder: Path) -> Callable[[int], bytes]:
    """The vectors after so many epochs without a fault."""
    return cache(lambda epochs: undisturbed(folder, epochs))


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: f"{cell.fault.name}-{cell.role.name}-{cell.mode}".lower())
def test_what_goes_wrong_does_no_harm(cell: Cell, folder: Path, vectors: Callable[[int], bytes]) -> None:
    if cell.fault is Fault.DISK and not may_mount(folder):
        pytest.skip("needs the right to mount a tiny file system")
    expected = vectors(cell.length) if cell.mode == EXCLUSIVE else None
    outcome = play(cell, folder, expected, f"run-{CELLS.index(cell)}")
    assert outcome.problems == [], outcome
