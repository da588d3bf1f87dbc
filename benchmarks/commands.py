"""Start glovewire commands as children for the benchmarks in this folder, and read a server's status."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from glovewire.common.protocol.messages import GetStatus, Status
from glovewire.common.transport.client import RequestClient

ROOT = Path(__file__).parents[1]
ANY_PORT = "tcp://127.0.0.1:0"
START_S = 120.0


class Server(NamedTuple):
    """A server's process and the addresses of its requests and of its stream."""

    process: subprocess.Popen[str]
    address: str
    stream: str


@contextmanager
def child(*words: object, wait_for: str = "") -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run Python with `words`; yield the process and its first line of output that matches `wait_for`."""
    command = [sys.executable, *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    try:
        line, last = "", deque[str](maxlen=5)
        assert process.stdout is not None
        while wait_for and not re.search(wait_for, line):
            line = process.stdout.readline()
            assert line, f"{command} ended: {''.join(last)}"
            last.append(line)
        threading.Thread(target=lambda: list(process.stdout or ()), daemon=True).start()
        yield process, line
    finally:
        process.send_signal(signal.SIGCONT)
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def glovewire(*words: object, wait_for: str = "") -> Any:
    """Run a glovewire command; see `child`."""
    return child("-m", "glovewire", *words, wait_for=wait_for)


@contextmanager
def server(dataset: object, out: object, *options: object) -> Iterator[Server]:
    """Run a server of one shard that trains almost endlessly."""
    fixed = ("--bind", ANY_PORT, "--publish", ANY_PORT, "--epochs", 1_000_000, "--no-verify")
    with glovewire("server", dataset, "--out", out, *fixed, *options, wait_for="^ready") as (process, line):
        yield Server(process, line.split()[1], line.split()[3])


def server_status(client: RequestClient) -> dict[str, Any]:
    """Return the server's status."""
    reply = client.ask(0, GetStatus(), 60.0)
    assert isinstance(reply, Status)
    status: dict[str, Any] = json.loads(bytes(reply.body))
    return status


def wait_until(condition: Callable[[], Any], what: str, seconds: float = START_S) -> None:
    """Poll until `condition` is true; after `seconds`, raise AssertionError with `what`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited too long for {what}"
        time.sleep(0.1)
