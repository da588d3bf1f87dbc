"""A shard that is started again alone, as containers do it: the others go back with it, the bytes stay the same."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import pytest
from handmade import random_dataset
from processes import LASTING, Flow, Running, free_port, until

EPOCHS = 100


@pytest.fixture(scope="module")
def flow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flow]:
    folder = tmp_path_factory.mktemp("lives")
    random_dataset(folder / "data", size=40)
    with Flow(folder) as flow:
        flow.train("undisturbed", "--workers", 1, "--epochs", EPOCHS).ends()
        yield flow


def restartable(flow: Flow, out: str, shard: int, address: str, program: list[str] | None = None) -> Running:
    return flow.start(
        "server", "data", "--out", out, "--shard", f"{shard}/2", "--recover", "--checkpoint-every", 7, "--dim", 8,
        "--epochs", EPOCHS, "--bind", address, "--publish", "tcp://127.0.0.1:0", "--json", program=program,
    )  # fmt: skip


def test_the_others_go_back_with_a_shard_that_is_started_again(flow: Flow) -> None:
    """Shard 0, which has the leases; the simulation kills every one."""
    out = "lost"
    addresses = [f"tcp://127.0.0.1:{free_port()}" for _ in range(2)]
    servers = [restartable(flow, out, shard, address) for shard, address in enumerate(addresses)]
    workers = [flow.worker(*addresses, name=name, how=LASTING) for name in ("anna", "bert")]
    until(lambda: any(flow.path(out, "checkpoints").glob("round-*.shard-1-of-2")), "a checkpoint is written")
    servers[0].process.kill()
    servers[0].process.wait()
    servers[0] = restartable(flow, out, 0, addresses[0])
    for process in (*servers, *workers):
        process.ends()
    assert "event=superseded" in servers[1].err
    assert servers[0].json["ending"] == "complete"
    assert flow.vectors(out) == flow.vectors("undisturbed")
    assert restartable(flow, out, 0, addresses[0]).ends().json["ending"] == "over"


KILLED = """
import os, signal
from glovewire.server.checkpoints import files as checkpoint
checkpoint.assemble = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
from glovewire.cli.main import main
main()
"""
"""A server that is killed when it puts the vectors together, which takes much memory."""


def test_what_a_shard_was_killed_before_it_does_when_it_is_started_again(flow: Flow) -> None:
    """The other shard is done then, and nothing starts it again."""
    addresses = [f"tcp://127.0.0.1:{free_port()}" for _ in range(2)]
    first = restartable(flow, "killed", 0, addresses[0], [sys.executable, "-c", KILLED])
    second = restartable(flow, "killed", 1, addresses[1])
    flow.worker(*addresses).ends()
    first.ends(-9)
    second.ends()
    assert not flow.path("killed", "vectors.npy").exists()
    again = restartable(flow, "killed", 0, addresses[0]).ends()
    assert flow.vectors("killed") == flow.vectors("undisturbed")
    assert again.json["ending"] == "complete"
    assert again.json["loss"] > 0
    assert json.loads(flow.path("killed", "manifest.json").read_text())["facts"]["loss"] == again.json["loss"]
    assert restartable(flow, "killed", 1, addresses[1]).ends().json["ending"] == "over"
    assert restartable(flow, "killed", 0, addresses[0]).ends().json["ending"] == "over"
