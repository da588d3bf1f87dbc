"""Fast-starting glovewire processes: forked from one that has imported and compiled everything.

They are real processes with a pid, output files and an exit status; they only save the first second of Python, and have
no command line of their own. The children of `glovewire train` are forked by their parent. The warm process is
multiprocessing's fork server, which preloads WARM.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import math
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any
from unittest import mock

from glovewire.common.runtime.signals import PARENT_VARIABLE

WARM = "forked_warm"
PROGRAM = [sys.executable, "-m", "glovewire"]


def warm_context() -> ForkServerContext:
    """Return the multiprocessing context that forks from the warm process, which is started if need be."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([WARM])
    with _findable():
        forkserver.ensure_running()
    return context


class ForkedPopen:
    """Like `subprocess.Popen` of `python -m MODULE WORDS` in `folder`."""

    def __init__(
        self,
        words: Sequence[str],
        folder: Path,
        out: Path,
        err: Path,
        environment: dict[str, str],
        *,
        module: str = "glovewire",
        jumps: int | None = None,
    ) -> None:
        self.returncode: int | None = None
        self._asking = threading.Lock()
        self._process: ForkServerProcess = warm_context().Process(
            target=_command, args=(module, list(words), str(folder), str(out), str(err), jumps, environment)
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    def poll(self) -> int | None:
        """Exit status, negative for a signal, None while it runs.

        The fork server reports it only once. Seen to fail: of two threads that asked at the same time, one got 255.
        """
        with self._asking:
            if self.returncode is None and (status := self._process.exitcode) is not None:
                self.returncode = status
                self._process.close()
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end."""
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("glovewire", timeout or 0.0)
            time.sleep(0.005)
        return status

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, if the process runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM, if the process runs."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process, if it runs."""
        self.send_signal(signal.SIGKILL)


@contextmanager
def programs_fork() -> Iterator[None]:
    """Let the library and commands, in this process, start forked processes.

    These have no command line of their own: `bench` gets their roles from the names of their output files.
    """
    from glovewire.api import background
    from glovewire.bench import measured_run
    from glovewire.launch import processes

    def popen(
        words: Sequence[str], *, stdout: IO[bytes], stderr: IO[bytes], env: dict[str, str], **_: Any
    ) -> ForkedPopen:
        env.pop(PARENT_VARIABLE)  # its parent is the fork server
        out, err = Path(stdout.name), Path(stderr.name)
        return ForkedPopen(words[3:], Path.cwd(), out, err, env, module=words[2])

    def command_line(pid: int) -> list[str]:
        with contextlib.suppress(OSError):  # it has just ended
            parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
            written, by_parent = (os.readlink(f"/proc/{one}/fd/1") for one in (pid, parent))
            if written != by_parent:  # else it has just started, and does not write to its own file yet
                return ["glovewire", Path(written).stem.partition("-")[0]]
        return []

    with (
        mock.patch.object(background, "subprocess", _with(popen)),
        mock.patch.object(processes, "subprocess", _with(popen)),
        mock.patch.object(measured_run, "command_line", command_line),
    ):
        yield


def _with(popen: Callable[..., Any]) -> SimpleNamespace:
    """Return the parts of `subprocess` that our program uses, with another Popen."""
    return SimpleNamespace(Popen=popen, DEVNULL=subprocess.DEVNULL, TimeoutExpired=subprocess.TimeoutExpired)


class Forked:
    """One running command; `out` and `err` are its output so far."""

    def __init__(self, folder: Path, name: str, *words: str | Path | float, jumps: int | None = None) -> None:
        self.name, self._out, self._err = name, folder / f"{name}.out", folder / f"{name}.err"
        self._process = ForkedPopen(list(map(str, words)), folder, self._out, self._err, dict(os.environ), jumps=jumps)
        self.pid = self._process.pid

    @property
    def status(self) -> int | None:
        """Exit status, negative for a signal, None while it runs."""
        return self._process.poll()

    @property
    def out(self) -> str:
        return self._out.read_text(encoding="utf-8") if self._out.exists() else ""

    @property
    def err(self) -> str:
        return self._err.read_text(encoding="utf-8") if self._err.exists() else ""

    @property
    def last_words(self) -> str:
        """The line of its error, or how else it ended."""
        errors = [line for line in self.err.splitlines() if line.startswith("error: ")]
        return (errors or [f"exit status {self.status}: {self.err[-200:]!r}"])[-1]

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it if it has not ended, and wait for its end."""
        self._process.kill()
        self._process.wait()


@contextmanager
def _findable() -> Iterator[None]:
    """Let the fork server find WARM: it does not get `sys.path`, and ignores what it cannot import."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parent), before]))
    try:
        yield
    finally:
        os.environ.pop("PYTHONPATH")
        if before is not None:
            os.environ["PYTHONPATH"] = before


# ---- in the forked process


def _command(
    module: str, words: list[str], folder: str, out: str, err: str, jumps: int | None, environment: dict[str, str]
) -> None:
    assert WARM in sys.modules, "the fork server is not warm"
    for number, path in ((0, os.devnull), (1, out), (2, err)):
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        os.dup2(handle, number)
        os.close(handle)
    os.chdir(folder)
    if jumps is not None:
        _jump(jumps)
    _run(module, words, environment)


def _run(module: str, words: list[str], environment: dict[str, str]) -> None:
    """Run the program; its glovewire child processes are forked, too."""
    from glovewire.api import child
    from glovewire.cli.main import main
    from glovewire.launch import processes

    os.environ.clear()
    os.environ.update(environment)
    sys.argv[:] = [module, *words]
    processes.subprocess = _with(_popen)  # type: ignore[assignment]
    if module == "glovewire":
        main(*words)
    else:
        child.main()


def _popen(words: Sequence[str], *, env: dict[str, str], **how: Any) -> subprocess.Popen[bytes]:
    """Start a process; one of our program begins where other processes would call `exec`."""
    if list(words[:3]) != PROGRAM:
        return subprocess.Popen(words, env=env, **how)
    sys.stdout.flush()
    sys.stderr.flush()
    begin = partial(_be_new_process, list(words[3:]), env)
    return subprocess.Popen(words, **how, restore_signals=False, preexec_fn=begin)


def _be_new_process(words: list[str], environment: dict[str, str]) -> None:
    """Drop what belongs to the parent, run the program and exit."""
    from glovewire.common.runtime import signals

    status = 1
    try:
        gc.freeze()  # the parent's objects must not be closed here
        gc.enable()
        os.closerange(3, 1 + max(map(int, os.listdir("/proc/self/fd"))))
        logging.getLogger().handlers.clear()
        sys.excepthook, sys.unraisablehook = sys.__excepthook__, sys.__unraisablehook__
        signals._held = 0
        tracker = resource_tracker._resource_tracker
        tracker._fd = tracker._pid = None  # type: ignore[attr-defined]
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number in (signal.SIGTERM, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        _run("glovewire", words, environment)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


def _jump(seed: int) -> None:
    """Let the wall clock of this process jump by up to an hour, forward or back, whenever it is read."""
    draw, real = random.Random(seed), time.time
    time.time = lambda: real() + draw.uniform(-3600, 3600)
