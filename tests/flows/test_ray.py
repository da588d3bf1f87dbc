"""Ray as the launcher on one machine: killed processes come back, and an interrupted run goes on to the same bytes.

test_ray_apart.py trains to the end on Ray.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import numpy as np
import psutil
import pytest
from forked import PROGRAM
from handmade import random_dataset
from processes import Flow, Running, until

pytest.importorskip("ray", reason="needs the extra 'ray'")
pytestmark = pytest.mark.timeout(900)
START_S = 400.0
EPOCHS = 100


@pytest.fixture(scope="module")
def flow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flow]:
    folder = tmp_path_factory.mktemp("ray")
    random_dataset(folder / "data", size=40)
    with Flow(folder) as flow:
        flow.train("calm", "--workers", 1, "--epochs", EPOCHS).ends()
        yield flow


def parent(run: Running, role: str) -> psutil.Process:
    """The actor that keeps a role's process."""
    found = run.family()[role].parent()
    assert found is not None
    assert found.pid != run.pid
    return found


def test_processes_are_killed_and_all_is_interrupted_and_the_bytes_stay_the_same(flow: Flow) -> None:
    spread = ["--workers", 2, "--servers", 2, "--epochs", EPOCHS, "--checkpoint-every", 7, "--latency", "60ms"]
    train = flow.train("run", *spread, "--launcher", "ray", program=PROGRAM)
    rounds, log = flow.path("run", "checkpoints"), flow.path("run", "logs", "worker-0.log")

    def joined(times: int) -> bool:
        return log.exists() and log.read_text().count("event=joined") >= times

    until(lambda: any(rounds.glob("round-*.shard-1-of-2")) or not train.running, "a checkpoint is written", START_S)
    until(lambda: joined(1) or not train.running, "the worker is there", START_S)
    until(lambda: {"server 1", "worker 0"} <= train.family().keys() or not train.running, "both run", START_S)
    shard, worker = parent(train, "server 1"), train.family()["worker 0"]
    os.kill(shard.pid, signal.SIGKILL)
    os.kill(worker.pid, signal.SIGKILL)
    until(lambda: joined(2) or not train.running, "the worker is back", START_S)
    assert (rounds / ".generation-000001").exists(), "so is the shard"
    train.signal(signal.SIGINT)
    train.fails("interrupted by SIGINT", "--resume continues from the newest checkpoint")
    assert flow.train("run", "--resume", "--json").ends(0).json["ending"] == "complete"
    assert flow.vectors("run") == flow.vectors("calm")


def test_preprocessing_leaves_the_same_bytes(flow: Flow) -> None:
    lines = np.random.default_rng(0).zipf(1.5, (2000, 20)) % 500
    flow.path("text.txt").write_text("".join(" ".join(f"w{n}" for n in line) + "\n" for line in lines))
    flow.run("preprocess", "text.txt", "--out", "here", "--processes", 1, "--phrases", 1)
    flow.start("preprocess", "text.txt", "--out", "there", "--processes", 2, "--engine", "ray", "--phrases", 1).ends(
        0, START_S
    )
    files = sorted(path.name for path in flow.path("here").iterdir())
    assert files == sorted(path.name for path in flow.path("there").iterdir())
    assert all(flow.path("here", name).read_bytes() == flow.path("there", name).read_bytes() for name in files)


@pytest.mark.parametrize(
    "words",
    [
        ["--launcher", "ray", "--store", "shared"],
        ["--address", "auto"],
        ["--launcher", "ray", "--address", "ray://127.0.0.1:10001"],
    ],
)
def test_what_cannot_be_had_together_is_refused(flow: Flow, words: list[str]) -> None:
    flow.train("refused", *words).fails("ray", status=2)
    assert not flow.path("refused").exists()
