"""Measure the speed and memory of a busy server before and after connections of foreign protocols and bad messages.

    PYTHONPATH=.:tests/support python benchmarks/hostile.py [--connections 60] [--messages 10000] [--seconds 0.5]

A real server and a real worker, which pushes and pulls 1,024 rows per message with eight in flight: five rounds alone,
then five that each follow connections of noise, HTTP, TLS, SSH and old ZeroMQ, and malformed messages of every kind.
Prints a line per round and one JSON object. Exit status 1 if the median speed afterwards is lower by more than a tenth,
memory has grown by more than 16 MiB, a malformed message was not refused, or a row is not as the worker pushed it.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import strangers

from glovewire.bench.config import ROW, WireConfig
from glovewire.bench.measurements import surroundings
from glovewire.bench.wire_driver import Case, WireDriver
from glovewire.bench.wire_server import wire_server
from glovewire.common.model.options import TrainingOptions
from glovewire.common.protocol import messages as m
from glovewire.common.runtime.memory import memory_bytes

ROUNDS = 5
SIZE, WINDOW = 1024, 8
GROWTH_BYTES = 16 << 20
SLOWER = 0.9


def main() -> int:
    """Measure, print, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, default=60)
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=0.5, help="time for one figure of one round")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="glovewire-hostile-") as folder:
        facts = measure(Path(folder), args.connections, args.messages, args.seconds)
    print(json.dumps(facts))
    slow = any(figures["after"] < SLOWER * figures["before"] for figures in facts["rows_per_second"].values())
    grown = facts["memory_bytes"]["after"] - facts["memory_bytes"]["before"] > GROWTH_BYTES
    return int(slow or grown or facts["rows_not_as_pushed"] > 0 or facts["refused"] != facts["malformed"])


def measure(folder: Path, connections: int, messages: int, seconds: float) -> dict[str, Any]:
    """Return medians of speed and memory over ROUNDS rounds before and ROUNDS rounds after hostile peers."""
    config = WireConfig(sizes=(SIZE,), windows=(WINDOW,), repeats=ROUNDS, seconds=seconds)
    speeds: dict[str, list[float]] = {"pull": [], "push": []}
    memory, refused, draw = [], 0, random.Random(0)
    with wire_server(folder, config.rows, TrainingOptions(**ROW, dim=config.dim)) as (store, server):
        wire = WireDriver(store, server, config.rows, SIZE, config.seed)
        address = store.client.channels[0].address
        for step in range(1 + 2 * ROUNDS):  # the first warms up both ends and does not count
            if step > ROUNDS:
                strangers.visited(address, connections // ROUNDS, draw)
                refused += strangers.refused(address, _push(store.width), messages // ROUNDS, draw)
            for operation, found in speeds.items():
                tried = wire.run(wire.starter(Case(operation, "range", SIZE, WINDOW)), WINDOW, seconds)
                found.append(SIZE * len(tried.latencies_s) / tried.seconds)
            memory.append(memory_bytes(server)[1])
            print(f"round {step}: {memory[-1] / 1e6:.1f} MB", *(f"{k} {v[-1] / 1e6:.2f} M" for k, v in speeds.items()))
        lost = wire.rows_not_as_pushed()
    halves = slice(1, 1 + ROUNDS), slice(1 + ROUNDS, None)
    return {
        "surroundings": surroundings(),
        "connections": connections // ROUNDS * ROUNDS,
        "malformed": messages // ROUNDS * ROUNDS,
        "refused": refused,
        "rows_not_as_pushed": lost,
        "rows_per_second": {
            operation: dict(zip(("before", "after"), (median(found[half]) for half in halves), strict=True))
            for operation, found in speeds.items()
        },
        "memory_bytes": {"before": max(memory[halves[0]]), "after": max(memory[halves[1]])},
    }


def _push(width: int) -> m.Push:
    values = np.ones((2, width), np.float32)
    return m.Push("rows", 1, "add", 0, 2, m.NO_VERSION, -1, 0.0, values, None)


if __name__ == "__main__":
    sys.exit(main())
