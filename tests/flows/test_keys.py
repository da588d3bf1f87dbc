"""Keys from `glovewire keys` to the last byte of the vectors, with real processes: every role, every question."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from handmade import random_dataset
from processes import FREE, Flow

PATIENT = ["--timeout", 180]


@pytest.fixture
def flow(tmp_path: Path) -> Iterator[Flow]:
    random_dataset(tmp_path / "data", size=40)
    with Flow(tmp_path) as flow:
        made = flow.run("keys", "k", "--json").json
        assert made["roles"] == {"worker": "worker", "monitor": "monitor", "admin": "admin"}
        yield flow


def test_a_local_training_with_keys_is_a_training(flow: Flow) -> None:
    (flow.path("similar.txt")).write_text("w0 w1 5\nw2 w3 4\nw4 w5 1\n")
    kept = flow.train("kept", "--workers", 2, "--servers", 2, "--keys", "k", "--watch", "similar.txt", "--epochs", 3)
    flow.train("open", "--workers", 1, "--epochs", 3).ends()
    kept.ends()
    assert "key=worker name=worker.w" in flow.path("kept", "logs", "server-0.log").read_text()
    assert flow.vectors("kept") == flow.vectors("open")


def test_a_server_with_keys_by_hand(flow: Flow) -> None:
    """It may listen anywhere without --insecure, and says nothing to those who have no key."""
    everywhere = "tcp://0.0.0.0:0"
    server = flow.start(
        "server", "data", "--out", "run", "--bind", everywhere, "--publish", everywhere, "--keys", "k", "--dim", 8,
        "--epochs", 100_000,
    )  # fmt: skip
    address, stream = (at.replace("0.0.0.0", "127.0.0.1") for at in server.ready())
    strangers = [flow.start(word, at, *PATIENT) for word, at in (("stats", address), ("monitor", stream))]
    strangers.append(flow.worker(address, name="stranger"))
    worker = flow.start("worker", "data", "--server", address, "--keys", "k/worker.key")
    monitor = flow.start("monitor", stream, "--keys", "k")
    for stranger in strangers:
        stranger.fails("asks for keys: say --keys")
    finish = flow.start("finish", address, "--keys", "k/worker.key", *PATIENT)
    finish.fails("may not end the run: use a key for the role admin")
    checkpoint = flow.start("checkpoint", address, "--keys", "k/monitor.key", *PATIENT)
    checkpoint.fails("may not ask for checkpoints: use a key for")
    flow.run("checkpoint", address, "--keys", "k", *PATIENT)
    shards = flow.run("stats", address, "--json", "--keys", "k", *PATIENT).json["shards"]
    assert shards[0]["entries"] > 0
    flow.run("finish", address, "--keys", "k", *PATIENT)
    for process in (worker, monitor, server):
        process.ends(0)
    assert "event=insecure" not in server.err
    assert "event=audit_joined where=127.0.0.1 key=worker name=worker." in server.err
    assert "event=audit_finish where=127.0.0.1 key=admin ending=asked" in server.err


def test_a_server_that_is_open_to_all_says_so_once(flow: Flow) -> None:
    server = flow.server("run", "--insecure")  # on loopback: nothing to say
    address, _ = server.ready()
    everywhere = flow.start(
        "server", "data", "--out", "all", "--insecure", "--bind", "tcp://0.0.0.0:0", "--publish", FREE
    )
    other, _ = everywhere.ready()
    for one in (address, other.replace("0.0.0.0", "127.0.0.1")):
        flow.run("finish", one)
    assert "insecure" not in server.ends(0).err
    assert everywhere.ends(0).err.count("event=insecure open_to_all=tcp://0.0.0.0:0") == 1
