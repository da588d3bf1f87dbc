"""glovewire processes that start in a blink: forked from one that has imported and compiled everything.

Real processes with a pid, files for what they say, and an exit status; only the first second of Python is missing.
Preloaded into multiprocessing's fork server, which imports this module.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver
from multiprocessing.context import ForkServerProcess
from pathlib import Path

WARM = "forked_warm"


class Forked:
    """One command on its way; `out` and `err` are what it has said."""

    def __init__(self, folder: Path, name: str, *words: str | Path | float, jumps: int | None = None) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([WARM])
        with _findable():
            forkserver.ensure_running()
        self.name, self._out, self._err = name, folder / f"{name}.out", folder / f"{name}.err"
        self._process: ForkServerProcess = context.Process(
            target=_command, args=(list(map(str, words)), str(folder), str(self._out), str(self._err), jumps)
        )
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def status(self) -> int | None:
        """Exit status, negative for a signal, None while it runs."""
        return self._process.exitcode

    @property
    def out(self) -> str:
        return self._out.read_text(encoding="utf-8") if self._out.exists() else ""

    @property
    def err(self) -> str:
        return self._err.read_text(encoding="utf-8") if self._err.exists() else ""

    @property
    def last_words(self) -> str:
        """Its error in one line, or how else it ended."""
        errors = [line for line in self.err.splitlines() if line.startswith("error: ")]
        return (errors or [f"exit status {self.status}: {self.err[-200:]!r}"])[-1]

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        """End it, if it has not ended, and wait for that."""
        self._process.kill()
        self._process.join(10)
        self._process.close()


@contextmanager
def _findable() -> Iterator[None]:
    """Let the fork server find WARM: it does not get `sys.path`, and passes over what it cannot import."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parent), before]))
    try:
        yield
    finally:
        os.environ.pop("PYTHONPATH")
        if before is not None:
            os.environ["PYTHONPATH"] = before


def _command(words: list[str], folder: str, out: str, err: str, jumps: int | None) -> None:
    assert WARM in sys.modules, "the fork server is not warm"
    for number, path in ((1, out), (2, err)):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(handle, number)
        os.close(handle)
    os.chdir(folder)
    if jumps is not None:
        _jump(jumps)
    from glovewire.cli.main import main

    main(*words)


def _jump(seed: int) -> None:
    """Let the wall clock of this process jump by up to an hour, forth and back, whenever it is read."""
    draw, real = random.Random(seed), time.time
    time.time = lambda: real() + draw.uniform(-3600, 3600)
