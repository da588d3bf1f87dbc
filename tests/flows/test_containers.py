"""docker-compose.yml for real: built, healthy, over the bridge network, killed from outside, cut off, ended with 0.

CI builds the image while it installs libraries (.ci/run); here that build is found in the cache.
"""

from __future__ import annotations

import signal
import threading
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from containers import Composed, engine, run, until
from processes import Flow

pytestmark = [
    pytest.mark.container,
    pytest.mark.timeout(1000),
    pytest.mark.skipif(not engine(), reason="needs a Docker engine and Compose"),
]
RUNNING = {"server-0-1", "server-1-1", "worker-1", "worker-2", "worker-3", "monitor-1"}
EPOCHS = 140
LATENCY = "30ms"
"""Of each of the 36 pushes of two epochs: three workers take 25 s on a fast machine. Health is checked every 15 s."""
CUT_S = 10.0


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A corpus of a thousand words whose training lasts long enough to look at it, and to hurt it."""
    run("docker", "build", "--quiet", "--tag", "glovewire", ".", seconds=900)
    folder = tmp_path_factory.mktemp("text")
    folder.chmod(0o755)  # the containers' user reads it
    words = np.random.default_rng(0).zipf(1.3, (4000, 20)) % 1000
    (folder / "zipf.txt").write_text("".join(" ".join(f"w{word}" for word in line) + "\n" for line in words))
    return {
        "TEXT": str(folder), "CORPUS": "zipf.txt", "PREPROCESS_ARGS": "--partitions 8", "DIM": "64",
        "EPOCHS": str(EPOCHS), "SERVER_ARGS": "--checkpoint-every 14", "WORKER_ARGS": f"--latency {LATENCY}",
    }  # fmt: skip


@pytest.fixture(scope="module")
def undisturbed(settings: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of a run to which nothing was done but look at it."""
    out = tmp_path_factory.mktemp("out")
    with Composed("glovewire-test-calm", {**settings, "OUT": str(out)}) as composed:
        composed.compose("up", "--detach", "--no-build")
        for name in sorted(RUNNING):
            until(lambda name=name: composed.healthy(name), f"{name} is healthy")
        with urllib.request.urlopen(f"http://127.0.0.1:{composed.port}/", timeout=10) as page:
            assert b"Glovewire" in page.read()
        until(lambda: composed.epoch() >= 5, "training is under way")
        received = int(composed.inside("server-1-1", "cat", "/sys/class/net/eth0/statistics/rx_bytes"))
        assert received > 1 << 20  # what crossed the bridge network
        codes = composed.ends()
        assert codes == dict.fromkeys(RUNNING | {"prepare-1", "vectors-1"}, 0), composed.story()
    return out


def test_a_run_ends_by_itself_and_leaves_its_vectors(undisturbed: Path, tmp_path: Path) -> None:
    vectors = {"vectors.npy", "ngrams.npy", "ngram_buckets.npy", "vocabulary.txt", "counts.npy", "manifest.json"}
    left = vectors | {"metrics.jsonl", "config.toml", "loss.png"}
    assert {path.name for path in undisturbed.iterdir()} == left
    assert np.load(undisturbed / "vectors.npy").shape[1] == 64
    with Flow(tmp_path) as flow:
        assert "finished" in flow.run("monitor", "--replay", undisturbed).out
        assert "loss" in flow.run("info", undisturbed).out


def test_killed_and_cut_off_containers_cost_nothing_but_time(
    undisturbed: Path, settings: dict[str, str], tmp_path: Path
) -> None:
    with Composed("glovewire-test-hurt", {**settings, "OUT": str(tmp_path)}) as composed:
        composed.compose("up", "--detach", "--no-build")
        until(lambda: composed.epoch() >= 18, "there is a checkpoint to go back to")
        composed.kill("worker-1")
        composed.kill("server-1-1")
        for name in ("worker-1", "server-1-1"):
            until(lambda name=name: composed.healthy(name, restarts=1), f"{name} is back and healthy")
        composed.network("disconnect", "worker-2")
        threading.Event().wait(CUT_S)  # what it holds stays its own for that long: the others come to a stop
        composed.network("connect", "worker-2")
        assert composed.containers()["server-0-1"]["State"]["Running"], "it was over too soon to show anything"
        codes = composed.ends()
        assert set(codes.values()) == {0}, composed.story()
        assert "event=superseded" in composed.compose("logs", "server-0")
    assert (tmp_path / "vectors.npy").read_bytes() == (undisturbed / "vectors.npy").read_bytes()


def test_isolated_containers_share_no_volume_and_one_loses_its_own(
    undisturbed: Path, settings: dict[str, str], tmp_path: Path
) -> None:
    """The bytes are those of the run with a shared folder, and those of one machine."""
    with Flow(tmp_path) as flow:
        flow.run("keys", "keys")
        with Composed("glovewire-test-apart", {**settings, "KEYS": str(tmp_path / "keys")}) as composed:
            composed.compose("up", "--detach", "--no-build", "isolated")
            volumes = [
                mount["Name"] for one in composed.containers().values() for mount in one["Mounts"] if "Name" in mount
            ]
            assert len(volumes) == len(set(volumes)) == 2
            until(lambda: composed.epoch("isolated-0-1") >= 18, "there is a checkpoint to go back to")
            composed.kill("isolated-worker-1")
            composed.kill("isolated-1-1", signal.SIGSTOP)  # it writes nothing more
            composed.wipe("isolated-1")
            composed.kill("isolated-1-1")
            until(lambda: composed.containers()["isolated-1-1"]["RestartCount"] == 1, "shard 1 is back")
            until(lambda: composed.containers()["isolated-worker-1"]["RestartCount"] == 1, "a worker is back")
            codes = composed.ends()
            assert set(codes.values()) == {0}, composed.story()
            assert len(codes) == 6
            assert "event=superseded" in composed.compose("logs", "isolated-0")
            for folder in ("run", "data"):
                run("docker", "cp", f"{composed.containers()['isolated-0-1']['Id']}:/own/{folder}", str(tmp_path))
        flow.train("alone", "--workers", 1, "--epochs", EPOCHS, "--dim", settings["DIM"]).ends(0)
        assert flow.vectors("run") == flow.vectors("alone") == (undisturbed / "vectors.npy").read_bytes()
