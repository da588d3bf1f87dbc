"""The leak checks of conftest.py find each kind of leak, and let through what is none.

One pytest run in a process of its own, over tests that leak on purpose; each case here reads one outcome of it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PRELUDE = """
import gc, multiprocessing, os, socket, subprocess, sys, threading, time, warnings
from multiprocessing import resource_tracker, shared_memory

import pytest
import zmq

KEPT = []
FOREVER = [sys.executable, "-c", "import threading; threading.Event().wait(600)"]


class Raises:
    def __del__(self):
        raise ValueError("from a finaliser")


@pytest.fixture(scope="module")
def server():
    process = subprocess.Popen(FOREVER)
    yield process
    process.kill()
    process.wait()
"""

LEAKS = {
    "process": ("KEPT.append(subprocess.Popen(FOREVER))", "process "),
    "grandchild": (
        "subprocess.run([sys.executable, '-c', 'import subprocess, sys; "
        'subprocess.Popen([sys.executable, "-c", "import threading; threading.Event().wait(601)"])\'], check=True)',
        "Event().wait(601)",
    ),
    "thread": (
        "KEPT.append(threading.Event()); threading.Thread(target=KEPT[-1].wait, name='stray', daemon=True).start()",
        "thread 'stray'",
    ),
    "zmq_context": ("KEPT.append(zmq.Context())", "anon_inode:[eventfd]"),
    "zmq_socket": ("KEPT.append(zmq.Context()); KEPT.append(KEPT[-1].socket(zmq.DEALER))", "anon_inode:[eventpoll]"),
    "socket": ("KEPT.append(socket.create_server(('127.0.0.1', 0)))", "socket:["),
    "file": ("KEPT.append(open(__file__))", "test_leaks.py"),
    "pipe": ("KEPT.append(os.pipe())", "pipe:["),
    "shared_memory": ("KEPT.append(shared_memory.SharedMemory(create=True, size=64)); KEPT[-1].unlink()", "/dev/shm/"),
    "garbage": ("loop = [socket.socket()]; loop.append(loop)", "ResourceWarning"),
    "finaliser": ("Raises()", "from a finaliser"),
    "thread_error": ("t = threading.Thread(target=int, args=('x',)); t.start(); t.join()", "invalid literal"),
    "warning": ("warnings.warn('old', DeprecationWarning, stacklevel=1)", "DeprecationWarning: old"),
}
"""Name, the line that leaks, and what the report must say."""

CLEAN = {
    "nothing": "pass",
    "closed_soon": "threading.Timer(0.05, int).start()",
    "waited_for": "subprocess.run([sys.executable, '-c', ''], check=True)",
    "not_asked_for": "KEPT.append(subprocess.Popen(['true']))",
    "closed": "context = zmq.Context(); router = context.socket(zmq.ROUTER); router.close(); context.term()",
    "zero_copy": (
        "context = zmq.Context(); a = context.socket(zmq.PAIR); b = context.socket(zmq.PAIR); a.bind('inproc://a'); "
        "b.connect('inproc://a'); a.send(bytes(1 << 20), copy=False); b.recv(); context.destroy(linger=0)"
    ),
    "resource_tracker": "resource_tracker.ensure_running()",
    "module_fixture": "pass",
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """What pytest says of each leaking test: "" if it passed."""
    folder = tmp_path_factory.mktemp("leaks")
    (folder / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    clean = [f"def test_{name}({'server' * (name == 'module_fixture')}):\n    {line}\n" for name, line in CLEAN.items()]
    leaks = [f"def test_{name}():\n    {line}\n" for name, (line, _) in LEAKS.items()]
    (folder / "test_leaks.py").write_text("\n\n".join([PRELUDE, *clean, *leaks]))
    (folder / "test_module.py").write_text(MODULE)
    report = folder / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(folder)]
    command += ["-p", "no:cacheprovider", f"--junit-xml={report}", str(folder)]
    environment = {**os.environ, "GLOVEWIRE_TEST_GRACE_S": "0.5", "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("PYTEST_ADDOPTS", None)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    assert report.exists(), done.stdout + done.stderr
    cases = list(ET.parse(report).iter("testcase"))
    found = {str(case.get("name")).removeprefix("test_"): "" for case in cases}
    for case in cases:
        found[str(case.get("name")).removeprefix("test_")] += "".join(child.text or "" for child in case)
    return found


MODULE = """
import subprocess, sys

import pytest


@pytest.fixture(scope="module")
def careless():
    subprocess.Popen([sys.executable, "-c", "import threading; threading.Event().wait(602)"]).returncode = 0


def test_module_leak(careless):
    pass
"""


@pytest.mark.parametrize("name", LEAKS)
def test_a_leak_is_found_and_named(outcomes: Mapping[str, str], name: str) -> None:
    assert LEAKS[name][1] in outcomes[name]


@pytest.mark.parametrize("name", CLEAN)
def test_what_is_no_leak_passes(outcomes: Mapping[str, str], name: str) -> None:
    assert outcomes[name] == ""


def test_a_fixture_of_a_module_is_held_to_it_too(outcomes: Mapping[str, str]) -> None:
    assert "leaked by the fixtures of test_module.py" in outcomes["module_leak"]
    assert "Event().wait(602)" in outcomes["module_leak"]


def test_no_case_went_missing(outcomes: Mapping[str, str]) -> None:
    assert set(outcomes) == {*LEAKS, *CLEAN, "module_leak"}
