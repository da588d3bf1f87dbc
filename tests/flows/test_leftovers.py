"""However training and measuring end, nobody is left: conftest fails a test that leaves a process, these name which."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from handmade import random_dataset
from processes import LASTING, Flow, Running, until

EPOCHS = 100
LONG = ["--epochs", 100_000, "--workers", 2]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The vectors that one worker brings undisturbed."""
    folder = tmp_path_factory.mktemp("alone")
    random_dataset(folder / "data", size=40)
    with Flow(folder) as flow:
        flow.train("run", "--workers", 1, "--epochs", EPOCHS).ends()
        return flow.vectors("run")


@pytest.fixture
def flow(tmp_path: Path) -> Iterator[Flow]:
    random_dataset(tmp_path / "data", size=40)
    with Flow(tmp_path) as flow:
        yield flow


def under_way(flow: Flow, train: Running, out: str = "run") -> dict[str, psutil.Process]:
    """The processes of a training of two workers that has losses on record already."""
    log, metrics = flow.path(out, "logs", "server-0.log"), flow.path(out, "metrics.jsonl")
    until(
        lambda: not train.running or (metrics.exists() and log.read_text().count("event=joined") == 2),
        "both workers train",
    )
    assert train.running, train.story
    return train.family()


def gone(family: dict[str, psutil.Process]) -> None:
    """Every process has ended, dead ones that nobody has asked about included."""
    for role, process in family.items():
        until(lambda p=process: not p.is_running() or p.status() == psutil.STATUS_ZOMBIE, f"{role} is gone", 25)


def test_after_an_interruption_the_vectors_are_kept(flow: Flow) -> None:
    train = flow.train("run", *LONG, "--servers", 2)
    family = under_way(flow, train)
    assert family.keys() == {"server 0", "server 1", "worker 0", "worker 1"}
    train.signal(signal.SIGTERM)
    train.fails("interrupted by SIGTERM", "the vectors so far are in run")
    assert not any(process.is_running() for process in family.values())
    flow.run("info", "run")


def test_what_was_interrupted_goes_on_to_the_same_bytes(flow: Flow, alone: bytes) -> None:
    train = flow.train("run", "--epochs", EPOCHS, "--workers", 2, "--servers", 2, "--latency", "60ms")
    under_way(flow, train)
    train.signal(signal.SIGINT)
    train.fails("interrupted by SIGINT", "--resume continues from the newest checkpoint")
    assert flow.vectors("run") != alone
    again = flow.run("train", "data", "--out", "run", "--resume", "--quiet", "--epochs", 3, "--dim", 8)
    assert again.err == f"note: the run keeps the options it was started with: epochs {EPOCHS}\n"
    assert flow.vectors("run") == alone


def test_a_run_that_goes_on_is_not_resumed_by_another_training(flow: Flow, alone: bytes) -> None:
    train = flow.train("run", "--epochs", EPOCHS, "--workers", 1, "--checkpoint-every", 5, *LASTING)
    rounds = flow.path("run", "checkpoints")
    until(lambda: any(rounds.glob("round-*")) or not train.running, "a checkpoint is written")
    again = flow.start("train", "data", "--out", "run", "--resume", "--quiet", "--workers", 1)
    again.fails("run run is in use by another glovewire train")
    train.ends(0)
    assert flow.path("run", "logs", "server-0.log").read_text().count("event=joined") == 1
    assert flow.vectors("run") == alone


def test_after_an_interruption_while_it_starts(flow: Flow) -> None:
    train = flow.train("run", *LONG)
    until(lambda: flow.path("run", "logs").exists(), "it starts its processes")
    train.signal(signal.SIGINT)
    train.fails("interrupted by SIGINT")


