"""Kill random processes of a training fifty times and check that it ends with the same bytes as an undisturbed one.

    PYTHONPATH=.:tests/support python benchmarks/kills.py [--kills 50] [--seed 0] [--epochs 5100]
    PYTHONPATH=.:tests/support python benchmarks/kills.py --dataset data/wiki --kills 20 --epochs 24 -- --dim 64

Each run has two shards and three workers. In the disturbed one, SIGKILL kills a process (server or worker, drawn from
the seed) in every fiftieth of the run. Prints one line per kill and one JSON object at the end; exit status 1 if the
bytes differ, a run fails, or the disturbed run is not over within `--deadline`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from handmade import random_dataset
from processes import Flow, Running, until

SHAPE: list[str | float] = ["--servers", 2, "--workers", 3]
PROCESSES = 5


def main() -> int:
    """Run both trainings and compare them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=5100)
    parser.add_argument("--deadline", type=float, default=1500.0, help="seconds for the disturbed run")
    parser.add_argument("--dataset", type=Path, help="instead of a random matrix of 40 words")
    parser.add_argument("options", nargs="*", help="of `glovewire train`, after --")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="glovewire-kills-") as folder:
        if args.dataset is None:
            random_dataset(Path(folder, "data"), size=40)
        else:
            Path(folder, "data").symlink_to(args.dataset.resolve())
        with Flow(Path(folder), forks=False) as flow:
            facts = compare(flow, args.kills, args.seed, args.epochs, args.deadline, args.options)
    print(json.dumps(facts))
    return 0 if facts["same_bytes"] and facts["kills"] == args.kills else 1


def compare(
    flow: Flow, kills: int, seed: int, epochs: int, deadline_s: float, further: Sequence[str] = ()
) -> dict[str, Any]:
    """Train undisturbed, then with kills, and return the comparison."""
    every = max(epochs // (2 * kills), 1)
    options: list[str | float] = [*SHAPE, "--epochs", epochs, "--checkpoint-every", every, "--json", *further]
    began = time.monotonic()
    flow.train("undisturbed", *options).ends(0, seconds=deadline_s)
    seconds_undisturbed = time.monotonic() - began
    began = time.monotonic()
    train = flow.train("disturbed", *options)
    victims = kill_processes(flow, train, kills, random.Random(seed), epochs)
    train.ends(0, seconds=max(deadline_s - (time.monotonic() - began), 1.0))
    return {
        "kills": len(victims),
        "of": {kind: sum(victim.startswith(kind) for victim in victims) for kind in ("server", "worker")},
        "seed": seed,
        "epochs": epochs,
        "same_bytes": flow.vectors("disturbed") == flow.vectors("undisturbed"),
        "seconds_undisturbed": round(seconds_undisturbed, 1),
        "seconds_disturbed": round(time.monotonic() - began, 1),
    }


def kill_processes(flow: Flow, train: Running, kills: int, draw: random.Random, epochs: int) -> list[str]:
    """Kill a process in each of `kills` equal parts of the run, and return the roles of those killed."""
    victims: list[str] = []
    for number in range(kills):
        goal = epochs * (number + draw.random()) / (kills + 1)
        until(partial(has_reached, flow, train, goal), f"epoch {goal:.0f}", 120)
        until(lambda: len(train.family()) == PROCESSES or not train.running, "every process runs", 120)
        if not train.running:
            return victims
        victims.append(draw.choice(sorted(train.family())))
        kill(train, victims[-1])
        print(f"kill {number + 1:2d}  epoch {epoch(flow):5d}  {victims[-1]}", file=sys.stderr, flush=True)
    return victims


def has_reached(flow: Flow, train: Running, goal: float) -> bool:
    """Return whether the run has reached an epoch or is over."""
    return epoch(flow) >= goal or not train.running


def kill(train: Running, role: str) -> None:
    """Kill the process of a role, if it still exists."""
    with contextlib.suppress(psutil.NoSuchProcess, KeyError):
        train.family()[role].kill()


def epoch(flow: Flow) -> int:
    """Return the last epoch in the disturbed run's metrics, or -1."""
    metrics = flow.path("disturbed", "metrics.jsonl")
    if not metrics.exists():
        return -1
    lines = metrics.read_bytes()[-4096:].splitlines()[-8:]
    found = [line for line in lines if line.startswith(b"{") and line.endswith(b"}")]
    return max((int(json.loads(line)["epoch"]) for line in found[-1:]), default=-1)


if __name__ == "__main__":
    sys.exit(main())
