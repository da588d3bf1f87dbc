"""Check that the server's memory stays bounded with fifty workers that push without pause and one that never reads.

    PYTHONPATH=. python benchmarks/greedy.py DATASET [--workers 50] [--seconds 60] [--rows 120] [--window-mb 64]

Starts a server for DATASET in asynchronous mode, workers that each keep `--window-mb` of pushes in flight, the most
that real workers do, and one that requests rows and never reads them. Prints one JSON object: the server's peak memory
(PSS) and its bound of 1.5 times the table plus 150 MB, and the pushes of each worker. 120 untied rows of 256 dimensions
are a quarter of a megabyte, as in a push of a real worker. Exit status 1 if memory exceeds the bound, or if the slowest
worker gets less than half of the median done.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from commands import server, server_status, wait_until

from glovewire.common.protocol import messages as m
from glovewire.common.protocol import wire
from glovewire.common.storage.dataset import Dataset
from glovewire.common.transport import sockets
from glovewire.common.transport.client import RequestClient

SAMPLE_EVERY_S = 0.25
ASYNC = ("--schedule", "minibatch", "--consistency", "async", "--batch-size", "1", "--epochs", "1000000")


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--workers", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rows", type=int, default=120, help="rows in one push")
    parser.add_argument("--window-mb", type=float, default=64.0)
    args = parser.parse_args()
    facts = measure(args.dataset, args.workers, args.seconds, args.rows, int(args.window_mb * (1 << 20)))
    print(json.dumps(facts))
    return 0 if facts["memory_ok"] and facts["fair"] else 1


def measure(path: Path, workers: int, seconds: float, rows: int, window: int) -> dict[str, Any]:
    """Start server and clients, sample the server's memory for `seconds`, and return the figures."""
    dataset = Dataset.open(path, verify=False)
    with (
        tempfile.TemporaryDirectory(prefix="glovewire-greedy-") as folder,
        server(path, f"{folder}/run", *ASYNC) as (process, address, _),
    ):
        width = table_width(address)
        counts: list[Any] = [multiprocessing.Value("q", 0) for _ in range(workers)]
        start = multiprocessing.Event()
        clients = [
            multiprocessing.Process(
                target=push_without_end, args=(n, address, dataset, rows, width, window, counts[n], start)
            )
            for n in range(workers)
        ]
        clients.append(multiprocessing.Process(target=never_read, args=(address, dataset)))
        for client in clients:
            client.start()
        try:
            wait_until(lambda: has_joined(status_of(address), workers), "the workers")
            before = pss(process.pid)
            start.set()
            memory = sample_memory(process.pid, seconds)
            done = [count.value for count in counts]
            counters = status_of(address)["counters"]
        finally:
            for client in clients:
                client.kill()
                client.join()
    table = dataset.layout.rows * width * 4
    return figures(table, before, memory, done, seconds, rows * width * 4, counters)


def figures(
    table: int, before: int, memory: list[int], done: list[int], seconds: float, push: int, counters: dict[str, int]
) -> dict[str, Any]:
    """Return the figures and whether they keep the promise; sizes in MB (a million bytes)."""
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


def push_without_end(
    number: int, address: str, dataset: Dataset, rows: int, width: int, window: int, count: Any, start: Any
) -> None:
    """Push with `window` bytes in flight until killed, and count the replies."""
    total, values = dataset.layout.rows, np.zeros((rows, width), np.float32)
    with RequestClient([address], f"greedy-{number}", dataset.checksum, silence_s=120.0) as client:
        client.connect()
        while not start.is_set():
            client.poll(100)
        sequence, applied = 0, 0

        def count_applied(_: m.Message) -> None:
            nonlocal applied
            applied += 1
            count.value = applied

        while True:
            while (sequence - applied) * values.nbytes > window - values.nbytes and sequence > applied:
                client.poll(100)
            sequence += 1
            first = (number * 7919 + sequence * rows) % (total - rows)
            push = m.Push("rows", sequence, "add", first, first + rows, m.NO_VERSION, -1, 0.0, values)
            client.send(0, push, count_applied)
            client.poll(0)


def never_read(address: str, dataset: Dataset) -> None:
    """Request rows repeatedly, and never read a reply."""
    with sockets.Context() as context:
        dealer = context.dealer(address)
        sockets.send(dealer, [b"", *wire.encode(1, m.Hello("worker", "never-read", 1, dataset.checksum))])
        number = 2
        while True:
            pull = m.Pull("rows", 0, min(dataset.layout.rows, 8192), m.NO_VERSION)
            number += sockets.send_if_room(dealer, [b"", *wire.encode(number, pull)])
            time.sleep(0.005)


def table_width(address: str) -> int:
    """Return the number of floats in one row of the server's table."""
    with RequestClient([address], "observer") as client:
        client.connect("observer")
        reply = client.ask(0, m.Pull("rows", 0, 1, m.NO_VERSION), 30.0)
        assert isinstance(reply, m.Rows)
        return int(reply.values.shape[1])


def status_of(address: str) -> dict[str, Any]:
    """Return the server's status, through a connection of its own."""
    with RequestClient([address], "observer") as client:
        return server_status(client)


def has_joined(status: dict[str, Any], workers: int) -> bool:
    """Return whether all workers and the client that never reads have joined."""
    return len(status["workers"]) > workers


def sample_memory(pid: int, seconds: float) -> list[int]:
    """Return the memory of a process, four times a second."""
    samples, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        samples.append(pss(pid))
        time.sleep(SAMPLE_EVERY_S)
    return samples


def pss(pid: int) -> int:
    """Return the memory of a process in bytes, with its share of shared pages."""
    return int(psutil.Process(pid).memory_full_info().pss)


if __name__ == "__main__":
    multiprocessing.set_start_method("fork")
    sys.exit(main())
