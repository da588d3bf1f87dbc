"""A few hundred clusters with faults; `make simulate` plays many more. See docs/simulation.md."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from unittest import mock

import pytest
from disk import Calls, Disk
from mutants import MUTANTS, ROOT
from scenario import Outcome, play_all
from world import World

from glovewire.common.storage.artifacts import make_folder
from glovewire.common.storage.run_folder import CHECKPOINTS
from glovewire.server.checkpoints.generations import Generation, create, newest
from glovewire.server.consistency.blocks import ExclusiveBlocks

SEEDS, CHUNK = 300, 25
FOUND = {
    418: "a shard that had ended left while another was cut from it",
    319: "workers left when the vectors were written, and the shard was killed before its final checkpoint was",
    545: "shards waited for the final checkpoint of one whose tensors had no values",
    681: "a shard that had ended left while another was down",
    1983: "a restarted shard 0 decided with what it had heard 20 seconds before",
    2060: "shard 0 on an empty disk began the run anew when the others did not answer for 20 seconds",
    2490: "the folder of a part that was copied was not synced",
    2404: "a shard that found its run over did not say that it had left",
    25639: "a shard 0 that found its run over began a generation for another, and ended",
    768: "a shard that had left, and went on all the same, made another one end",
    710: "shards that copied forty checkpoints heard of the end of the run too late",
    815: "a late hello opened a session that the worker did not know",
    31045: "a shard that came to a run that was ending entered its generation twice",
    20045: "the scratch file of n-grams could not be removed, and the shard ended with a traceback",
    772: "glovewire checkpoint asked for a round that no message can hold",
}
"""Seeds above SEEDS that have failed, and what they have found, before seeds drew stores."""
FOUND_STORED = {
    480: "with `--keep-checkpoints 1`, shards above 0 removed their only part",
    513: "a shard removed from the store what another one had not replaced yet",
    570: "a shard that found its run over did not upload what it had left",
    886: "a part was written again while it was uploaded",
    2586: "the oracle of the store did not count checkpoints that were asked for",
    8152: "a dense worker that was told at its first request that the run was over left before a shard had saved",
    30102: "of a checkpoint without gradients the examples counted, so that it passed for the newest",
}
"""The same of seeds with a store."""
HERE = Path(__file__).parent
PATH = f"{HERE}{os.pathsep}{HERE.parent / 'support'}"


def failed(seeds: Iterable[int], *, stores: bool = True) -> list[str]:
    """What went wrong, as one line for each seed."""
    outcomes: list[Outcome] = []
    play_all(seeds, outcomes.append, stores=stores)
    return [f"make simulate SEED={each.scenario.seed}: {each.problem}" for each in outcomes if each.problem]


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_whatever_happens_a_run_ends_with_the_same_bytes(first: int) -> None:
    assert failed(range(first, first + CHUNK)) == []


@pytest.mark.parametrize(
    ("seed", "stores"), [*((seed, False) for seed in FOUND), *((seed, True) for seed in FOUND_STORED)]
)
def test_what_was_found_once_stays_mended(seed: int, stores: bool) -> None:
    assert failed([seed], stores=stores) == []


def test_protections_that_mutants_remove_are_there() -> None:
    for each in MUTANTS:
        assert (ROOT / each.path).read_text(encoding="utf-8").count(each.old) == 1, each.what


def test_a_generation_that_another_shard_was_told_survives_a_power_failure(tmp_path: Path) -> None:
    """Seen to fail: its name was not synced, and shard 0 could begin another one of that number."""
    for seed in range(20):
        root = tmp_path / str(seed)
        root.mkdir()
        disk, generation = Disk(World(seed), root), Generation(3, "abcdef01", 2, "", 0, "0" * 32)
        with Calls([disk]).intercepted():
            make_folder(root / "run" / CHECKPOINTS)
            create(root / "run", generation, by="other")
            disk.lose_power()
            assert newest(root / "run") == generation


def test_a_protection_that_is_missing_is_found() -> None:
    """Answer every pull at once, whatever version of the rows it asks for."""
    with mock.patch.object(ExclusiveBlocks, "may_pull", return_value=True):
        assert any("is not the state of round" in problem for problem in failed(range(20)))


@pytest.mark.parametrize(("seed", "fault"), [("190", "kills shard"), ("239", "loses the disks of all shards")])
def test_a_seed_tells_the_same_story_again(seed: str, fault: str) -> None:
    """Seen to fail: 239 asked the store for its parts in the order of a set."""
    stories = [
        subprocess.run(
            [sys.executable, HERE / "simulate.py", "--seed", seed],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": PATH},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert stories[0] == stories[1]
    assert fault in stories[0]
    assert "event=pull round=0 partition=0 why='the strip begins'" in stories[0]
    assert stories[0].endswith("all holds\n")
