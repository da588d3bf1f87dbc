"""The dashboard as people get it: Debian's Chromium with name resolution blocked, against a real monitor process."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import psutil
import pytest
from monitor_browser import Browser, chromium
from monitor_fakes import Publisher, loss, run_of, shard, until, worker

from glovewire.common.protocol.messages import Event
from glovewire.common.storage.run_folder import write_vectors
from glovewire.monitor.history.records import Recorder

pytest.importorskip("bokeh", reason="the extra `web` is not installed")
needs_browser = pytest.mark.skipif(chromium() is None, reason="no chromium here: apt-get install chromium")
HOSTILE = "<img src=x onerror=document.title='pwned'>"
READY = "document.documentElement?.dataset.ready === 'yes'"
SHOWN = "Bokeh.documents[0].get_model_by_name('%s').text"


@contextlib.contextmanager
def dashboard(*arguments: str) -> Iterator[str]:
    """A monitor process that serves a dashboard; its address. It must end cleanly when asked."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    command = [sys.executable, "-c", "from glovewire.monitor.cli import monitor; monitor()", "--web", "0", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stderr is not None
        found = re.match(r"dashboard (http://\S+/)", process.stderr.readline())
        assert found, process.stderr.read()
        yield found.group(1)
    except BaseException:
        process.kill()
        process.wait()
        process.stderr.close()  # type: ignore[union-attr]
        raise
    process.terminate()
    _, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, "")


class Training:
    """Publishes a run of three workers, a tenth of a second at a time."""

    def __init__(self, publisher: Publisher) -> None:
        self.publisher = publisher
        self.lost: set[str] = set()
        self._steps = count(1)
        self._next = time.monotonic()

    def step(self) -> None:
        """Publish what a tenth of a second brings, and let it pass."""
        t = next(self._steps) / 10
        for name in ("w0", "w1", HOSTILE):
            self.publisher.publish(loss(t, name, int(1e5 * t), 1 / (1 + t), total=10**9))
            self.publisher.publish(worker(name, "lost" if name in self.lost else "training", t))
        self.publisher.publish(shard(0, t, int(t * 10), int(t * 1e6)))
        self.publisher.publish(loss(t, "all", int(1e5 * t), 1 / (1 + t), total=10**9))
        self._next = max(self._next + 0.1, time.monotonic())
        until(lambda: time.monotonic() >= self._next, "a tenth of a second has passed")


def moves_per_second(browser: Browser, training: Training) -> float:
    """How often the curve moves in a second, from one second and a half."""
    before, started = browser.run("window.moves"), time.monotonic()
    for _ in range(15):
        training.step()
    return float(browser.run("window.moves") - before) / (time.monotonic() - started)


@pytest.mark.browser
@needs_browser
def test_a_live_run_is_watched_to_its_end_through_a_restart_of_its_server() -> None:
    with Publisher() as publisher, dashboard(publisher.address) as url, Browser() as browser:
        training = Training(publisher)
        publisher.publish(Event(0.0, "joined", HOSTILE, HOSTILE))
        browser.open(url)
        until(lambda: browser.run(READY), "the page", training.step)
        until(lambda: "training" in browser.run(SHOWN % "status"), "the first samples", training.step)

        browser.run(
            "window.moves = 0; Bokeh.documents[0].get_model_by_name('rate').renderers.at(-1)"
            ".data_source.properties.data.change.connect(() => window.moves++); 1"
        )
        until(lambda: moves_per_second(browser, training) >= 5, "five movements in a second", lambda: None)

        training.lost.add("w1")
        until(lambda: "state lost" in browser.run(SHOWN % "workers"), "the lost worker", training.step)
        assert browser.run("document.title") == "run-1 · Glovewire"
        assert not browser.run(f"({ALL}).some((e) => e.tagName == 'IMG')")
        assert browser.run(f"({ALL}).some((e) => !e.children.length && e.textContent.startsWith('<img src=x'))")

        until(lambda: "no data for" in browser.run(SHOWN % "status"), "the notice that nothing comes")
        publisher.close()
        with Publisher("run-2", publisher.address) as restarted:
            training = Training(restarted)
            until(lambda: "run-2" in browser.run(SHOWN % "status"), "the new server", training.step)
            restarted.publish(Event(99.0, "finished", "shard 0", ""))
            until(lambda: "finished" in browser.run(SHOWN % "status"), "the end")
        assert_nothing_wrong(browser, url)


