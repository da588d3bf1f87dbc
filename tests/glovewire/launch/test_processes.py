"""Children end with their parent's way out, wherever in its work a signal interrupts it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from processes import until

from glovewire.common.errors import Interrupted
from glovewire.common.runtime.signals import signals_raise
from glovewire.launch.processes import Child, Children

LINES = 10
"""More than `subprocess` has between taking its lock and releasing it."""


def interrupt_at(line: int) -> None:
    """Raise SIGINT before the `line`-th line that the standard library executes while it asks for a child's status."""
    passed = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal passed
        if frame.f_code.co_name != "_internal_poll":
            return trace if event == "call" else None
        passed += event == "line"
        if passed == line:
            sys.settrace(None)
            signal.raise_signal(signal.SIGINT)
        return trace

    sys.settrace(trace)


@pytest.mark.parametrize("line", range(1, LINES))
def test_an_interruption_while_a_child_is_asked_for_its_status_ends_it(tmp_path: Path, line: int) -> None:
    before, children = sys.gettrace(), Children(tmp_path)

    @signals_raise()
    def interrupted() -> None:
        with children:
            child = lasting(children)
            interrupt_at(line)
            try:
                until(lambda: not child.running, "the interruption", seconds=25)
            finally:
                sys.settrace(before)

    with pytest.raises(Interrupted):
        interrupted()
    assert not children.all[0].running


def lasting(children: Children) -> Child:
    """A process that runs until it is ended."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    child = Child("sleeper", process, children.logs / "out", children.logs / "log")
    children.all.append(child)
    return child
