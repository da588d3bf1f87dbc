"""Whoever is told to stop, and whenever: the rows are kept, everybody says goodbye, and it takes seconds."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from forked import PROGRAM
from handmade import random_dataset
from processes import Flow, until

LONG = 100_000
SOON_S = 40.0  # a shard that nothing told would be waited for 60 s


@pytest.fixture
def flow(tmp_path: Path) -> Iterator[Flow]:
    random_dataset(tmp_path / "data", size=40)
    with Flow(tmp_path) as flow:
        yield flow


@pytest.mark.parametrize("victim", [0, 1])
def test_one_shard_alone_takes_the_others_with_it(flow: Flow, victim: int) -> None:
    """Nobody tells the other shard, and no worker does: its own mark in the run folder does."""
    servers = [flow.server("run", "--epochs", LONG, "--shard", f"{shard}/2") for shard in range(2)]
    worker = flow.worker(*[server.ready()[0] for server in servers])
    servers[0].says("event=epoch")
    servers[victim].signal(signal.SIGTERM)
    for server in servers:
        server.says("event=finished", SOON_S)  # it has done everything; Python's own end takes longer on a busy machine
    for process in (*servers, worker):
        process.ends(0)
    assert flow.path("run", "vectors.npy").exists()
    assert flow.run("info", "run/checkpoints/final.shard-1-of-2").out  # and can be gone on from


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("moment", ["imports", "compiles", "waits"])
def test_a_server_that_has_no_workers_yet(flow: Flow, moment: str, number: signal.Signals) -> None:
    server = flow.server("run", "--epochs", LONG, "--shard", "0/1", program=None if moment == "waits" else PROGRAM)
    if moment == "compiles":
        until(lambda: "numba" in Path(f"/proc/{server.pid}/maps").read_text(), "it has begun")
    elif moment == "waits":
        server.ready()
    else:
        until(lambda: "_zmq" in Path(f"/proc/{server.pid}/maps").read_text() or not server.running, "it has begun")
    server.signal(number)
    until(lambda: not server.running, "it ends")
    assert "Traceback" not in server.err
    if moment == "waits":
        assert server.process.returncode == 0
        assert flow.path("run", "vectors.npy").exists()
    else:
        assert server.process.returncode in (0, -signal.SIGTERM if number == signal.SIGTERM else 128 + number)
        assert not flow.path("run", "vectors.npy").exists()


def test_a_second_signal_does_not_wait(flow: Flow) -> None:
    """A worker that is stopped (SIGSTOP) would keep the server until the end of its patience."""
    server = flow.server("run", "--epochs", LONG)
    worker = flow.worker(server.ready()[0])
    server.says("event=epoch")
    worker.signal(signal.SIGSTOP)
    server.signal(signal.SIGTERM)
    until(lambda: "stopped" in flow.path("run/checkpoints/.shard-0-of-1").read_text(), "it has heard the first")
    server.signal(signal.SIGTERM)
    server.ends(-signal.SIGTERM)  # and not 0, as when it has waited