ALL = (
    "((f) => f(f, document))((f, root) => [...root.querySelectorAll('*')]"
    ".flatMap((e) => e.shadowRoot ? [e, ...f(f, e.shadowRoot)] : [e]))"
)


def assert_nothing_wrong(browser: Browser, url: str) -> None:
    assert browser.errors == []
    ours = (url, url.replace("http", "ws"), "data:", "about:")
    assert [request for request in browser.requests if not request.startswith(ours)] == []


@pytest.mark.browser
@needs_browser
def test_three_runs_are_compared_in_light_and_dark_on_any_screen(tmp_path: Path) -> None:
    arguments = []
    for number in (1, 2, 3):
        folder = tmp_path / f"run <b>{number}"
        folder.mkdir()
        with contextlib.closing(Recorder(folder / "metrics.jsonl")) as recorder:
            for sample in run_of(seconds=10 * number, seed=number):
                recorder.add(sample)
        write_vectors(folder, ["king", "queen"], np.eye(2, dtype=np.float32) + number)
        arguments += ["--replay", str(folder)]
    with dashboard(*arguments) as url, Browser() as browser:
        backs = set()
        for width, height, dark in ((1400, 1000, False), (390, 844, False), (1400, 1000, True)):
            browser.open(url, width, height, dark=dark)
            browser.until(READY)
            assert browser.run("document.documentElement.scrollWidth <= innerWidth")
            backs.add(browser.run("getComputedStyle(document.body).backgroundColor"))
            text = browser.run(SHOWN % "workers")
            assert all(f"run &lt;b&gt;{number}" in text for number in (1, 2, 3))
        assert len(backs) == 2
        browser.run("document.getElementById('log').click()")
        figures = "Bokeh.documents[0].get_model_by_name('by_time').children.map((figure) => figure.visible)"
        assert browser.run(figures) == [False, True]
        drawn = "Bokeh.documents[0].get_model_by_name('by_time').children[0].renderers.map((r) => r.glyph.y?.field)"
        assert "mean" in browser.run(drawn)
        browser.run("document.getElementById('smooth').click()")
        assert "mean" not in browser.run(drawn)
        browser.run(
            "document.getElementById('word').value = 'queen'; document.querySelector('#neighbours button').click()"
        )
        browser.until(f"({SHOWN % 'neighbours'}).includes('king')")
        assert_nothing_wrong(browser, url)


def test_a_replay_ends_when_it_is_told_how_long_to_linger(tmp_path: Path) -> None:
    with contextlib.closing(Recorder(tmp_path / "metrics.jsonl")) as recorder:
        for sample in run_of(seconds=10, seed=1):
            recorder.add(sample)
    command = [sys.executable, "-m", "glovewire", "monitor", "--replay", tmp_path, "--web", "0", "--linger", "0.1"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=True)
    assert "dashboard http://" in ended.stderr


def test_the_page_names_no_other_machine() -> None:
    with Publisher() as publisher, dashboard(publisher.address) as url, urlopen(url, timeout=120) as answer:
        page = answer.read().decode()
    scripts = re.findall(r"<script[^>]+src=\"([^\"]+)\"", page)
    assert scripts
    assert all(script.startswith(("static/", "/static/")) for script in scripts)
    assert not re.findall(r"<(?:link|img|iframe)[^>]+(?:href|src)=\"(?!data:)", page)


def ask(port: int, host: str, path: str = "/", *headers: str) -> socket.socket:
    """A connection on which a request has been sent."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=120)
    lines = (f"GET {path} HTTP/1.1", f"Host: {host}:{port}", *headers, "", "")
    connection.sendall("\r\n".join(lines).encode())
    return connection


def status(connection: socket.socket) -> int:
    with connection, connection.makefile("rb") as answer:
        return int(answer.readline().split()[1])


def test_a_crowd_and_a_foreign_name_cost_next_to_nothing() -> None:
    with Publisher() as publisher, dashboard(publisher.address, "--host", "0.0.0.0") as url:
        port = int(url.rstrip("/").rpartition(":")[2])
        opening = ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: x"]
        origin = f"Origin: http://evil.example:{port}"
        assert status(ask(port, "evil.example", "/ws", *opening, origin)) == 403
        living = (child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE)
        (process,) = (child for child in living if "--web" in child.cmdline())
        before = process.memory_info().rss
        assert {status(connection) for connection in [ask(port, "localhost") for _ in range(100)]} == {200}
        assert process.memory_info().rss - before < 50e6
