"""Minibatch training through real processes: in step and so the same bytes, and on from a checkpoint."""

from __future__ import annotations

import signal
from pathlib import Path

from handmade import random_dataset
from processes import Flow, until

from glovewire.common.model.options import TrainingOptions
from glovewire.server.checkpoints import files as checkpoint

IN_STEP = ("--schedule", "minibatch", "--consistency", "sync", "--batch-size", 16, "--lr", 0.1, "--epochs", 2)


def test_in_step_the_bytes_are_the_same_however_long_pushes_take(tmp_path: Path) -> None:
    """Three workers and two shards; in the second run pushes arrive in another order."""
    random_dataset(tmp_path / "data", size=40)
    with Flow(tmp_path) as flow:
        slowly = ("--latency", "30ms", "--latency", "0ms..20ms")
        usual = ("--workers", 3, "--servers", 2, *IN_STEP, "--json")
        plain = flow.train("plain", *usual).ends(0).json
        slow = flow.train("slow", *usual, *slowly).ends(0).json
        assert flow.vectors("plain") == flow.vectors("slow")
    assert plain["pushes"]["applied"] == slow["pushes"]["applied"] > 0
    assert set(slow["staleness"]) == {"0"}
    gradients = sum(slow["staleness"].values())
    assert plain["entries"] == slow["entries"] == gradients * 16
    assert slow["seconds"] >= gradients / 3 * 0.03


def test_a_worker_that_is_killed_in_step_holds_nobody_up(tmp_path: Path) -> None:
    """Its silence is enough, long before it would be lost for what the other one waits for."""
    random_dataset(tmp_path / "data", size=40)
    with Flow(tmp_path) as flow:
        pair = ("--workers", 2, "--lease", 2, "--patience", 10_000)
        server = flow.server("run", *IN_STEP, "--epochs", 1_000_000, *pair)
        address, _ = server.ready()
        one, other = (flow.worker(address, name=name) for name in ("anna", "bert"))
        until(lambda: flow.stats(address)["entries"] > 0, "something is trained")
        other.signal(signal.SIGKILL)
        server.says("event=lost subject=bert")
        seen = flow.stats(address)["entries"]
        until(lambda: flow.stats(address)["entries"] > seen, "the other one goes on")
        flow.run("finish", address)
        one.ends(0)
        server.ends(0)


def test_what_was_stopped_goes_on_with_the_batches_that_were_not_drawn_and_ends_at_the_same_bytes(
    tmp_path: Path,
) -> None:
    """A worker so slow that it is stopped long before the end; rows and their versions go on from the checkpoint."""
    random_dataset(tmp_path / "data", size=40)
    with Flow(tmp_path) as flow:
        whole = flow.train("whole", "--workers", 1, *IN_STEP, "--json").ends(0).json
        first = flow.server("run", *IN_STEP)
        address, _ = first.ready()
        worker = flow.start("worker", "data", "--server", address, "--latency", "1s")
        until(lambda: flow.stats(address)["entries"] > 0, "something is trained")
        flow.run("finish", address)
        worker.ends(0)
        first.ends(0)
        counted = checkpoint.read_versions(tmp_path / "run", "final", 1)
        _, facts = checkpoint.read(tmp_path / "run", "final", 1)
        assert counted is not None
        assert counted.max() > 0
        assert facts["updates"] == facts["gradients"] >= counted.max()
        assert 0 < facts["entries"] < whole["entries"]
        assert TrainingOptions.from_message(facts["options"]).consistency == "sync"
        again = flow.server("run", "--resume")
        flow.worker(again.ready()[0]).ends(0)
        again.ends(0)
        assert flow.vectors("run") == flow.vectors("whole")
    later = checkpoint.read_versions(tmp_path / "run", *checkpoint.newest(tmp_path / "run"))
    assert later is not None
    assert (later >= counted).all()
    assert later.sum() > counted.sum()
