"""Fifty kills: a training of two shards and three workers that loses a random process fifty times, and never the bytes.

    PYTHONPATH=.:tests python benchmarks/kills.py [--kills 50] [--seed 0] [--epochs 5100]

One run is left alone, the other one loses a process (SIGKILL, server or worker, drawn from the seed) each time that it
has come a fiftieth further. Prints one line a kill and one JSON object at the end; exit status 1 when the bytes differ,
when a run fails, or when it is not over within `--deadline`.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from handmade import random_dataset
from processes import Flow, Running, until

SHAPE: list[str | float] = ["--servers", 2, "--workers", 3]
PROCESSES = 5


def main() -> int:
    """Run both trainings and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=5100)
    parser.add_argument("--deadline", type=float, default=1500.0, help="seconds for the disturbed run")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="glovewire-kills-") as folder:
        random_dataset(Path(folder, "data"), size=40)
        with Flow(Path(folder)) as flow:
            facts = compare(flow, args.kills, args.seed, args.epochs, args.deadline)
    print(json.dumps(facts))
    return 0 if facts["same_bytes"] and facts["kills"] == args.kills else 1


def compare(flow: Flow, kills: int, seed: int, epochs: int, deadline_s: float) -> dict[str, Any]:
    """Train undisturbed, then under fire; what came of it."""
    every = max(epochs // (2 * kills), 1)
    options: list[str | float] = [*SHAPE, "--epochs", epochs, "--checkpoint-every", every, "--json"]
    flow.train("alone", *options).ends(0, seconds=deadline_s)
    began = time.monotonic()
    train = flow.train("hurt", *options)
    victims = hurt(flow, train, kills, random.Random(seed), epochs)
    train.ends(0, seconds=max(deadline_s - (time.monotonic() - began), 1.0))
    return {
        "kills": len(victims),
        "of": {kind: sum(victim.startswith(kind) for victim in victims) for kind in ("server", "worker")},
        "seed": seed,
        "epochs": epochs,
        "same_bytes": flow.vectors("hurt") == flow.vectors("alone"),
        "seconds_undisturbed": flow.all[0].json["seconds"],
        "seconds_in_all": round(time.monotonic() - began, 1),
    }


def hurt(flow: Flow, train: Running, kills: int, draw: random.Random, epochs: int) -> list[str]:
    """Kill `kills` processes, each when training has come a step further; the roles of the dead."""
    victims: list[str] = []
    for number in range(kills):
        goal = epochs * (number + draw.random()) / (kills + 1)
        until(partial(come_to, flow, train, goal), f"epoch {goal:.0f}", 120)
        until(lambda: len(train.family()) == PROCESSES or not train.running, "every process runs", 120)
        if not train.running:
            return victims
        victims.append(draw.choice(sorted(train.family())))
        with_family(train, victims[-1])
        print(f"kill {number + 1:2d}  epoch {epoch(flow):5d}  {victims[-1]}", file=sys.stderr, flush=True)
    return victims


def come_to(flow: Flow, train: Running, goal: float) -> bool:
    """Whether it is in this epoch, or over."""
    return epoch(flow) >= goal or not train.running


def with_family(train: Running, role: str) -> None:
    """Kill the process of this role, if it is still there."""
    process = train.family().get(role)
    if process is not None:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            return


def epoch(flow: Flow) -> int:
    """How far the run says that it is."""
    record = flow.path("hurt", "metrics.jsonl")
    if not record.exists():
        return -1
    lines = record.read_bytes()[-4096:].splitlines()[-8:]
    found = [line for line in lines if line.startswith(b"{") and line.endswith(b"}")]
    return max((int(json.loads(line)["epoch"]) for line in found[-1:]), default=-1)


if __name__ == "__main__":
    sys.exit(main())