@pytest.mark.parametrize(
    "words",
    [["bench", "train", "data", *LONG], ["bench", "wire", "--seconds", 60], ["study", "speedup", "data", *LONG],
     ["study", "staleness", "data", "--workers", 2, "--epochs", 100_000, "--seconds", 100]],
    ids=["train", "wire", "speedup", "staleness"],
)  # fmt: skip
def test_after_a_measurement_was_interrupted(flow: Flow, words: list[str | float]) -> None:
    (scratch := flow.path("tmp")).mkdir()
    out = ["--out", "study"] if words[0] == "study" else []
    bench = flow.start(*words, *out, TMPDIR=str(scratch))
    started = psutil.Process(bench.pid)
    until(lambda: not bench.running or len(started.children(recursive=True)) > 1, "it has started processes")
    family = {f"process {child.pid}": child for child in started.children(recursive=True)}
    bench.signal(signal.SIGTERM)
    bench.fails("interrupted by SIGTERM: every process of the run was ended")
    gone(family)
    assert not list(scratch.iterdir())


def test_killed_processes_are_replaced_and_nothing_is_lost(flow: Flow, alone: bytes) -> None:
    train = flow.train("run", "--epochs", EPOCHS, "--workers", 2, "--servers", 2, "--checkpoint-every", 15, *LASTING)
    family = under_way(flow, train)
    for role in ("worker 1", "server 1"):  # in this order, because all are started again with a server
        family[role].kill()
        until(
            lambda role=role: not train.running or train.family().get(role, family[role]) != family[role],
            f"{role} is started again",
        )
        assert train.running, train.story
    train.ends(0)
    assert not list(flow.path("run").rglob("*.partial"))
    assert flow.vectors("run") == alone


def test_after_every_worker_was_told_to_leave(flow: Flow) -> None:
    train = flow.train("run", *LONG)
    family = under_way(flow, train)
    for role in ("worker 0", "worker 1"):
        family[role].terminate()
    train.fails("every worker has left, and training is not complete")


def test_a_worker_that_leaves_does_not_end_the_run(flow: Flow, alone: bytes) -> None:
    train = flow.train("run", "--epochs", EPOCHS, "--workers", 2, *LASTING)
    under_way(flow, train)["worker 0"].terminate()
    train.ends(0)
    assert flow.vectors("run") == alone


def test_after_the_parent_was_killed(flow: Flow) -> None:
    train = flow.train("run", *LONG, "--servers", 2)
    family = under_way(flow, train)
    train.process.kill()
    train.ends(-signal.SIGKILL)
    gone(family)


def test_a_worker_that_is_told_to_stop_after_its_server_was_killed(flow: Flow) -> None:
    server = flow.server("run", "--epochs", 100_000)
    address, _ = server.ready()
    worker = flow.worker(address)
    worker.says("event=joined")
    server.process.kill()
    server.ends(-signal.SIGKILL)
    worker.signal(signal.SIGTERM)
    worker.ends(0, seconds=25)  # and not the 30 s that it waits for a silent server


@pytest.mark.parametrize(
    "how",
    [["--optimizer", "sgd", "--lr", 1e6], ["--optimizer", "sgd", "--lr", 1e6, "--schedule", "minibatch"],
     ["--objective", "sgns", "--init-scale", 1e30]],
    ids=["blocks", "minibatch", "skip-gram"],
)  # fmt: skip
def test_after_training_diverged(flow: Flow, how: list[str | float]) -> None:
    flow.train("run", *how, "--workers", 2, "--servers", 2).fails("the loss became", "use a smaller learning rate")
    assert not flow.path("run", "vectors.npy").exists()


@pytest.mark.parametrize("store", ["local", "shared"])
def test_after_training_without_a_server_diverged(flow: Flow, store: str) -> None:
    """Seen to fail: the process ended with a traceback, and the training named only its exit status."""
    how = ["--optimizer", "sgd", "--lr", 1e6, "--store", store, "--workers", 2 if store == "shared" else 1]
    run = flow.train("run", *how)
    run.fails("the loss became", "use a smaller learning rate")
    assert not flow.path("run", "vectors.npy").exists()


def test_divergence_by_hand_is_told_everywhere(flow: Flow) -> None:
    server = flow.server("run", "--optimizer", "sgd", "--lr", 1e6)
    address, stream = server.ready()
    monitor = flow.start("monitor", stream)
    monitor.says("event=connected")
    worker = flow.worker(address)
    for process in (server, worker, monitor):
        process.fails("the loss became", "use a smaller learning rate")
