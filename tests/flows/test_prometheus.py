"""A real Prometheus with our settings scrapes a training, and every query of the Grafana dashboard finds something."""

from __future__ import annotations

import json
import re
import shutil
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
from handmade import random_dataset
from processes import Flow, free_port, until
from source import ROOT

from glovewire.common.protocol import messages as m
from glovewire.common.transport.client import RequestClient

pytest.importorskip("prometheus_client", reason="the extra `metrics` is not installed")
pytestmark = pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs prometheus")


def asked(url: str, what: str, **parameters: str) -> Any:
    """The data of an answer of Prometheus' HTTP API; None while it does not answer."""
    try:
        with urlopen(f"{url}/api/v1/{what}?{urlencode(parameters)}", timeout=60) as answer:
            return json.load(answer)["data"]
    except URLError:
        return None


def finds(url: str, query: str) -> bool:
    return bool((asked(url, "query", query=query) or {"result": ()})["result"])


def healthy(url: str) -> bool:
    targets = (asked(url, "targets") or {"activeTargets": []})["activeTargets"]
    return bool(targets) and all(target["health"] == "up" for target in targets)


def test_every_panel_of_the_dashboard_has_data(tmp_path: Path) -> None:
    random_dataset(tmp_path / "data", size=40)
    settings = (ROOT / "examples" / "monitoring" / "prometheus.yml").read_text()
    panels = json.loads((ROOT / "examples" / "grafana.json").read_text())["panels"]
    with Flow(tmp_path) as flow:
        minibatches = ["--schedule", "minibatch", "--consistency", "async"]
        server = flow.server("run", "--epochs", 1_000_000, *minibatches)
        address, stream = server.ready()
        flow.worker(address, how=("--latency", "30ms"))
        monitor = flow.start("monitor", stream, "--prometheus", 0)
        metrics = until(lambda: re.search(r"metrics http://([\d.:]+)/", monitor.err), "the monitor serves metrics")[1]
        (tmp_path / "prometheus.yml").write_text(settings.replace("monitor:9100", metrics))
        url = f"http://127.0.0.1:{free_port()}"
        flow.start(
            "--config.file", "prometheus.yml", "--storage.tsdb.path", "stored",
            "--web.listen-address", url.removeprefix("http://"), program=["prometheus"],
        )  # fmt: skip
        with RequestClient([address], "judge") as judge:
            judge.connect("observer")
            judge.ask(0, m.Score("similarity", 42.0))
        until(lambda: healthy(url), "the target is up")
        queries = [target["expr"] for panel in panels for target in panel.get("targets", ())]
        assert len(queries) >= len(panels)
        for query in queries:
            until(partial(finds, url, query), f"{query} finds something")
