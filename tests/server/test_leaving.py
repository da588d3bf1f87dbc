"""The end of a run on one server: what it takes of memory, and what is on disk when there is no room for everything."""

from __future__ import annotations

import dataclasses
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import scipy.sparse
from handmade import write_dataset
from shards import shard
from small_disk import may_mount, small_disk

from glovewire.common.endings import Ending, RunEnd
from glovewire.common.errors import OutputError
from glovewire.common.storage import run_folder as runs
from glovewire.common.storage.artifacts import no_pause
from glovewire.common.storage.dataset import Dataset
from glovewire.server import leaving
from glovewire.server.checkpoints import files as checkpoint
from glovewire.server.checkpoints import generations
from glovewire.server.checkpoints.cuts import Snapshot
from glovewire.server.checkpoints.generations import Generation
from glovewire.server.config import ServerConfig
from glovewire.server.leaving import Leaving
from glovewire.server.peers import Peers

T = TypeVar("T")


class FakeDaemon:
    """Does at once what a daemon does aside."""

    signalled = False

    def __init__(self, run: Path) -> None:
        self.run = run
        self.told: list[str] = []

    def write_now(self, last: Snapshot) -> None:
        checkpoint.write(self.run, last)
        self.told.append("saved")

    def aside(self, action: Callable[[], T]) -> T:
        return action()

    def farewell(self) -> None:
        assert (self.run / "manifest.json").exists()
        self.told.append("farewell")


def sparse_dataset(path: Path, size: int) -> Dataset:
    """A dataset of `size` words, each of which occurs beside itself."""
    each = np.arange(size)
    matrix = scipy.sparse.coo_matrix((np.ones(size, np.float32), (each, each)), (size, size))
    dataset = write_dataset(path, matrix, np.ones(size), [f"w{number:05}" for number in each])
    return dataclasses.replace(dataset, entries=np.array(dataset.entries))


def leave(data: Path, daemon: FakeDaemon, ending: Ending, size: int, **options: Any) -> float:
    """End a run of `size` words on one shard; the most memory that its table and the end took, in tables."""
    dataset = sparse_dataset(data, size)
    tracemalloc.start()
    try:
        one = shard(dataset, out=daemon.run, dim=256, tied=False, **options)
        (daemon.run / "checkpoints").mkdir(parents=True)
        config = ServerConfig(dataset=dataset.path, out=daemon.run, options=one.state.options)
        end, table = RunEnd(ending), one.state.table.values.nbytes
        others = tracemalloc.get_traced_memory()[0] - table
        tracemalloc.reset_peak()
        peers, generation = Peers(config, None), Generation(run="abc")
        facts = end.as_fields()
        Leaving(config, dataset, one.core, daemon, peers, generation, end, facts, no_pause).leave()  # type: ignore[arg-type]
        return (tracemalloc.get_traced_memory()[1] - others) / table
    finally:
        tracemalloc.stop()


def test_the_vectors_are_written_in_the_memory_of_the_table(tmp_path: Path) -> None:
    leave(tmp_path / "few", FakeDaemon(tmp_path / "warm"), Ending.COMPLETE, 30)
    daemon = FakeDaemon(tmp_path / "run")
    assert leave(tmp_path / "many", daemon, Ending.COMPLETE, 40_000) < 1.5
    assert daemon.told == ["saved", "farewell"]
    assert runs.load_vectors(tmp_path / "run").subwords is not None


WORDS = 200
"""Their rows take 422 kB, their vectors 205 kB, on a disk of 512 kB."""


@pytest.mark.parametrize("ending", [Ending.COMPLETE, Ending.STOPPED])
def test_a_disk_with_room_for_one_gets_what_the_run_needs(tmp_path: Path, ending: Ending) -> None:
    if not may_mount(tmp_path):
        pytest.skip("needs the right to mount a tiny file system")
    with small_disk(tmp_path / "disk"):
        run = tmp_path / "disk" / "run"
        daemon = FakeDaemon(run)
        with pytest.raises(OutputError, match="no space left on the disk") as raised:
            leave(tmp_path / "data", daemon, ending, WORDS, subwords=0.0)
        assert daemon.told == ["saved"]  # and workers stay, which the run needs if it is started again
        if ending is Ending.COMPLETE:
            assert "final.shard-0-of-1 cannot be written" in str(raised.value)
            assert len(runs.load_vectors(run).vectors) == WORDS
            assert checkpoint.missing(run, "final", 1) == [0]
        else:
            assert "vectors.npy cannot be written" in str(raised.value)
            rows, _ = checkpoint.read(run, "final", 1)
            assert len(rows) == WORDS


class DaemonOfTwo(FakeDaemon):
    """Releases the workers before the results are written, as one of several shards does."""

    def farewell(self) -> None:
        self.told.append("farewell")


def test_the_other_shard_is_told_until_it_has_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk may have kept the shard from telling it before. Simulation, seed 6421 of draw 10."""
    monkeypatch.setattr(leaving, "OTHER_SHARDS_S", 10.0)
    dataset, daemon = sparse_dataset(tmp_path / "data", 30), DaemonOfTwo(tmp_path / "run")
    first, second = (shard(dataset, out=daemon.run, number=number, shards=2, subwords=0.0) for number in range(2))
    config = ServerConfig(dataset=dataset.path, out=daemon.run, shards=2, options=first.state.options)
    generation, end, told = Generation(0, "aaaaaaaa", 2, secret="0" * 32), RunEnd(Ending.COMPLETE), []
    generations.claim(config)
    generations.create(daemon.run, generation, by="0")

    def tell() -> None:
        told.append(generations.unfinished(config, generation))
        if len(told) == 2:  # the first time, there was no room
            checkpoint.write(daemon.run, second.core.final())

    facts, peers = end.as_fields(), Peers(config, None)
    Leaving(config, dataset, first.core, daemon, peers, generation, end, facts, tell).leave()  # type: ignore[arg-type]
    assert told[:2] == [[1], [1]]
    assert daemon.told == ["saved", "farewell"]
    assert len(runs.load_vectors(daemon.run).vectors) == 30
