"""Measure the cost of monitoring: training with 0, 1 and 20 subscribers, a dashboard of fifty workers, many requests.

    python benchmarks/watching.py subscribers DATASET     one training, its speed compared window by window
    python benchmarks/watching.py page DATASET            fifty workers that report ten times a second, and a browser
    python benchmarks/watching.py crowd                   1,000 requests of the dashboard's page, 50 at a time; SIGTERM

`subscribers` trains with one server and two workers. Windows with no subscriber, one, and twenty take turns, so that
other load on the machine affects all three alike; a further subscriber is stopped (SIGSTOP) throughout. `page` needs
Debian's Chromium; its workers are real sessions that report without training. Each prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psutil
from commands import ROOT, START_S, child, glovewire, server, server_status, wait_until

from glovewire.bench.measurements import surroundings
from glovewire.common.protocol.messages import Report
from glovewire.common.runtime.memory import memory_bytes
from glovewire.common.transport import sockets
from glovewire.common.transport.client import RequestClient

SUBSCRIBERS = {"none": 0, "one": 1, "twenty": 20}
ROUNDS, WINDOW_S, SETTLE_S = 8, 4.0, 0.5
REQUESTS, AT_A_TIME = 1_000, 50
WORKERS, REPORTS_PER_SECOND, PAGE_S = 50, 10, 20.0


def subscribers(dataset: str) -> dict[str, Any]:
    """Return entries per second for each number of subscribers, and ratios to no subscribers in the same round."""
    with ExitStack() as stack:
        out = stack.enter_context(tempfile.TemporaryDirectory())
        _, address, stream = stack.enter_context(server(dataset, f"{out}/run"))
        for name in ("w0", "w1"):
            stack.enter_context(glovewire("worker", dataset, "--server", address, "--name", name, "--no-verify"))
        client = stack.enter_context(RequestClient([address], "bench"))
        wait_until(lambda: server_status(client)["entries"] > 0, "training")
        stopped, _ = stack.enter_context(child(__file__, "subscriber", stream, wait_for="^listening"))
        stopped.send_signal(signal.SIGSTOP)
        rates: dict[str, list[float]] = {name: [] for name in SUBSCRIBERS}
        for round in range(ROUNDS):
            order = list(SUBSCRIBERS.items())
            for name, count in order if round % 2 == 0 else reversed(order):
                rates[name].append(window(client, stream, count))
        assert psutil.Process(stopped.pid).status() == psutil.STATUS_STOPPED
    ratios = {
        name: [rate / none for rate, none in zip(rates[name], rates["none"], strict=True)] for name in SUBSCRIBERS
    }
    return {
        "entries_per_second": {name: round_(statistics.median(each)) for name, each in rates.items()},
        "ratio": {name: round_(statistics.median(each)) for name, each in ratios.items()},
        "ratios": {name: sorted(map(round_, each)) for name, each in ratios.items()},
        "note": "a stopped subscriber is connected in every window",
    }


def window(client: RequestClient, stream: str, count: int) -> float:
    """Return entries per second over one window with `count` subscribers that read their messages."""
    over = threading.Event()
    listening = threading.Thread(target=listen, args=(stream, count, over))
    listening.start()
    time.sleep(SETTLE_S)
    began, before = time.monotonic(), server_status(client)["entries"]
    time.sleep(WINDOW_S)
    after, ended = server_status(client)["entries"], time.monotonic()
    over.set()
    listening.join()
    return float((after - before) / (ended - began))


def listen(stream: str, count: int, over: threading.Event) -> None:
    """Keep `count` subscriptions and read their messages until `over` is set."""
    with sockets.Context() as context:
        subscriptions = [context.subscriber(stream) for _ in range(count)]
        while not over.wait(0.05):
            for subscription in subscriptions:
                while sockets.has_message(subscription):
                    sockets.receive(subscription)


def subscriber(stream: str) -> None:
    """Subscribe in this process, which the caller stops (SIGSTOP)."""
    with sockets.Context() as context:
        subscription = context.subscriber(stream)
        assert subscription.poll(int(1e3 * START_S)), stream
        print("listening", flush=True)
        while True:
            assert subscription.poll(int(1e3 * START_S)), stream
            sockets.receive(subscription)


def page(dataset: str) -> dict[str, Any]:
    """Return the monitor's share of a core while a browser watches fifty workers, and updates of its curve."""
    sys.path.insert(0, str(ROOT / "tests" / "support"))
    from monitor_browser import Browser

    with ExitStack() as stack:
        out = stack.enter_context(tempfile.TemporaryDirectory())
        options = ("--schedule", "minibatch", "--consistency", "async")
        process, address, stream = stack.enter_context(server(dataset, f"{out}/run", *options))
        over = threading.Event()
        working = threading.Thread(target=report, args=(address, dataset, over))
        working.start()
        stack.callback(working.join)
        stack.callback(over.set)
        monitor, line = stack.enter_context(glovewire("monitor", stream, "--web", 0, wait_for="^dashboard"))
        browser = stack.enter_context(Browser())
        browser.open(line.split()[1])
        browser.until("document.documentElement?.dataset.ready === 'yes'")
        browser.until(f"Bokeh.documents[0].get_model_by_name('workers').text.includes('w{WORKERS - 1}')")
        browser.run(
            "window.moves = 0; Bokeh.documents[0].get_model_by_name('rate').renderers.at(-1)"
            ".data_source.properties.data.change.connect(() => window.moves++); 1"
        )
        time.sleep(5.0)
        used, moves, began = cpu_s(monitor.pid), browser.run("window.moves"), time.monotonic()
        served = cpu_s(process.pid)
        time.sleep(PAGE_S)
        seconds = time.monotonic() - began
        return {
            "workers": WORKERS,
            "reports_per_second": WORKERS * REPORTS_PER_SECOND,
            "moves_per_second": round_((browser.run("window.moves") - moves) / seconds),
            "monitor_share_of_a_core": round_((cpu_s(monitor.pid) - used) / seconds),
            "server_share_of_a_core": round_((cpu_s(process.pid) - served) / seconds),
        }


