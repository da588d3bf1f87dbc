"""What watching costs: training with 0, 1 and 20 subscribers, and a dashboard of fifty workers. Prints JSON.

    python benchmarks/watching.py subscribers DATASET     one training, its pace compared window by window
    python benchmarks/watching.py page DATASET            fifty workers that report ten times a second, a browser

`subscribers` trains with one server and two workers and takes turns between no subscriber, one, and twenty of which one
has been stopped (SIGSTOP), so that whatever else happens on the machine meets all three alike. `page` needs Debian's
Chromium; its workers are real sessions that report without training.
"""

from __future__ import annotations

import json
import os
import platform
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil

from glovewire.common.protocol.messages import GetStatus, Report, Status
from glovewire.common.transport import sockets
from glovewire.common.transport.client import RequestClient

ROOT = Path(__file__).parents[1]
FREE = "tcp://127.0.0.1:0"
CONDITIONS = {"none": 0, "one": 1, "twenty": 20}
ROUNDS, WINDOW_S, SETTLE_S = 8, 4.0, 0.5
WORKERS, REPORTS_PER_SECOND, PAGE_S = 50, 10, 20.0
STARTING_S = 120.0
_pause = threading.Event()


@contextmanager
def process(*words: str, wait_for: str = "") -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A child whose first line of output says `wait_for`; it is ended on the way out."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *words]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    try:
        said = ""
        assert child.stdout is not None
        while wait_for and not re.search(wait_for, said):
            said = child.stdout.readline()
            assert said, f"{words} ended"
        threading.Thread(target=lambda: list(child.stdout or ()), daemon=True).start()
        yield child, said
    finally:
        child.send_signal(signal.SIGCONT)
        child.terminate()
        try:
            child.wait(20)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def glovewire(*words: object, wait_for: str = "") -> Any:
    """A glovewire command as a child."""
    return process("-m", "glovewire", *map(str, words), wait_for=wait_for)


def told(client: RequestClient) -> dict[str, Any]:
    """What the server says of itself."""
    reply = client.ask(0, GetStatus(), 30.0)
    assert isinstance(reply, Status)
    found: dict[str, Any] = json.loads(bytes(reply.body))
    return found


def until(happened: Callable[[], Any], what: str) -> None:
    """Wait for something; AssertionError naming it after two minutes."""
    deadline = time.monotonic() + STARTING_S
    while not happened():
        assert time.monotonic() < deadline, f"waited too long for {what}"
        _pause.wait(0.1)


def subscribers(dataset: str) -> dict[str, Any]:
    """Entries per second with so many subscribers, as ratios to none in the same round."""
    with ExitStack() as stack:
        out = stack.enter_context(tempfile.TemporaryDirectory())
        _, said = stack.enter_context(
            glovewire(
                "server", dataset, "--out", f"{out}/run", "--bind", FREE, "--publish", FREE, "--epochs", 1_000_000,
                "--no-verify", wait_for="^ready",
            )
        )  # fmt: skip
        address, stream = said.split()[1], said.split()[3]
        for name in ("w0", "w1"):
            stack.enter_context(glovewire("worker", dataset, "--server", address, "--name", name, "--no-verify"))
        client = stack.enter_context(RequestClient([address], "bench"))
        until(lambda: told(client)["entries"] > 0, "training")
        stopped, _ = stack.enter_context(process(__file__, "subscriber", stream, wait_for="^listening"))
        stopped.send_signal(signal.SIGSTOP)
        stopped_stream = psutil.Process(stopped.pid)
        paces: dict[str, list[float]] = {name: [] for name in CONDITIONS}
        for round in range(ROUNDS):
            order = list(CONDITIONS.items())
            for name, count in order if round % 2 == 0 else reversed(order):
                paces[name].append(window(client, stream, count))
        assert stopped_stream.status() == psutil.STATUS_STOPPED
    ratios = {name: [pace / none for pace, none in zip(paces[name], paces["none"], strict=True)] for name in CONDITIONS}
    return {
        "entries_per_second": {name: round_(statistics.median(each)) for name, each in paces.items()},
        "ratio": {name: round_(statistics.median(each)) for name, each in ratios.items()},
        "ratios": {name: sorted(map(round_, each)) for name, each in ratios.items()},
        "note": "a subscriber that has been stopped is connected in every window",
    }


