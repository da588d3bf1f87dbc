"""Measure training over slow and plain links in turns, between network namespaces. Needs root, iproute2 and bbr.

    python benchmarks/links.py DATASET [--times 5] [--epochs 16] [--link NAME COMMAND ...] [-- SERVER OPTIONS]

A kind of link is a NAME and a COMMAND to run on every machine. The default is `slow`, which adds 20 ms of delay, 5 ms
of jitter and 1 % loss to outgoing packets with netem. If the kernel has no netem, give `--link` a program that delays
the packets of NFQUEUE 0 and prints a line when it is ready. The programs are ended after each training.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from plan import LINKS, machines, train

from glovewire.bench.measurements import spread, surroundings

NETEM = "tc qdisc add dev eth0 root netem delay 20ms 5ms loss 1%"
LONG = (
    "net.ipv4.tcp_congestion_control=bbr",
    "net.ipv4.tcp_wmem=4096 65536 {most}",
    "net.ipv4.tcp_rmem=4096 131072 {most}",
)
"""Settings for connections with a long round trip, as in examples/network/long.yml, with buffers of 64 MiB."""
QUEUE = "iptables -A INPUT -i eth0 -j NFQUEUE --queue-num 0 --queue-bypass"


def main() -> None:
    """Train over each kind of link in turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--times", default=5, type=int)
    parser.add_argument("--epochs", default=16, type=int)
    parser.add_argument("--seconds", default=600, type=float)
    parser.add_argument("--workers", default=2, type=int)
    parser.add_argument("--servers", default=2, type=int)
    parser.add_argument("--buffers", default=64, type=int, metavar="MIB")
    parser.add_argument("--link", nargs=2, action="append", metavar=("NAME", "COMMAND"))
    words, options = sys.argv[1:], []
    if "--" in words:
        words, options = words[: words.index("--")], words[words.index("--") + 1 :]
    given = parser.parse_args(words)
    environment = surroundings()
    kinds = {"plain": "", **dict(given.link or [("slow", NETEM)])}
    rates: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(given.times):
        for name, command in kinds.items():
            count = given.workers + given.servers
            with machines(count), impaired(count, command, given.buffers << 20):
                found = train(
                    given.dataset, given.workers, given.servers, given.epochs, *options, seconds=given.seconds
                )
            rates[name].append(found["entries"] / found["seconds"] / 1e6)
            ratio = rates[name][-1] / rates["plain"][-1]
            print(f"{name:10} {rates[name][-1]:8.3f} million entries/s, {ratio:4.0%} of plain links", flush=True)
    spreads = {name: spread(each) for name, each in rates.items()}
    print(json.dumps({"million_entries_per_second": spreads, "ratio_to_plain": ratios(rates), **environment}))


def ratios(rates: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """Return the rate of each kind relative to plain links in the same turn."""
    return {
        name: spread([slow / plain for slow, plain in zip(each, rates["plain"], strict=True)])
        for name, each in rates.items()
        if name != "plain"
    }


@contextmanager
def impaired(count: int, command: str, buffer_bytes: int) -> Iterator[None]:
    """Run `command` on every machine, with connection buffers of `buffer_bytes`, during the block."""
    running = []
    try:
        for machine in range(1, count + 1):
            for setting in LONG:
                run_to_end(machine, "sysctl", "-qw", setting.format(most=buffer_bytes))
            if command:
                running.append(process := run_on(machine, *shlex.split(command)))
                assert process.stdout is not None
                if process.stdout.readline():
                    run_to_end(machine, *shlex.split(QUEUE))
                elif process.wait():
                    raise SystemExit(f"{command} failed on machine {machine}")
        yield
    finally:
        for process in running:
            process.terminate()
            process.communicate()


def run_to_end(machine: int, *words: str) -> None:
    """Run a command on one of the machines; SystemExit if it fails."""
    if code := run_on(machine, *words).wait():
        raise SystemExit(f"status {code} on machine {machine}: {shlex.join(words)}")


def run_on(machine: int, *words: str) -> subprocess.Popen[str]:
    """Start a command on one of the machines."""
    return subprocess.Popen(["sh", str(LINKS), "run", str(machine), *words], stdout=subprocess.PIPE, text=True)


if __name__ == "__main__":
    main()
