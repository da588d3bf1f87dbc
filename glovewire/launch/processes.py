"""Start, watch and end glovewire processes, none of which outlives this one."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glovewire.common.cli.command import variable
from glovewire.common.errors import GlovewireError, ProcessDied
from glovewire.common.ready import Ready
from glovewire.common.runtime.signals import PARENT_VARIABLE, parent_token, signals_held

READY_S = 180.0
"""Time limit for a server to start; a busy machine needs more than a minute to compile a server's loops."""
MAX_STARTS = 100
STOP_S = 10.0
NO_SPACE_BYTES = 4096
CHECKOUT = Path(__file__).resolve().parents[2]
"""In a checkout, this folder is where child processes find the program."""


def environment(command: str, last_signal: signal.Signals = signal.SIGTERM) -> dict[str, str]:
    """Return this process's environment for a child that runs `glovewire COMMAND`, without the command's variables.

    Those variables set options, and are meant for processes started by hand. The child receives `last_signal` if this
    process dies.
    """
    ours = variable(command, "")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    if Path.cwd() != CHECKOUT:
        kept["PYTHONSAFEPATH"] = "1"  # files of the current folder must not be imported instead of ours
    return kept | {PARENT_VARIABLE: parent_token(last_signal)}


@dataclass
class Child:
    """One glovewire process; `role` names it in errors; its stdout and stderr go to the files `out` and `log`."""

    role: str
    process: subprocess.Popen[bytes]
    out: Path
    log: Path
    arguments: Sequence[str] = ()
    terminated: bool = False

    def terminate(self) -> None:
        """Send SIGTERM, but only once: a second one would kill the process while it shuts down cleanly."""
        if self.running and not self.terminated:
            self.terminated = True
            self.process.terminate()

    def ready(self) -> Ready:
        """Wait for the server's ready message and return it; ProcessDied if it ends first or READY_S pass."""
        deadline = time.monotonic() + READY_S
        while "\n" not in (text := self.printed()):
            if not self.running:
                raise self.died()
            if time.monotonic() > deadline:
                raise ProcessDied(f"{self.role} was not ready within {READY_S:.0f} s: see {self.log}")
            time.sleep(0.01)
        return Ready.parse(text.splitlines()[0])

    def facts(self) -> dict[str, Any]:
        """Return the JSON object that a process started with `--json` printed last; ProcessDied if it has failed."""
        if self.failed:
            raise self.died()
        found: dict[str, Any] = json.loads(self.printed().splitlines()[-1])
        return found

    def printed(self) -> str:
        """Return the content of stdout so far."""
        return self.out.read_text(encoding="utf-8", errors="replace")

    def died(self) -> GlovewireError:
        """Return the error for a process that ended unexpectedly, with its last `error:` line or its log's path."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines() if self.log.exists() else []
        last = next((line.removeprefix("error: ") for line in reversed(lines) if line.startswith("error: ")), "")
        code = self.status
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with exit status {code}"
        if not last and shutil.disk_usage(self.log.parent).free < NO_SPACE_BYTES:
            last = f"no space left on the disk of {self.log.parent}"
        return ProcessDied(f"{self.role} {how}: {last}" if last else f"{self.role} {how}; see {self.log}")

    @property
    def status(self) -> int | None:
        """Return the exit status, or minus the signal that ended the process; None while it runs."""
        with signals_held():
            return self.process.poll()

    @property
    def running(self) -> bool:
        """Return whether the process has not ended."""
        return self.status is None

    @property
    def killed(self) -> bool:
        """Return whether a signal ended the process, such as the kernel's when memory ran out."""
        return (self.status or 0) < 0

    @property
    def failed(self) -> bool:
        """Return whether the process has ended with a non-zero status or by a signal."""
        return self.status not in (None, 0)


class Children(AbstractContextManager["Children"]):
    """Context manager that starts glovewire processes and, on exit, ends them all within `patience_s` seconds.

    The processes receive `last_signal` if this process dies before it can end them.
    """

    def __init__(self, logs: Path, last_signal: signal.Signals = signal.SIGTERM) -> None:
        self.logs, self._last_signal = logs, last_signal
        self.logs.mkdir(parents=True, exist_ok=True)
        self.all: list[Child] = []
        self.patience_s = STOP_S

    def __exit__(self, *_: object) -> None:
        self.end()

    def start(self, role: str, arguments: Sequence[str]) -> Child:
        """Start `glovewire ARGUMENTS` and return the process."""
        inherited = environment(arguments[0], self._last_signal)
        out, log = (self.logs / f"{role.replace(' ', '-')}.{kind}" for kind in ("out", "log"))
        with out.open("wb") as stdout, log.open("ab") as stderr, signals_held():
            process = subprocess.Popen(
                [sys.executable, "-m", "glovewire", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                env={"OPENBLAS_NUM_THREADS": "1", **inherited, "OMP_NUM_THREADS": "1"},
                start_new_session=True,  # Ctrl-C reaches only this process, which ends the others cleanly
            )
            child = Child(role, process, out, log, arguments)
            self.all.append(child)
        return child

    def start_shards(self, arguments: Sequence[str], shards: int) -> list[Child]:
        """Start `glovewire ARGUMENTS` once for each shard."""
        return [
            self.start(f"server {shard}", [*arguments, "--shard", f"{shard}/{shards}", "--json"])
            for shard in range(shards)
        ]

    def may_restart(self, role: str) -> bool:
        """Return whether a process of this role was started fewer than MAX_STARTS times."""
        return sum(child.role == role for child in self.all) < MAX_STARTS

    def end(self) -> None:
        """Send SIGTERM to all, then SIGKILL to any left after `patience_s` seconds; return when all have ended."""
        with signals_held():
            for child in self.all:
                child.terminate()
            deadline = time.monotonic() + self.patience_s
            for child in self.all:
                try:
                    child.process.wait(max(deadline - time.monotonic(), 0.01))
                except subprocess.TimeoutExpired:
                    child.process.kill()
                    child.process.wait()
