"""Ray over two machines without a common folder: a shard and a worker are killed, and the bytes stay the same."""

from __future__ import annotations

import contextlib
import re
import secrets
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from handmade import random_dataset
from machines import Machines, missing
from processes import LASTING, PROGRAM, Flow, Running, until

pytest.importorskip("ray", reason="needs the extra 'ray'")
pytestmark = [pytest.mark.timeout(900), pytest.mark.skipif(bool(missing()), reason=missing() or "no reason")]
START_S = 400.0
EPOCHS = 100
RAY = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"]
"""`ray start`; one core for shard 0 beside the driver, three for all others on the other machine."""


@pytest.fixture
def session() -> Iterator[Path]:
    """A folder for Ray, with a name short enough for its sockets."""
    folder = Path(tempfile.mkdtemp(prefix="gw-ray-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def ray_on(flow: Flow, command: list[str], *words: str, **environment: str) -> Iterator[Running]:
    """A machine's part of a Ray cluster, which ends with the block."""
    node = flow.start(*words, "--object-store-memory", 80_000_000, program=command, **environment)
    try:
        node.says("Ray runtime started", START_S)
        yield node
    finally:
        node.signal(signal.SIGTERM)
        until(lambda: not node.running, "Ray ends")


def test_two_machines_share_no_folder(tmp_path: Path, session: Path) -> None:
    hidden = [tmp_path, session, Path("/dev/shm")]
    random_dataset(tmp_path / "data", size=40)
    with Flow(tmp_path) as flow, Machines(hidden) as machines, contextlib.ExitStack() as cluster:
        flow.run("keys", "keys")
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        ours = {**token, "XDG_CACHE_HOME": str(tmp_path / "cache")}
        address = f"{machines.addresses[0]}:6379"
        head = ["--head", "--port", "6379", "--include-dashboard", "false", "--temp-dir", str(session)]

        def ray(number: int, *words: str) -> Running:
            where = ("--node-ip-address", machines.addresses[number - 1])
            return cluster.enter_context(ray_on(flow, machines.on(number, *RAY), *where, *words, **ours))

        ray(1, *head, "--num-cpus", "1")
        second = ray(2, "--address", address, "--num-cpus", "3")
        train = flow.train(
            "run", "--servers", 2, "--workers", 2, "--epochs", EPOCHS, "--checkpoint-every", 7, "--keys", "keys",
            "--launcher", "ray", "--address", address, *LASTING, program=machines.on(1, *PROGRAM), **ours,
        )  # fmt: skip
        copies = tmp_path / "run" / "checkpoints"
        until(lambda: any(copies.glob("round-*.shard-1-of-2")) or not train.running, lambda: train.story, START_S)
        until(lambda: {"server 1", "worker 0"} <= second.family().keys() or not train.running, "both run", START_S)
        roles = second.family()
        keeper = roles["server 1"].parent()
        assert keeper is not None
        roles["worker 0"].kill()
        keeper.kill()
        train.ends(0, START_S)
        assert (copies / ".generation-000001").exists(), "it was over too soon to show anything"
        flow.train("calm", "--workers", 1, "--epochs", EPOCHS).ends(0)
        assert flow.vectors("run") == flow.vectors("calm")
        assert "event=left" in (tmp_path / "run" / "logs" / "worker-0.log").read_text()
        assert len([*(tmp_path / "run" / "logs").glob("*.log")]) == 4  # those of the other machine, too
        assert not (tmp_path / "cache" / "glovewire" / "datasets").exists()  # the first machine needs no copy
        secret = [re.findall(rb'secret = "(.+)"', path.read_bytes())[0] for path in (tmp_path / "keys").glob("*.key")]
        for file in (path for folder in (tmp_path / "run", session) for path in folder.rglob("*") if path.is_file()):
            content = file.read_bytes()
            assert not any(each in content for each in secret), file