def window(client: RequestClient, stream: str, count: int) -> float:
    """Entries per second over one window with `count` subscribers that read what they are sent."""
    over = threading.Event()
    listening = threading.Thread(target=listen, args=(stream, count, over))
    listening.start()
    _pause.wait(SETTLE_S)
    began, before = time.monotonic(), told(client)["entries"]
    _pause.wait(WINDOW_S)
    after, ended = told(client)["entries"], time.monotonic()
    over.set()
    listening.join()
    return float((after - before) / (ended - began))


def listen(stream: str, count: int, over: threading.Event) -> None:
    """Hold `count` subscriptions and read them until it is over."""
    with sockets.Context() as context:
        held = [context.subscriber(stream) for _ in range(count)]
        while not over.wait(0.05):
            for each in held:
                while sockets.has_message(each):
                    sockets.receive(each)


def subscriber(stream: str) -> None:
    """A subscriber in a process of its own, to be stopped."""
    with sockets.Context() as context:
        each = context.subscriber(stream)
        assert each.poll(int(1e3 * STARTING_S)), stream
        print("listening", flush=True)
        while True:
            assert each.poll(int(1e3 * STARTING_S)), stream
            sockets.receive(each)


def page(dataset: str) -> dict[str, Any]:
    """What the monitor takes of a core while a browser watches fifty workers, and how often the curve moves."""
    sys.path.insert(0, str(ROOT / "tests"))
    from monitor_browser import Browser

    with ExitStack() as stack:
        out = stack.enter_context(tempfile.TemporaryDirectory())
        server, said = stack.enter_context(
            glovewire(
                "server", dataset, "--out", f"{out}/run", "--bind", FREE, "--publish", FREE, "--epochs", 1_000_000,
                "--no-verify", "--schedule", "minibatch", "--consistency", "async", wait_for="^ready",
            )
        )  # fmt: skip
        address, stream = said.split()[1], said.split()[3]
        over = threading.Event()
        working = threading.Thread(target=simulate, args=(address, dataset, over))
        working.start()
        stack.callback(working.join)
        stack.callback(over.set)
        monitor, said = stack.enter_context(glovewire("monitor", stream, "--web", 0, wait_for="^dashboard"))
        browser = stack.enter_context(Browser())
        browser.open(said.split()[1])
        browser.until("document.documentElement?.dataset.ready === 'yes'")
        browser.until(f"Bokeh.documents[0].get_model_by_name('workers').text.includes('w{WORKERS - 1}')")
        browser.run(
            "window.moves = 0; Bokeh.documents[0].get_model_by_name('pace').renderers.at(-1)"
            ".data_source.properties.data.change.connect(() => window.moves++); 1"
        )
        _pause.wait(5.0)
        used, moves, began = cpu_s(monitor.pid), browser.run("window.moves"), time.monotonic()
        served = cpu_s(server.pid)
        _pause.wait(PAGE_S)
        seconds = time.monotonic() - began
        return {
            "workers": WORKERS,
            "reports_per_second": WORKERS * REPORTS_PER_SECOND,
            "moves_per_second": round_((browser.run("window.moves") - moves) / seconds),
            "monitor_share_of_a_core": round_((cpu_s(monitor.pid) - used) / seconds),
            "server_share_of_a_core": round_((cpu_s(server.pid) - served) / seconds),
        }


def simulate(address: str, dataset: str, over: threading.Event) -> None:
    """Fifty sessions that report ten times a second."""
    from glovewire.common.storage.dataset import Dataset

    checksum = Dataset.open(Path(dataset), verify=False).checksum
    with ExitStack() as stack:
        clients = [stack.enter_context(RequestClient([address], f"w{n}", checksum)) for n in range(WORKERS)]
        for client in clients:
            client.connect()
        sequence = 0
        while not over.wait(1 / REPORTS_PER_SECOND):
            sequence += 1
            for number, client in enumerate(clients):
                loss = 1000.0 / sequence * (1 + number % 7 / 20)
                client.send(0, Report(sequence, -1, 1000, loss, 2 * loss, 1.0, 0.1, sequence * 1000), lambda _: None)
                client.poll(0)


def cpu_s(pid: int) -> float:
    """Seconds that a process has used of all cores."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def round_(value: float) -> float:
    """Four digits are enough."""
    return float(f"{value:.4g}")


def main() -> None:
    """One of the two, as one JSON object."""
    what, where = sys.argv[1], sys.argv[2]
    if what == "subscriber":
        subscriber(where)
        return
    found = {"subscribers": subscribers, "page": page}[what](where)
    machine = {"python": platform.python_version(), "machine": platform.platform(), "cores": os.cpu_count()}
    print(json.dumps({"benchmark": f"watching {what}", **found, **machine}))


if __name__ == "__main__":
    main()
