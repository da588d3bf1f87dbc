"""The dashboard over a real training: curves move, a killed worker is lost within its lease, a restart is survived.

Debian's Chromium watches three workers with name resolution blocked. Lookups, losses and states are those of real
processes; tests/monitor/web/test_server.py has the page's own behaviour.
"""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

import pytest
from handmade import random_dataset
from monitor_browser import Browser, chromium
from processes import Flow, Running, free_port, until

pytest.importorskip("bokeh", reason="the extra `web` is not installed")

LEASE_S, BEFORE_USUAL_LEASE_S = 3.0, 25.0  # a server that is not asked has 30 s
PANEL = "Bokeh.documents[0].get_model_by_name('%s').text"
COUNT_MOVES = (
    "window.moves = 0; Bokeh.documents[0].get_model_by_name('rate').renderers.at(-1)"
    ".data_source.properties.data.change.connect(() => window.moves++); 1"
)


def serve(flow: Flow, port: int, *words: str) -> Running:
    """A server whose addresses stay the same over a restart."""
    addresses = ["--bind", f"tcp://127.0.0.1:{port}", "--publish", f"tcp://127.0.0.1:{port + 1}"]
    return flow.start(
        "server", "data", "--out", "run", "--dim", 8, "--epochs", 1_000_000, "--lease", LEASE_S, *addresses, *words
    )


def row_of(browser: Browser, worker: str) -> str:
    """A worker's row in the table, as HTML."""
    rows = re.findall(r"<tr>.*?</tr>", browser.run(PANEL % "workers"))
    return next((row for row in rows if f">{worker}<" in row), "")


@pytest.mark.timeout(900)
@pytest.mark.browser
@pytest.mark.skipif(chromium() is None, reason="no chromium here: apt-get install chromium")
def test_a_real_training_is_watched_through_a_kill_and_a_restart(tmp_path: Path) -> None:
    random_dataset(tmp_path / "data", size=40)
    with Flow(tmp_path) as flow:
        port = free_port()
        server = serve(flow, port)
        address = f"tcp://127.0.0.1:{port}"
        workers = {name: flow.worker(address, name=name, how=("--latency", "30ms")) for name in ("w0", "w1", "w2")}
        monitor = flow.start("monitor", f"tcp://127.0.0.1:{port + 1}", "--web", 0)
        url = until(lambda: re.search(r"dashboard (http://\S+)", monitor.err), "the dashboard")[1]
        with Browser() as browser:
            browser.open(url)
            browser.until("document.documentElement?.dataset.ready === 'yes'")
            until(lambda: all("state training" in row_of(browser, name) for name in workers), "three workers")

            browser.run(COUNT_MOVES)

            def moves_per_second() -> float:
                before, began = browser.run("window.moves"), time.monotonic()
                until(lambda: time.monotonic() > began + 2.0, "two seconds")
                return float(browser.run("window.moves") - before) / (time.monotonic() - began)

            until(lambda: moves_per_second() >= 5, "five movements a second")

            browser.run("document.getElementById('word').value = 'w01'")
            browser.run("document.querySelector('#neighbours button').click()")
            until(lambda: "by cosine" in browser.run(PANEL % "neighbours"), "nearest words of the running server")

            workers["w1"].signal(signal.SIGKILL)
            until(lambda: "state lost" in row_of(browser, "w1"), "the killed worker", BEFORE_USUAL_LEASE_S)
            until(lambda: "state training" in row_of(browser, "w0"), "the others going on")

            flow.run("checkpoint", address)
            server.signal(signal.SIGKILL)
            until(lambda: "no data for" in browser.run(PANEL % "status"), "the silence")
            serve(flow, port, "--resume")
            until(lambda: ">training<" in browser.run(PANEL % "status"), "the page going on by itself")
            flow.run("finish", address)
            until(lambda: ">finished<" in browser.run(PANEL % "status"), "the end")
            assert browser.errors == []
            ours = (url, url.replace("http", "ws"), "data:", "about:")
            assert [request for request in browser.requests if not request.startswith(ours)] == []
        for name in ("w0", "w2"):
            workers[name].ends(0)
        monitor.signal(signal.SIGTERM)
        monitor.ends(0)
