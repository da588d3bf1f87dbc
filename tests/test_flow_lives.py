"""A shard that is started again alone, as containers do it: the others go back with it, the bytes stay the same."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from handmade import random_dataset
from processes import LASTING, Flow, Running, free_port, until

EPOCHS = 400


@pytest.fixture(scope="module")
def flow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flow]:
    folder = tmp_path_factory.mktemp("lives")
    random_dataset(folder / "data", size=40)
    with Flow(folder) as flow:
        flow.train("undisturbed", "--workers", 1, "--epochs", EPOCHS).ends()
        yield flow


def restartable(flow: Flow, out: str, shard: int, address: str) -> Running:
    return flow.start(
        "server", "data", "--out", out, "--shard", f"{shard}/2", "--recover", "--checkpoint-every", 20, "--dim", 8,
        "--epochs", EPOCHS, "--bind", address, "--publish", "tcp://127.0.0.1:0", "--json",
    )  # fmt: skip


@pytest.mark.parametrize("victim", [0, 1])
def test_the_others_go_back_with_a_shard_that_is_started_again(flow: Flow, victim: int) -> None:
    out = f"lost-{victim}"
    addresses = [f"tcp://127.0.0.1:{free_port()}" for _ in range(2)]
    servers = [restartable(flow, out, shard, address) for shard, address in enumerate(addresses)]
    workers = [flow.worker(*addresses, name=name, how=LASTING) for name in ("anna", "bert")]
    until(lambda: any(flow.path(out, "checkpoints").glob("round-*.shard-1-of-2")), "a checkpoint is written")
    servers[victim].process.kill()
    servers[victim].process.wait()
    servers[victim] = restartable(flow, out, victim, addresses[victim])
    for process in (*servers, *workers):
        process.ends()
    assert "event=overtaken" in servers[1 - victim].err
    assert servers[0].json["reason"] == "complete"
    assert flow.vectors(out) == flow.vectors("undisturbed")
    assert restartable(flow, out, victim, addresses[victim]).ends().json["reason"] == "nothing left to do"
