"""Measure the cost of checkpoints: the speed of training with checkpoints back to back, and without.

    python benchmarks/checkpoints.py DATASET [--rounds 8] [--seconds 4]

One training with one server and two workers alternates between windows without checkpoints and windows in which the
next one is requested as soon as the previous one is on disk, so that other load affects both alike. Prints one JSON
object. Exit status 1 if training is slower by a tenth or more (median ratio of neighbouring windows).
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from commands import glovewire, server, server_status, wait_until

from glovewire.bench.measurements import surroundings
from glovewire.common.client.pending import check_reply
from glovewire.common.protocol.messages import Checkpoint, Checkpointed, Message
from glovewire.common.transport.client import RequestClient

SLOWER = 0.9
NOW = Checkpoint(-1)


def main() -> int:
    """Measure, print, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=4.0, help="length of one window")
    args = parser.parse_args()
    facts = measure(args.dataset, args.rounds, args.seconds)
    print(json.dumps(facts))
    return int(facts["ratio"] <= SLOWER)


def measure(dataset: str, rounds: int, seconds: float) -> dict[str, Any]:
    """Return entries per second without and with checkpoints, window by window."""
    before = surroundings()
    with ExitStack() as stack:
        run = Path(stack.enter_context(tempfile.TemporaryDirectory()), "run")
        _, address, _ = stack.enter_context(server(dataset, run))
        for name in ("w0", "w1"):
            stack.enter_context(glovewire("worker", dataset, "--server", address, "--name", name, "--no-verify"))
        client = stack.enter_context(RequestClient([address], "bench"))
        client.connect("observer")
        wait_until(lambda: server_status(client)["entries"] > 0, "training")
        window(client, run, seconds, writing=True)  # a warm-up, which does not count
        rates: dict[bool, list[float]] = {False: [], True: []}
        written = 0
        for number in range(rounds):
            for writing in (False, True) if number % 2 == 0 else (True, False):
                rate, checkpoints = window(client, run, seconds, writing=writing)
                rates[writing].append(rate)
                written += checkpoints
    ratios = [slow / fast for fast, slow in zip(rates[False], rates[True], strict=True)]
    return {
        "surroundings": before,
        "entries_per_second": {
            "no checkpoints": statistics.median(rates[False]),
            "checkpoints back to back": statistics.median(rates[True]),
        },
        "ratio": statistics.median(ratios),
        "ratios": sorted(ratios),
        "checkpoints": written,
        "seconds_per_checkpoint": rounds * seconds / max(written, 1),
    }


def window(client: RequestClient, run: Path, seconds: float, *, writing: bool) -> tuple[float, int]:
    """Return entries per second over one window, and the number of checkpoints written in it."""
    began, before = time.monotonic(), server_status(client)["entries"]
    replies: list[Message] = []
    requested = 0
    while time.monotonic() < began + seconds:
        if writing and requested == len(replies):
            requested += 1
            client.send(0, NOW, replies.append)
        client.poll(20)
    after, ended = server_status(client)["entries"], time.monotonic()
    while requested > len(replies):
        client.poll(20)
    for reply in map(check_reply, replies):
        assert isinstance(reply, Checkpointed)
        shutil.rmtree(run / "checkpoints" / f"{reply.name}.shard-0-of-1", ignore_errors=True)
    return (after - before) / (ended - began), len(replies)


if __name__ == "__main__":
    sys.exit(main())
