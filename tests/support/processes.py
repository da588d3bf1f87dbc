"""Real glovewire processes for the flow tests: started here, awaited with a deadline, never left behind.

`Flow` is a folder in which commands run, with `data` (a small dataset) in it. A command's stdout and stderr go to
files, so that no pipe can fill. Every wait has a deadline; a missed one fails with the output of the process.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import psutil
from forked import PROGRAM, ForkedPopen

from glovewire.common.ready import Ready

DEADLINE_S = 180.0  # far above what anything takes, unless the machine is slow or busy
FORKED = ("server", "worker", "train", "monitor", "stats", "finish", "checkpoint", "study", "plan")
"""Commands that flow tests start often, forked from a warm process."""
FREE = "tcp://127.0.0.1:0"
LASTING = ("--latency", "9ms")
"""Latency of each push for trainings in which something has to happen: they take seconds even on a fast machine."""
PORTS = range(10_000, 30_000)
"""Below the ephemeral ports of Linux, 32,768 and up."""
_pause = threading.Event()


def until(
    happened: Callable[[], Any], what: str | Callable[[], str], seconds: float = DEADLINE_S, *, every_s: float = 0.02
) -> Any:
    """The first true value of `happened()`; fails at the deadline, naming `what` (a function is called only then)."""
    deadline = time.monotonic() + seconds
    while not (value := happened()):
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what if isinstance(what, str) else what()}"
        _pause.wait(every_s)
    return value


@dataclass
class Running:
    """One running command."""

    words: str
    process: subprocess.Popen[bytes] | ForkedPopen
    stdout: Path
    stderr: Path

    @property
    def out(self) -> str:
        return self.stdout.read_text(encoding="utf-8")

    @property
    def err(self) -> str:
        return self.stderr.read_text(encoding="utf-8")

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def ready(self) -> tuple[str, str]:
        """A server's request and stream addresses, once it is bound."""
        until(lambda: "\n" in self.out or not self.running, f"{self.words} is ready")
        assert self.out.startswith("ready "), self.story
        ready = Ready.parse(self.out.splitlines()[0])
        return ready.address, ready.stream

    def says(self, text: str, seconds: float = DEADLINE_S) -> None:
        """Wait until it has said `text`, on stdout or stderr."""
        until(lambda: text in self.out + self.err or not self.running, f"{self.words} says {text!r}", seconds)
        assert text in self.out + self.err, self.story

    def ends(self, status: int = 0, seconds: float = DEADLINE_S) -> Running:
        """Wait for its end and compare the exit status."""
        until(lambda: not self.running, lambda: f"{self.words} ends; {self.story}", seconds)
        assert self.process.returncode == status, self.story
        return self

    def fails(self, *parts: str, status: int = 1) -> str:
        """Wait until it ends with `status` and an error of one line that contains every part; return the line."""
        self.ends(status)
        assert "Traceback" not in self.err, self.story
        lines = [line for line in self.err.splitlines() if line.startswith("error: ")]
        assert len(lines) == 1, self.story
        assert self.err.splitlines()[-1] == lines[0], self.story
        for part in parts:
            assert part in lines[0], self.story
        return lines[0]

    @property
    def json(self) -> dict[str, Any]:
        found = json.loads(self.out.splitlines()[-1])
        assert isinstance(found, dict)
        return found

    @property
    def story(self) -> str:
        code = self.process.poll()
        return f"{self.words} [{code}]\n--- stdout\n{self.out[-2000:]}\n--- stderr\n{self.err[-4000:]}"

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def family(self) -> dict[str, psutil.Process]:
        """Its child processes, by role and number (`server 0`, `worker 1`), from the names of their stdout files."""
        found = {}
        for child in psutil.Process(self.pid).children(recursive=True):
            with contextlib.suppress(OSError):  # it has just ended
                role, _, number = Path(os.readlink(f"/proc/{child.pid}/fd/1")).stem.partition("-")
                if role in ("server", "worker"):
                    found[f"{role} {number}"] = child
        return found


@dataclass
class Flow:
    """A folder where glovewire commands run; as a context manager, it kills the commands still running at its end.

    The commands in `forked` are forked from a warm process, unless `forks` is false or a `program` is given.
    """

    folder: Path
    all: list[Running] = field(default_factory=list)
    forks: bool = True
    forked: Sequence[str] = FORKED

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for running in self.all:
            if running.running:
                running.process.kill()
                running.process.wait()

    def path(self, *names: str) -> Path:
        return self.folder.joinpath(*names)

    def start(self, *words: str | Path | float, program: list[str] | None = None, **environment: str) -> Running:
        """Start `glovewire WORDS`, or `program`; keyword arguments are environment variables."""
        number, arguments = len(self.all), [str(word) for word in words]
        out, err = (self.folder / f".said-{number}.{kind}" for kind in ("out", "err"))
        env = {**os.environ, **environment}
        process: subprocess.Popen[bytes] | ForkedPopen
        with out.open("wb") as stdout, err.open("wb") as stderr:
            if self.forks and program is None and arguments[0] in self.forked:
                process = ForkedPopen(arguments, self.folder, out, err, env)
            else:
                process = subprocess.Popen(
                    [*(program or PROGRAM), *arguments],
                    cwd=self.folder,
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=stdout,
                    stderr=stderr,
                )
        self.all.append(Running(" ".join(["glovewire", *arguments]), process, out, err))
        return self.all[-1]

    def run(self, *words: str | Path | float, **environment: str) -> Running:
        """Run a command to its successful end."""
        return self.start(*words, **environment).ends(0)

    def train(self, out: str, *words: str | float, **environment: str) -> Running:
        """Start `glovewire train data --out OUT` with small vectors."""
        return self.start("train", "data", "--out", out, "--dim", 8, "--quiet", *words, **environment)

    def server(self, out: str, *words: str | float, program: list[str] | None = None) -> Running:
        """Start a server on free ports with small vectors; two epochs unless told otherwise."""
        epochs = [] if "--epochs" in words else ["--epochs", 2]
        usual = ["server", "data", "--out", out, "--bind", FREE, "--publish", FREE, "--dim", 8]
        return self.start(*usual, *epochs, *words, program=program)

    def worker(
        self,
        *addresses: str,
        name: str = "anna",
        data: str = "data",
        timeout: float = DEADLINE_S,
        how: Sequence[str] = (),
    ) -> Running:
        """Start a worker; `how` are further options."""
        where = [word for address in addresses for word in ("--server", address)]
        return self.start("worker", data, *where, "--name", name, "--timeout", timeout, *how)

    def stats(self, address: str) -> dict[str, Any]:
        """The statistics of the server at `address`."""
        shards = self.run("stats", address, "--json").json["shards"]
        return dict(shards[0])

    def vectors(self, out: str) -> bytes:
        """The bytes of a run's vectors."""
        return self.path(out, "vectors.npy").read_bytes()


def _ports() -> Iterator[int]:
    """PORTS, or this process's share under pytest-xdist, in random order, since another pytest may be running."""
    part, parts = (os.environ.get(f"PYTEST_XDIST_WORKER{what}") for what in ("", "_COUNT"))
    share = PORTS if part is None or parts is None else PORTS[int(part.removeprefix("gw")) :: int(parts)]
    yield from random.sample(share, len(share))


_untaken = _ports()


def free_port() -> int:
    """A port for a command that must name one, never the same twice, and never an ephemeral one.

    The machine might give an ephemeral port to another process that listens or connects, before the command binds it.
    """
    for port in _untaken:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")