def crowd() -> dict[str, Any]:
    """Return what many page requests cost the monitor, and how long it takes to end after SIGTERM."""
    with glovewire("monitor", "tcp://127.0.0.1:9", "--web", 0, wait_for="^dashboard") as (monitor, line):
        url = line.split()[1]
        fetch(url)
        memory, used, began = memory_bytes(monitor.pid)[1], cpu_s(monitor.pid), time.monotonic()
        with ThreadPoolExecutor(AT_A_TIME) as crowd:
            seconds = list(crowd.map(fetch, [url] * REQUESTS))
        found = {
            "requests": REQUESTS,
            "seconds": round_(time.monotonic() - began),
            "slowest_s": round_(max(seconds)),
            "cpu_s": round_(cpu_s(monitor.pid) - used),
            "grown_bytes": memory_bytes(monitor.pid)[1] - memory,
        }
        began = time.monotonic()
        monitor.terminate()
        monitor.wait(60)
        return {**found, "ended_after_s": round_(time.monotonic() - began), "exit_status": monitor.returncode}


def fetch(url: str) -> float:
    """Request a page and return the seconds that it took; raises for any status but 200."""
    began = time.monotonic()
    with urlopen(url, timeout=60) as answer:
        answer.read()
    return time.monotonic() - began


def report(address: str, dataset: str, over: threading.Event) -> None:
    """Keep fifty sessions that report ten times a second until `over` is set."""
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
    """Return the processor seconds of a process."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def round_(value: float) -> float:
    """Round to four significant digits."""
    return float(f"{value:.4g}")


def main() -> None:
    """Print one of the measurements as JSON."""
    if sys.argv[1:2] == ["subscriber"]:  # a child of `subscribers`
        subscriber(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    measure: dict[str, Callable[..., dict[str, Any]]] = {"subscribers": subscribers, "page": page, "crowd": crowd}
    parser.add_argument("what", choices=measure)
    parser.add_argument("dataset", nargs="?", metavar="DATASET")
    args = parser.parse_args()
    if (args.dataset is None) != (args.what == "crowd"):
        parser.error(f"{args.what} takes {'no' if args.what == 'crowd' else 'a'} DATASET")
    before = surroundings()
    found = measure[args.what](*([args.dataset] if args.dataset else []))
    print(json.dumps({"benchmark": f"watching {args.what}", "surroundings": before, **found}))


if __name__ == "__main__":
    main()
