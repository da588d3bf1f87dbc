"""The pace of training over slow links beside plain ones, in turn, between network namespaces. Root, iproute2, bbr.

    python benchmarks/links.py DATASET [--times 5] [--epochs 16] [--link NAME COMMAND ...] [-- SERVER OPTIONS]

A kind of link is a NAME and a COMMAND that is run on every machine: by default `slow`, with 20 ms of delay, 5 ms of
jitter and 1 % loss by netem on what leaves it. Where the kernel has no netem: a program for `--link` that keeps what
comes in on NFQUEUE 0 waiting, and prints a line when it is ready. The programs are ended after each training.
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
"""What connections need to keep their speed on a long way; as in examples/network/long.yml, with buffers of 64 MiB."""
QUEUE = "iptables -A INPUT -i eth0 -j NFQUEUE --queue-num 0 --queue-bypass"


def main() -> None:
    """Train over each kind of link in turn."""
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
    around = surroundings()
    kinds = {"plain": "", **dict(given.link or [("slow", NETEM)])}
    paces: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(given.times):
        for name, command in kinds.items():
            count = given.workers + given.servers
            with machines(count), impaired(count, command, given.buffers << 20):
                found = train(
                    given.dataset, given.workers, given.servers, given.epochs, *options, seconds=given.seconds
                )
            paces[name].append(found["entries"] / found["seconds"] / 1e6)
            kept = paces[name][-1] / paces["plain"][-1]
            print(f"{name:10} {paces[name][-1]:8.3f} million entries/s, {kept:4.0%} of plain links", flush=True)
    print(json.dumps({"pace": {name: spread(of) for name, of in paces.items()}, "kept": kept_of(paces), **around}))


def kept_of(paces: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """What each kind keeps of the pace over plain links that was measured just before."""
    return {
        name: spread([slow / plain for slow, plain in zip(of, paces["plain"], strict=True)])
        for name, of in paces.items()
        if name != "plain"
    }


@contextmanager
def impaired(count: int, command: str, buffer_bytes: int) -> Iterator[None]:
    """Links as `command` makes them, and connections with such buffers, while it lasts."""
    running = []
    try:
        for machine in range(1, count + 1):
            for setting in LONG:
                on(machine, "sysctl", "-qw", setting.format(most=buffer_bytes)).wait()
            if command:
                running.append(process := on(machine, *shlex.split(command)))
                assert process.stdout is not None
                if process.stdout.readline():
                    on(machine, *shlex.split(QUEUE)).wait()
                elif process.wait():
                    raise SystemExit(f"{command} failed on machine {machine}")
        yield
    finally:
        for process in running:
            process.terminate()
            process.communicate()


def on(machine: int, *words: str) -> subprocess.Popen[str]:
    """A command on one of the machines."""
    return subprocess.Popen(["sh", str(LINKS), "run", str(machine), *words], stdout=subprocess.PIPE, text=True)


if __name__ == "__main__":
    main()
