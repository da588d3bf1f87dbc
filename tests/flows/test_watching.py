"""Watching a training: `train` says how and serves the dashboard, and `monitor RUN` finds the servers by the folder."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest
from handmade import random_dataset
from processes import LASTING, Flow

LONG = ("--workers", 2, "--epochs", 100_000, "--progress", *LASTING)


@pytest.fixture
def flow(tmp_path: Path) -> Iterator[Flow]:
    random_dataset(tmp_path / "data", size=40)
    with Flow(tmp_path) as flow:
        yield flow


def test_a_training_says_how_to_watch_it_and_its_folder_leads_to_its_servers(flow: Flow) -> None:
    training = flow.train("run", "--servers", 2, *LONG)
    training.says("watch it: glovewire monitor run --web (or tcp://127.0.0.1:")
    training.says("event=joined")
    monitor = flow.start("monitor", "run")
    monitor.says("event=progress")
    monitor.signal(signal.SIGINT)
    monitor.ends()
    training.signal(signal.SIGINT)
    training.ends(1)


def test_a_finished_run_is_shown_and_a_strange_folder_refused(flow: Flow) -> None:
    flow.train("done", "--workers", 1, "--epochs", 2).ends()
    assert "bias-only loss" in flow.start("monitor", "done").ends().out
    flow.start("monitor", "data").fails("data names no server", status=2)
    flow.start("monitor", "nowhere").fails("neither a run folder nor an address", status=2)


def test_servers_by_hand_are_found_by_their_folder_too(flow: Flow) -> None:
    servers = [flow.server("by-hand", "--epochs", 100_000, "--shard", f"{shard}/2") for shard in range(2)]
    addresses = [server.ready()[0] for server in servers]
    monitor = flow.start("monitor", "by-hand")
    monitor.says("workers=0 shards=2")  # not said any more once there is a loss
    worker = flow.worker(*addresses, how=LASTING)
    monitor.says("event=joined")
    monitor.says("epoch=")
    flow.run("finish", *addresses)
    for process in (monitor, *servers, worker):
        process.ends()


def test_a_training_serves_its_own_dashboard(flow: Flow) -> None:
    pytest.importorskip("bokeh", reason="the extra `web` is not installed")
    training = flow.train("shown", *LONG, "--web")
    training.says("dashboard http://127.0.0.1:")
    found = re.search(r"dashboard (http://\S+/)", training.err)
    assert found
    with urlopen(found[1], timeout=120) as answer:
        assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")
        assert "Bokeh" in answer.read().decode()
    training.signal(signal.SIGINT)
    training.ends(1)
    assert not any("dashboard" in line for line in os.listdir(flow.path("shown"))), "its log is among the logs"
