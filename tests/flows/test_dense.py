"""Dense models with real processes: a pool of workers, one of which is killed, and a shard that is killed."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from forked import programs_fork, warm_context
from processes import FREE, Flow, until

from glovewire.cli.main import program
from glovewire.common.storage.run_folder import load_tensors
from glovewire.common.transport.curve_keys import make_keys
from glovewire.launch.serving import Serving, serving
from glovewire.worker.dense.client import Client

TARGET = np.arange(3000, dtype=np.float32).reshape(30, 100) / 1000


@pytest.fixture(autouse=True)
def _forks() -> Iterator[None]:
    with programs_fork():
        yield


def work(addresses: list[str], rank: int, doomed: bool, keys: Path | None) -> int:
    """Walk towards the target until the run is over; the doomed one is killed on its way."""
    pushed = 0
    with Client(addresses, f"w{rank}", keys=keys) as ps:
        ps.create({"x": np.zeros_like(TARGET), "n": np.array(rank)})
        for parameters in ps.steps():
            ps.push({"x": parameters["x"] - TARGET}, loss=1.0)
            pushed += 1
            if doomed and pushed == 3:
                os.kill(os.getpid(), signal.SIGKILL)
    return pushed


def start(
    addresses: list[str], rank: int, *, doomed: bool = False, keys: Path | None = None
) -> multiprocessing.process.BaseProcess:
    process = warm_context().Process(target=work, args=(addresses, rank, doomed, keys))
    process.start()
    return process


def ended(workers: list[multiprocessing.process.BaseProcess]) -> list[int | None]:
    """How each of them ended, once all have."""
    for worker in workers:
        worker.join(180)
    codes = [worker.exitcode for worker in workers]
    for worker in workers:
        worker.close()
    return codes


def taking_part(place: Serving) -> set[str]:
    """Names of the workers that shard 0 knows."""
    said = CliRunner().invoke(program, ["stats", place.addresses[0], "--json"])
    return set(re.findall(r'"name": "(\w+)"', said.output))


def on_disk(run: Path) -> set[str]:
    """Labels of the checkpoints that both shards have written."""
    names = [path.name for path in (run / "checkpoints").glob("update-*")]
    first, second = ({name.partition(".")[0] for name in names if name.endswith(f".shard-{k}-of-2")} for k in (0, 1))
    return first & second


def test_a_killed_worker_costs_nobody_else_and_a_killed_shard_comes_back(tmp_path: Path) -> None:
    with serving(tmp_path / "run", 2, checkpoint_every=20, optimizer="sgd", learning_rate=0.01) as place:
        workers = [start(place.addresses, rank, doomed=rank == 0) for rank in range(3)]
        with Client(place.addresses, "eye", observe=True) as eye:
            eye.attach()
            workers[0].join(180)
            until(lambda: {"w1", "w2"} <= taking_part(place), "both others take part: processes start when they can")
            eye.pull(after=60)
            until(lambda: on_disk(tmp_path / "run"), "both shards have written a checkpoint of the same update")
            lost = place.servers[1]
            lost.process.kill()
            until(lambda: place.servers[1] is not lost, "the shard is started again")
            eye.pull()
            again = eye.updates
            assert again >= 20  # from a checkpoint
            eye.pull(after=again + 50)
            assert [worker.exitcode for worker in workers] == [-signal.SIGKILL, None, None]
            eye.finish()
        assert ended(workers) == [-signal.SIGKILL, 0, 0]
    kept, manifest = load_tensors(tmp_path / "run")
    assert manifest.facts["updates"] >= again + 50
    assert np.abs(kept["x"] - TARGET).mean() < 0.8 * np.abs(TARGET).mean()


def test_a_worker_that_is_killed_in_step_does_not_stop_the_others(tmp_path: Path) -> None:
    """The doomed one dies with a step half done, for which the others wait. All of it behind keys."""
    keys = tmp_path / "keys"
    make_keys(keys)
    with serving(tmp_path / "run", workers=3, consistency="sync", optimizer="sgd", lease_s=3, keys=keys) as place:
        workers = [start(place.addresses, rank, doomed=rank == 0, keys=keys) for rank in range(3)]
        with Client(place.addresses, "eye", observe=True, keys=keys) as eye:
            eye.attach()
            workers[0].join(180)
            assert workers[0].exitcode == -signal.SIGKILL
            eye.pull(after=30)
            said = CliRunner().invoke(program, ["stats", place.addresses[0], "--keys", str(keys)])
            assert " examples/s\n  loss      " in said.output, said.output
            eye.finish()
        assert ended(workers) == [-signal.SIGKILL, 0, 0]
    assert load_tensors(tmp_path / "run")[1].facts["updates"] >= 30


def test_an_observer_that_was_busy_when_the_run_ended_hears_so(tmp_path: Path) -> None:
    """It is not waited for, so it asks a server that is gone: the last word of that has come before."""
    with (
        serving(tmp_path / "run", consistency="async", optimizer="sgd", steps=20) as place,
        Client(place.addresses, "eye", observe=True) as eye,
    ):
        worker = start(place.addresses, 0)
        eye.attach()
        assert ended([worker]) == [0]
        until(lambda: not place.servers[0].running, "the server has ended")
        eye.score("test accuracy", 50.0)
        assert eye.over


def test_who_comes_when_all_is_done_hears_so(tmp_path: Path) -> None:
    """A pool may start its last worker when the others have left nothing to do: that is nobody's fault."""
    with serving(tmp_path / "run", workers=2, consistency="async", optimizer="sgd", steps=20) as place:
        for rank in range(2):
            assert ended([start(place.addresses, rank)]) == [0]
    facts = load_tensors(tmp_path / "run")[1].facts
    assert (facts["updates"], facts["examples"]) == (20, 20)
    assert {"examples_per_second", "mean_gradient_norm"} < facts.keys()
    assert not {"entries", "mean_vector_norm", "bias_only_loss", "epochs"} & facts.keys()


def test_shards_that_are_stopped_before_the_first_worker_comes_can_be_started_again(tmp_path: Path) -> None:
    """What they leave then is no checkpoint, and nothing can be asked for."""
    how = ("--objective", "tensors", "--out", "run", "--bind", FREE, "--publish", FREE, "--recover")
    with Flow(tmp_path) as flow:
        for _ in range(2):
            shards = [flow.start("server", *how, "--shard", f"{number}/2") for number in range(2)]
            places = [shard.ready()[0] for shard in shards]
            flow.start("checkpoint", *places, "--timeout", 1).fails("have no values yet")
            shards[0].signal(signal.SIGTERM)
            shards[0].fails("no worker has brought values for all tensors: run holds none")
            shards[1].ends(0)
            assert not list((tmp_path / "run" / "checkpoints").glob("final*"))
