"""Compare training on machines that share no folder with training from a shared folder, in network namespaces.

    python benchmarks/downloads.py DATASET [--workers 3] [--servers 2] [--epochs 16] [--times 3] [-- OPTIONS]

Needs root and iproute2. Every process has its own network address. `apart`: shards with peers, and workers without a
dataset, each with an empty cache. `shared`: all have the same folders. `downloaded` is the number of bytes of entries
that the workers report as downloaded, `cached` that of all files in their caches, `received` that at the network
interfaces of their machines, rows and TCP headers included. Speed is measured from the second epoch on. The two kinds
train in turns.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from plan import LINKS, glovewire, machines

from glovewire.bench.measurements import spread, surroundings


def main() -> None:
    """Train both ways in turns, and print the figures of each turn and all of them as a JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--workers", default=3, type=int)
    parser.add_argument("--servers", default=2, type=int)
    parser.add_argument("--epochs", default=16, type=int)
    parser.add_argument("--times", default=3, type=int)
    words, options = sys.argv[1:], []
    if "--" in words:
        words, options = words[: words.index("--")], words[words.index("--") + 1 :]
    given = parser.parse_args(words)
    environment, turns = surroundings(), list[dict[str, Any]]()
    for _ in range(given.times):
        both = {}
        for kind in ("shared", "apart"):
            with machines(given.servers + given.workers), tempfile.TemporaryDirectory() as folder:
                both[kind] = train(given, Path(folder), options, apart=kind == "apart")
        apart, shared = both["apart"], both["shared"]
        turns.append(
            {
                "downloaded_bytes": apart["downloaded"],
                "cached_bytes": apart["cached"],
                "downloaded_of_cached": apart["downloaded"] / apart["cached"],
                "received_bytes": apart["received"],
                "received_beside_entries_of_shared": (apart["received"] - apart["downloaded"]) / shared["received"],
                "entries_per_second": apart["rate"],
                "speed_of_shared": apart["rate"] / shared["rate"],
            }
        )
        print(json.dumps(turns[-1]), flush=True)
    print(json.dumps({**{name: spread(turn[name] for turn in turns) for name in turns[0]}, **environment}))


def train(given: argparse.Namespace, folder: Path, options: list[str], *, apart: bool) -> dict[str, float]:
    """Train once, and return bytes downloaded, cached and received by the workers, and entries per second."""
    shards = range(given.servers)
    hosts = [f"10.77.0.{number + 1}" for number in shards]
    peers = [word for host in hosts for word in ("--peer", f"tcp://{host}:5557")] if apart else []
    servers = [word for host in hosts for word in ("--server", f"tcp://{host}:5555")]
    with ExitStack() as held:
        running = [
            start(
                held, shard, folder / f"shard-{shard}",
                "server", *([] if apart and shard else [given.dataset]), "--out", run_of(folder, shard, apart=apart),
                "--shard", f"{shard}/{given.servers}", "--bind", f"tcp://{hosts[shard]}:5555", "--publish",
                f"tcp://{hosts[shard]}:5556", "--epochs", given.epochs, "--workers", given.workers, "--subwords", 0,
                "--cache", folder / f"cache-of-shard-{shard}", *peers, "--insecure", *options,
            )
            for shard in shards
        ]  # fmt: skip
        logs = [folder / f"worker-{rank}" for rank in range(given.workers)]
        for rank, log in enumerate(logs):
            data = ["--cache", folder / f"cache-{rank}"] if apart else [given.dataset]
            words = ("worker", *data, *servers, "--name", f"w{rank}", "--timeout", 600)
            running.append(start(held, given.servers + rank, log, *words))
        if any(process.wait() for process in running):  # the first that fails ends the others
            raise SystemExit("\n".join(log.read_text()[-1000:] for log in folder.glob("[sw]*") if log.is_file()))
        total = sum(received(given.servers + rank) for rank in range(given.workers))
    caches = [file for rank in range(given.workers) for file in (folder / f"cache-{rank}").rglob("*")]
    told = [re.findall(r"bytes_downloaded=(\d+)", log.read_text()) for log in logs]
    return {
        "downloaded": sum(int(number) for numbers in told for number in numbers),
        "received": total,
        "cached": sum(file.stat().st_size for file in caches if file.is_file()),
        "rate": rate(run_of(folder, 0, apart=apart) / "metrics.jsonl"),
    }


def run_of(folder: Path, shard: int, *, apart: bool) -> Path:
    """Return the run folder of a shard."""
    return folder / (f"run-{shard}" if apart else "run")


def start(held: ExitStack, machine: int, log: Path, *words: object) -> subprocess.Popen[bytes]:
    """Start a glovewire command on a machine (from 0); it is killed when `held` is closed."""
    command = ["sh", str(LINKS), "run", str(machine + 1), *glovewire(*words)]
    with log.open("wb") as stream:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stream)
    held.callback(process.wait)
    held.callback(process.kill)
    return process


def received(machine: int) -> int:
    """Return the bytes that the interface of a machine (from 0) has received."""
    command = ["sh", str(LINKS), "run", str(machine + 1), "cat", "/sys/class/net/eth0/statistics/rx_bytes"]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def rate(metrics: Path) -> float:
    """Return entries per second from the second epoch on."""
    samples = [json.loads(line) for line in metrics.read_text().splitlines()]
    overall = [sample for sample in samples if sample.get("worker") == "all" and sample["epoch"] >= 1]
    if len(overall) < 2:
        raise SystemExit("too short: give more --epochs")
    first, last = overall[0], overall[-1]
    return float((last["entries"] - first["entries"]) / (last["t"] - first["t"]))


if __name__ == "__main__":
    main()
