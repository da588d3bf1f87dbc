"""Fifty workers that push as fast as they can, and one that never reads its replies: is the server's memory flat?

    PYTHONPATH=. python benchmarks/greedy.py DATASET [--workers 50] [--seconds 60] [--rows 120] [--window-mb 64]

Starts a server for DATASET in asynchronous mode, then workers that keep `--window-mb` of pushes in flight each, as the
real ones do at most, and one that asks for rows and never reads. Prints one JSON object: the server's memory (PSS) at
its peak against its bound of 1.5 times the table and 150 MB, and what each worker got done. 120 untied rows of 256
dimensions are a quarter of a megabyte, as the real workers push.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from glovewire.common.errors import GlovewireError
from glovewire.common.protocol import messages as m
from glovewire.common.protocol import wire
from glovewire.common.storage.dataset import Dataset
from glovewire.common.transport import sockets
from glovewire.common.transport.client import RequestClient

SAMPLE_EVERY_S = 0.25


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--workers", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rows", type=int, default=120, help="in one push")
    parser.add_argument("--window-mb", type=float, default=64.0)
    args = parser.parse_args()
    facts = measure(args.dataset, args.workers, args.seconds, args.rows, int(args.window_mb * (1 << 20)))
    print(json.dumps(facts))
    return 0 if facts["memory_ok"] and facts["fair"] else 1


def measure(dataset: Path, workers: int, seconds: float, rows: int, window: int, *options: str) -> dict[str, Any]:
    """Start everybody, look at the server's memory for `seconds`, end everybody; what came of it."""
    opened = Dataset.open(dataset, verify=False)
    with (
        tempfile.TemporaryDirectory(prefix="glovewire-greedy-") as folder,
        served(dataset, Path(folder), options) as found,
    ):
        server, address = found
        width = table_width(address)
        counts: list[Any] = [multiprocessing.Value("q", 0) for _ in range(workers)]
        start = multiprocessing.Event()
        crowd = [
            multiprocessing.Process(
                target=greedy,
                args=(n, address, opened.checksum, opened.layout.rows, rows, width, window, counts[n], start),
            )
            for n in range(workers)
        ]
        crowd.append(multiprocessing.Process(target=deaf, args=(address, opened.checksum, opened.layout.rows)))
        for process in crowd:
            process.start()
        try:
            until(lambda: shard(address)["pushes"]["sent"] + len(shard(address)["workers"]) > workers, 120)
            before = pss(server)
            start.set()
            memory = sample(server, seconds)
            done = [count.value for count in counts]
            told = shard(address)
        finally:
            for process in crowd:
                process.kill()
                process.join()
    table = opened.layout.rows * width * 4
    return verdict(table, before, memory, done, seconds, rows * width * 4, told["counters"])


def verdict(
    table: int, before: int, memory: list[int], done: list[int], seconds: float, push: int, counters: dict[str, int]
) -> dict[str, Any]:
    """The figures, and whether they are as promised; sizes in megabytes of a million bytes."""
    bound = 1.5 * table + 150e6
    median = statistics.median(done)
    return {
        "workers": len(done),
        "seconds": seconds,
        "push_mb": push / 1e6,
        "table_mb": table / 1e6,
        "server_mb_before": before / 1e6,
        "server_mb_peak": max(memory) / 1e6,
        "server_mb_last": memory[-1] / 1e6,
        "bound_mb": bound / 1e6,
        "memory_ok": max(memory) <= bound,
        "pushes": sum(done),
        "mb_per_second": sum(done) * push / 1e6 / seconds,
        "slowest": min(done),
        "median": median,
        "fair": min(done) >= median / 2 > 0,
        "counters": counters,
    }


@contextmanager
def served(dataset: Path, folder: Path, options: tuple[str, ...]) -> Iterator[tuple[psutil.Process, str]]:
    """A server of one shard that takes pushes in any order."""
    command = [
        sys.executable, "-m", "glovewire", "server", str(dataset), "--out", str(folder / "run"), "--epochs", "100000",
        "--consistency", "async", "--bind", "tcp://127.0.0.1:0", "--publish", "tcp://127.0.0.1:0", "--no-verify",
        *options,
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        yield psutil.Process(process.pid), process.stdout.readline().split()[1]
    finally:
        process.kill()
        process.communicate()


def greedy(
    number: int, address: str, checksum: str, total: int, rows: int, width: int, window: int, count: Any, start: Any
) -> None:
    """Push, and keep `window` bytes in flight, until killed."""
    values = np.zeros((rows, width), np.float32)
    with RequestClient([address], f"greedy-{number}", checksum, silence_s=120.0) as client:
        client.connect()
        while not start.is_set():
            client.poll(100)
        sequence, answered = 0, 0

        def applied(_: m.Message) -> None:
            nonlocal answered
            answered += 1
            count.value = answered

        while True:
            while (sequence - answered) * values.nbytes > window - values.nbytes and sequence > answered:
                client.poll(100)
            sequence += 1
            first = (number * 7919 + sequence * rows) % (total - rows)
            push = m.Push("rows", sequence, "add", first, first + rows, m.NO_VERSION, -1, 0.0, values)
            client.send(0, push, applied)
            client.poll(0)


def deaf(address: str, checksum: str, total: int) -> None:
    """Ask for rows again and again, and never read an answer."""
    with sockets.Context() as context:
        dealer = context.dealer(address)
        sockets.send(dealer, [b"", *wire.encode(1, m.Hello("worker", "deaf", 1, checksum))])
        number = 2
        while True:
            pull = m.Pull("rows", 0, min(total, 8192), m.NO_VERSION, 0)
            number += sockets.send_if_room(dealer, [b"", *wire.encode(number, pull)])
            time.sleep(0.005)


def table_width(address: str) -> int:
    """Floats in one row of the server's table."""
    with RequestClient([address], "observer") as client:
        client.connect("observer")
        found = client.ask(0, m.Pull("rows", 0, 1, m.NO_VERSION, 0), 30.0)
        return int(getattr(found, "values").shape[1])  # noqa: B009


def shard(address: str) -> dict[str, Any]:
    """What the server says of itself."""
    with RequestClient([address], "observer") as client:
        found: dict[str, Any] = json.loads(bytes(getattr(client.ask(0, m.GetStatus(), 60.0), "body", b"{}")))
        return found


def sample(process: psutil.Process, seconds: float) -> list[int]:
    """Its memory, a few times a second."""
    found, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        found.append(pss(process))
        time.sleep(SAMPLE_EVERY_S)
    return found


def pss(process: psutil.Process) -> int:
    """Its memory in bytes; what it shares with others counts in parts."""
    return int(process.memory_full_info().pss)


def until(happened: Any, seconds: float) -> None:
    """Wait for something."""
    deadline = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > deadline:
            raise GlovewireError("the workers did not come in time")
        time.sleep(0.2)


if __name__ == "__main__":
    multiprocessing.set_start_method("fork")
    sys.exit(main())
