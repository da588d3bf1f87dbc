"""What a checkpoint costs: the pace of training while one is written after the other, beside that while none is. JSON.

    python benchmarks/checkpoints.py DATASET [--rounds 8] [--seconds 4]

One training with one server and two workers takes turns between windows in which nobody asks for a checkpoint and
windows in which the next one is asked for as soon as the one before is on disk. So whatever else happens on the machine
meets both alike. Exit status 1 when training is slower by a tenth or more: the median over neighbouring windows.
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

from watching import FREE, glovewire, told, until

from glovewire.bench.measurements import surroundings
from glovewire.common.protocol.messages import Checkpoint, Message
from glovewire.common.transport.client import RequestClient, check_reply

SLOWER = 0.9
SOON = Checkpoint(-1)


def main() -> int:
    """Measure and judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=4.0, help="of one window")
    args = parser.parse_args()
    facts = measure(args.dataset, args.rounds, args.seconds)
    print(json.dumps(facts))
    return int(facts["ratio"] <= SLOWER)


def measure(dataset: str, rounds: int, seconds: float) -> dict[str, Any]:
    """Entries per second without and with checkpoints, window by window."""
    with ExitStack() as stack:
        run = Path(stack.enter_context(tempfile.TemporaryDirectory()), "run")
        _, said = stack.enter_context(
            glovewire(
                "server", dataset, "--out", run, "--bind", FREE, "--publish", FREE, "--epochs", 1_000_000,
                "--no-verify", wait_for="^ready",
            )
        )  # fmt: skip
        address = said.split()[1]
        for name in ("w0", "w1"):
            stack.enter_context(glovewire("worker", dataset, "--server", address, "--name", name, "--no-verify"))
        client = stack.enter_context(RequestClient([address], "bench"))
        until(lambda: told(client)["entries"] > 0, "training")
        window(client, run, seconds, writing=True)  # the first one warms everything and does not count
        paces: dict[bool, list[float]] = {False: [], True: []}
        written = 0
        for number in range(rounds):
            for writing in (False, True) if number % 2 == 0 else (True, False):
                pace, checkpoints = window(client, run, seconds, writing=writing)
                paces[writing].append(pace)
                written += checkpoints
    ratios = [slow / fast for fast, slow in zip(paces[False], paces[True], strict=True)]
    return {
        "surroundings": surroundings(),
        "entries_per_second": {
            "no checkpoints": statistics.median(paces[False]),
            "one after the other": statistics.median(paces[True]),
        },
        "ratio": statistics.median(ratios),
        "ratios": sorted(ratios),
        "checkpoints": written,
        "seconds_each": rounds * seconds / max(written, 1),
    }


def window(client: RequestClient, run: Path, seconds: float, *, writing: bool) -> tuple[float, int]:
    """Entries per second over one window, and how many checkpoints were written in it."""
    began, before = time.monotonic(), told(client)["entries"]
    answers: list[Message] = []
    asked = 0
    while time.monotonic() < began + seconds:
        if writing and asked == len(answers):
            asked += 1
            client.send(0, SOON, answers.append)
        client.poll(20)
    after, ended = told(client)["entries"], time.monotonic()
    while asked > len(answers):
        client.poll(20)
    for answer in map(check_reply, answers):
        label = getattr(answer, "name")  # noqa: B009
        shutil.rmtree(run / "checkpoints" / f"{label}.shard-0-of-1", ignore_errors=True)
    return (after - before) / (ended - began), len(answers)


if __name__ == "__main__":
    sys.exit(main())
