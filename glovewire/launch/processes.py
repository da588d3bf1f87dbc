"""Child processes that never outlive their parent: started here, told to stop here, waited for here."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from glovewire.common.cli.command import variable
from glovewire.common.errors import GlovewireError, ProcessDied

PARENT_VARIABLE = "GLOVEWIRE_PARENT"
_PR_SET_PDEATHSIG = 1
READY_S = 180.0
"""A machine that does much else needs more than a minute to compile a server's loops."""
MAX_STARTS = 100
STOP_S = 10.0
NO_SPACE_BYTES = 4096


def parent(last_signal: signal.Signals) -> str:
    """What PARENT_VARIABLE tells a child of this process: whose it is, and which signal it gets when that one ends."""
    return f"{os.getpid()}:{int(last_signal)}"


def die_with_parent() -> None:
    """If a glovewire process started this one, ask Linux for its last signal when that one ends, however it ends."""
    parent, _, number = os.environ.pop(PARENT_VARIABLE, "").partition(":")
    try:
        whose, last_signal = int(parent), signal.Signals(int(number))
    except ValueError:  # unset, or set by somebody else
        return
    with contextlib.suppress(OSError, AttributeError):  # not Linux: the parent's own clean-up must do
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(last_signal))
    if os.getppid() != whose:
        sys.exit(1)


def end_on_signals_as_first_process() -> None:
    """In a container Linux gives process 1 no signal that it has no handler for: give it what others have."""
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


@dataclass
class Child:
    """One process of a run: `role` names it to people; its stdout and stderr go to the files `out` and `log`."""

    role: str
    process: subprocess.Popen[bytes]
    out: Path
    log: Path
    arguments: Sequence[str] = ()
    told: bool = False

    def tell(self) -> None:
        """SIGTERM, once: a second one would kill it while it ends in order."""
        if self.running and not self.told:
            self.told = True
            self.process.terminate()

    def ready_line(self, deadline: float) -> str:
        """The first line it prints; ProcessDied with its own last words if it ends before, or at the deadline."""
        while "\n" not in (text := self.printed()):
            if not self.running:
                raise self.died()
            if time.monotonic() > deadline:
                raise ProcessDied(f"{self.role} was not ready within {READY_S:.0f} s: see {self.log}")
            time.sleep(0.01)
        return text.splitlines()[0]

    def printed(self) -> str:
        """What it has printed so far."""
        return self.out.read_text(encoding="utf-8", errors="replace")

    def died(self) -> GlovewireError:
        """What to say when this process ended by itself: its last error line."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines() if self.log.exists() else []
        last = next((line.removeprefix("error: ") for line in reversed(lines) if line.startswith("error: ")), "")
        code = self.process.poll()
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with exit status {code}"
        if not last and shutil.disk_usage(self.log.parent).free < NO_SPACE_BYTES:
            last = f"no space left on the disk of {self.log.parent}"
        return ProcessDied(f"{self.role} {how}: {last}" if last else f"{self.role} {how}; see {self.log}")

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self.process.poll() is None

    @property
    def killed(self) -> bool:
        """Whether a signal ended it: somebody's, or the kernel's for want of memory."""
        return (self.process.poll() or 0) < 0

    @property
    def failed(self) -> bool:
        """Whether it has ended with anything but success."""
        return self.process.poll() not in (None, 0)


class Children:
    """Starts glovewire processes and ends them all on the way out, whatever happened; `patience_s` bounds that.

    They get `last_signal` when this process dies without a way out.
    """

    def __init__(self, logs: Path, last_signal: signal.Signals = signal.SIGTERM) -> None:
        self._logs, self._last_signal = logs, last_signal
        self._logs.mkdir(parents=True, exist_ok=True)
        self.all: list[Child] = []
        self.patience_s = STOP_S

    def start(self, role: str, arguments: Sequence[str]) -> Child:
        """Start `glovewire ARGUMENTS`."""
        ours = variable(arguments[0], "")  # options from variables are for who starts such a process by hand
        environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        environment |= {PARENT_VARIABLE: parent(self._last_signal), "OMP_NUM_THREADS": "1"}
        environment.setdefault("OPENBLAS_NUM_THREADS", "1")
        out, log = (self._logs / f"{role.replace(' ', '-')}.{kind}" for kind in ("out", "log"))
        with out.open("wb") as stdout, log.open("ab") as stderr:
            process = subprocess.Popen(
                [sys.executable, "-m", "glovewire", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                env=environment,
                start_new_session=True,  # Ctrl-C reaches this process alone, which ends the others in order
            )
        child = Child(role, process, out, log, arguments)
        self.all.append(child)
        return child

    def may_restart(self, role: str) -> bool:
        """Whether a process of this role was started fewer than MAX_STARTS times."""
        return sum(child.role == role for child in self.all) < MAX_STARTS

    def restart(self, child: Child) -> Child:
        """Start a process that has ended once more."""
        return self.start(child.role, child.arguments)

    def end(self) -> None:
        """SIGTERM to all, SIGKILL to those still there after `patience_s`; returns when every one is gone."""
        for child in self.all:
            child.tell()
        deadline = time.monotonic() + self.patience_s
        for child in self.all:
            try:
                child.process.wait(max(deadline - time.monotonic(), 0.01))
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()
