"""Compare `glovewire plan` with training over links of a given rate, in network namespaces. Needs root and iproute2.

    python benchmarks/plan.py DATASET [--epochs 4] [RATE:WORKERS:SERVERS ...]

Prints a line and a JSON object for each setting. Every process has a link of its own, as in the model, but they share
this machine's cores: settings with more processes than cores are valid only while the links are the bottleneck.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

LINKS = Path(__file__).parents[1] / "examples" / "network" / "links.sh"
SETTINGS = ["400mbit:2:1", "400mbit:2:2", "100mbit:1:1", "10gbit:1:1"]


def main() -> None:
    """Measure one setting after another."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("settings", nargs="*", default=SETTINGS, metavar="RATE:WORKERS:SERVERS")
    parser.add_argument("--epochs", default=4, type=int)
    given = parser.parse_intermixed_args()
    for setting in given.settings:
        rate, workers, servers = setting.split(":")
        with machines(int(workers) + int(servers), rate):
            found = train(given.dataset, int(workers), int(servers), given.epochs, "--subwords", 0)
        measured = found["seconds"] / given.epochs
        planned = plan(given.dataset, rate, workers, servers, given.epochs)
        ratio = planned["epoch_seconds"] / measured
        times = f"measured {measured:6.2f} s, planned {planned['epoch_seconds']:6.2f} s"
        print(f"{setting:16} epoch {times}, ratio {ratio:.2f}")
        print(json.dumps({"setting": setting, "measured_epoch_seconds": measured, **planned}), flush=True)


def plan(dataset: Path, rate: str, workers: str, servers: str, epochs: int) -> dict[str, Any]:
    """Return the prediction of `glovewire plan`."""
    bandwidth = rate.replace("mbit", "Mbit").replace("gbit", "Gbit")
    options = ("--workers", workers, "--servers", servers, "--bandwidth", bandwidth, "--epochs", str(epochs))
    command = glovewire("plan", dataset, *options, "--json")
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def train(
    dataset: Path, workers: int, servers: int, epochs: int, *options: object, seconds: float = 600
) -> dict[str, Any]:
    """Train with shards on the first machines and workers on the others, and return the first shard's result.

    `options` are those of the servers; after `seconds` the run is finished early.
    """
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as log:
        addresses = [f"tcp://10.77.0.{number}:5555" for number in range(1, servers + 1)]
        shards = [
            run_on(
                shard + 1,
                "server", dataset, "--out", Path(folder) / "run", "--insecure", "--epochs", epochs, "--json", *options,
                "--shard", f"{shard}/{servers}", "--bind", address, "--publish", f"{address[:-1]}6",
                stderr=subprocess.DEVNULL if shard else log,
            )
            for shard, address in enumerate(addresses)
        ]  # fmt: skip
        where = [word for address in addresses for word in ("--server", address)]
        others = [run_on(servers + rank + 1, "worker", dataset, *where, "--timeout", 120) for rank in range(workers)]
        try:
            try:
                shards[0].wait(seconds)
            except subprocess.TimeoutExpired:
                run_on(1, "finish", *addresses).communicate()
            if code := shards[0].wait(600):
                log.seek(0)
                last = (log.readlines() or ["no output"])[-1].strip()
                raise SystemExit(f"the first shard ended with status {code}: {last}")
            outputs = [process.communicate(timeout=600)[0] for process in [*shards, *others]]
        finally:
            for process in [*shards, *others]:
                process.kill()
                process.wait()
        found: dict[str, Any] = json.loads(outputs[0].splitlines()[-1])
        return found


@contextmanager
def machines(count: int, *rate: str) -> Iterator[None]:
    """Set up `count` machines with links of a given rate, or unlimited ones, during the block."""
    links("up", str(count), *rate)
    try:
        yield
    finally:
        links("down")


def run_on(machine: int, *words: object, stderr: IO[str] | int = subprocess.DEVNULL) -> subprocess.Popen[str]:
    """Start a glovewire command on one of the machines."""
    command = ["sh", str(LINKS), "run", str(machine), *glovewire(*words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)


def links(*words: str) -> None:
    """Set up the machines, or remove them."""
    subprocess.run(["sh", str(LINKS), *words], check=True)


def glovewire(*words: object) -> list[str]:
    """Return a glovewire command of this installation."""
    return [sys.executable, "-m", "glovewire", *map(str, words)]


if __name__ == "__main__":
    main()
