"""Servers and workers serve their own metrics, on this machine only, in names that agree."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.request import urlopen

import pytest
from handmade import random_dataset
from processes import FREE, Flow, Running, until

parser = pytest.importorskip("prometheus_client.parser", reason="the extra `metrics` is not installed")


def url_of(running: Running) -> str:
    """Where a process says that it serves its metrics."""
    found = until(lambda: re.search(r"event=metrics url=(http://127\.0\.0\.1:\d+/metrics)", running.err), "its address")
    return str(found[1])


def scrape(url: str) -> dict[tuple[str, str], float]:
    with urlopen(url, timeout=120) as answer:
        families = parser.text_string_to_metric_families(answer.read().decode())
    return {(s.name, next(iter(s.labels.values()), "")): s.value for family in families for s in family.samples}


def test_a_server_and_a_worker_tell_the_same(tmp_path: Path) -> None:
    random_dataset(tmp_path / "data", size=40)
    with Flow(tmp_path) as flow:
        server = flow.server("run", "--prometheus", 0, "--epochs", 1_000_000)
        address = server.ready()[0]
        worker = flow.start("worker", "data", "--server", address, "--name", "anna", "--prometheus", 0)
        of_server, of_worker = url_of(server), url_of(worker)
        trained = ("glovewire_worker_entries_total", "anna")
        pushes = ("glovewire_shard_pushes_total", "0")
        for told_of in (trained, pushes):
            until(lambda of=told_of: scrape(of_server).get(of, 0) > 0, f"{told_of} at the server")
        before, told, after = scrape(of_worker), scrape(of_server), scrape(of_worker)
        assert before[trained] <= after[trained]
        assert 0 < told[trained] <= after[trained]
        assert told["glovewire_workers", "training"] == 1
        assert told[pushes] > 0
        assert after["glovewire_worker_pushes_total", "anna"] >= told[pushes]
        assert all(name.startswith("glovewire_") for name, _ in {**told, **after})
        port = of_server.split(":")[2].partition("/")[0]
        taken = flow.start("server", "data", "--out", "other", "--bind", FREE, "--publish", FREE, "--prometheus", port)
        taken.fails(f"cannot serve metrics on 127.0.0.1:{port}", "in use")
        flow.run("finish", address)
        worker.ends(0)
        server.ends(0)
