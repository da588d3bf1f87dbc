"""Server, workers, monitor and questions started one by one, in any order, as in the README's walk."""

from __future__ import annotations

import json
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from handmade import random_dataset
from processes import LASTING, Flow, free_port, until
from source import ROOT

EPOCHS = 100
LONG = 100_000
README = Path(__file__).parents[2] / "README.md"


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


def test_the_walk_of_the_readme_works_as_pasted(flow: Flow) -> None:
    found = re.search(r"^## By hand\n.*?^```bash\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    commands = found[1].replace("data/pydoc", "data")
    for port in set(re.findall(r"tcp://[\d.]+:(\d+)", commands)):
        commands = commands.replace(port, str(free_port()))
    assert re.search(r"^wait$", commands, re.MULTILINE)
    commands = re.sub(r"&$", "& jobs+=($!)", commands, flags=re.MULTILINE)
    commands = re.sub(r"^wait$", 'for job in "${jobs[@]}"; do wait "$job"; done', commands, flags=re.MULTILINE)
    script = "set -euo pipefail\n" + commands
    environment = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    walk = flow.start("-c", script, program=["bash"], **environment).ends(0)
    assert "error" not in walk.err, walk.story
    assert "ready tcp://" in walk.out
    assert re.search(r"checkpoint round-\d+ is written", walk.out)
    out = re.search(r"--out (\S+)", commands)
    assert out is not None
    assert json.loads(flow.path(out[1], "manifest.json").read_text())["facts"]["ending"] == "asked"
    assert flow.run("neighbours", out[1], "w01").out


def test_workers_before_the_server_and_a_server_before_workers(flow: Flow) -> None:
    port, stream = free_port(), free_port()
    address = f"tcp://127.0.0.1:{port}"
    early = flow.worker(address, name="early", how=LASTING)
    monitor = flow.start("monitor", f"tcp://127.0.0.1:{stream}", "--log", "all.jsonl", "--json")
    question = flow.start("stats", address, "--timeout", 180)
    server = flow.start(
        "server", "data", "--out", "run", "--bind", address, "--publish", f"tcp://127.0.0.1:{stream}", "--dim", 8,
        "--epochs", 50,
    )  # fmt: skip
    server.ready()
    late = flow.worker(address, name="late")
    for process in (server, early, late, monitor, question):
        process.ends(0)
    assert "shard 0/1" in question.out
    assert monitor.json["finished"] == 1
    assert monitor.json["entries"] == json.loads(flow.path("run", "manifest.json").read_text())["facts"]["entries"]
    samples = [json.loads(line) for line in flow.path("all.jsonl").read_text().splitlines()]
    assert {sample.get("topic", "loss") for sample in samples} >= {"loss", "event", "server", "worker"}


def test_a_worker_that_leaves_early_gives_its_blocks_to_the_others(flow: Flow, alone: bytes) -> None:
    """By Ctrl-C; one that gets SIGTERM is in test_leftovers.py."""
    server = flow.server("run", "--epochs", EPOCHS)
    address, _ = server.ready()
    anna, bert = (flow.worker(address, name=name, how=LASTING) for name in ("anna", "bert"))
    until(lambda: "subject=anna" in server.err and "subject=bert" in server.err, "both have joined")
    anna.signal(signal.SIGINT)
    assert "ending=interrupted" in anna.ends(0).err
    bert.ends(0)
    server.ends(0)
    assert "event=left subject=anna" in server.err
    assert "event=lost" not in server.err
    assert server.err.count("subject=anna") == 2  # joined and left, once each
    assert flow.vectors("run") == alone


def test_finish_ends_every_shard_and_keeps_the_vectors(flow: Flow) -> None:
    servers = [flow.server("run", "--epochs", LONG, "--shard", f"{shard}/3") for shard in range(3)]
    addresses = [server.ready()[0] for server in servers]
    workers = [flow.worker(*addresses, name=name) for name in ("anna", "bert")]
    until(lambda: flow.stats(addresses[0])["epoch"] >= 1, "an epoch is trained")
    flow.start("finish", addresses[0]).fails("give the address of every shard once", "is shard 0/3", status=2)
    cut = flow.run("checkpoint", *addresses, "--json").json["checkpoints"]
    assert len(cut) == 3
    assert len(set(cut)) == 1
    assert len(list(flow.path("run", "checkpoints").glob(f"{cut[0]}.shard-*-of-3"))) == 3
    told = flow.run("finish", *reversed(addresses), "--json").json
    assert [one["workers"] for one in told["finishing"]] == [2, 2, 2]
    for process in (*servers, *workers):
        process.ends(0)
    assert flow.path("run", "vectors.npy").exists()


def test_a_server_told_to_stop_keeps_the_vectors(flow: Flow) -> None:
    """By SIGTERM; Ctrl-C is in test_shutdown.py."""
    server = flow.server("run", "--epochs", LONG)
    address, stream = server.ready()
    worker, monitor = flow.worker(address), flow.start("monitor", stream, "--json")
    server.says("event=epoch")
    until(lambda: monitor.out, "the monitor shows something")
    server.signal(signal.SIGTERM)
    for process in (server, worker, monitor):
        process.ends(0)
    assert flow.path("run", "vectors.npy").exists()


def test_compose_resumes_a_run_that_was_stopped_and_replaces_one_that_is_complete(flow: Flow) -> None:
    """Seen to fail: the script looked for a name that the manifest no longer has, and removed what was stopped, too."""
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    script = compose["services"]["prepare"]["command"][0].replace("$$", "$")
    script = re.sub(r"(?<![\w}])/(?=(data|runs|keys|\$role-keys)/)", f"{flow.folder}/volumes/", script)
    flow.path("volumes/data").mkdir(parents=True)
    flow.path("volumes/data/text").symlink_to(flow.path("data"))
    environment = {"CORPUS": "text", "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    run = flow.path("volumes/runs/text")
    for epochs, says, rest in (
        (LONG, "going on where it was stopped", True),
        (EPOCHS, "the last one was complete", False),
    ):
        server = flow.server(str(run), "--epochs", epochs, "--checkpoint-every", 5)
        flow.worker(server.ready()[0], how=() if epochs == EPOCHS else LASTING)
        if epochs == LONG:
            server.says("event=epoch")
            server.signal(signal.SIGTERM)
        server.ends(0)
        assert says in flow.start("-euc", script, program=["sh"], **environment).ends(0).out
        assert run.exists() == rest
        if rest:
            assert any(run.glob("checkpoints/*/manifest.json"))
            assert not run.joinpath("manifest.json").exists()
            shutil.rmtree(run)


def test_shards_stopped_one_after_the_other_keep_the_vectors(flow: Flow) -> None:
    servers = [flow.server("run", "--epochs", LONG, "--shard", f"{shard}/2") for shard in range(2)]
    worker = flow.worker(*[server.ready()[0] for server in servers])
    servers[0].says("event=epoch")
    for server in servers[::-1]:
        server.signal(signal.SIGTERM)
    for process in (*servers, worker):
        process.ends(0)
    assert flow.path("run", "vectors.npy").exists()


def test_the_config_of_a_server_starts_it_again(flow: Flow) -> None:
    for out, more in (
        ("first", ["--epochs", 3]),
        ("again", ["--epochs", 3, "--config", flow.path("first/config.toml")]),
    ):
        server = flow.server(out, *more)
        flow.worker(server.ready()[0]).ends(0)
        server.ends(0)
    assert flow.vectors("first") == flow.vectors("again")
