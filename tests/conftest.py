"""What every test stands on: nothing may leak, and the data folder beside the checkout where there is one.

After each test, module and session the process must hold what it held before: the same living children (and
children's children, which are adopted when their parent dies), the same threads, the same open files, pipes, sockets
and ZeroMQ contexts. What is there a deadline later is named and fails the test; children are killed, so that one leak
does not harm the next test. Unraisable errors, errors in threads and warnings fail by `filterwarnings` in
pyproject.toml. tests/project/test_conftest.py shows that every kind of leak is found.

Fixtures: `shared_data`, `fonts_are_closed`. No datasets, servers or other builders: those live beside the tests that
need them.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import zmq

GRACE_S = float(os.environ.get("GLOVEWIRE_TEST_GRACE_S", "15"))
"""How long a test's processes, threads and sockets may take to disappear after its last line."""

_PR_SET_CHILD_SUBREAPER = 36
gc.disable()  # until the session begins: looking again and again through what is imported and stays takes 3 s
_SELF = Path("/proc/self")


@dataclass(frozen=True)
class Holdings:
    """What this process holds: ids of living children, threads, and open files by what they point at."""

    children: frozenset[int]
    threads: frozenset[threading.Thread]
    files: Counter[str]

    @staticmethod
    def now() -> Holdings:
        """Look once; about 0.1 ms."""
        return Holdings(frozenset(_children()), frozenset(threading.enumerate()), Counter(_files()))

    def more_than(self, before: Holdings) -> list[str]:
        """One line for everything that is here and was not there `before` and is not allowed."""
        found = [f"process {pid}: {_command(pid)}" for pid in sorted(self._new_children(before))]
        threads = (t for t in self.threads - before.threads if t.is_alive() and type(t).__name__ not in ALLOWED_THREADS)
        found += sorted(f"thread {thread.name!r}" for thread in threads)
        files = self.files - before.files - _allowed_files()
        found += [f"{count} open {target}" for target, count in sorted(files.items())]
        return found

    def _new_children(self, before: Holdings) -> set[int]:
        return {pid for pid in self.children - before.children - _allowed_children() if _is_running(pid)}


ALLOWED_THREADS = {
    "TMonitor": "tqdm (inside datasets) keeps one watcher for all bars until the process ends; it holds nothing",
}

ALLOWED_HELPERS = {
    "resource_tracker": "one process that multiprocessing keeps until its parent ends, to free shared memory",
    "forkserver": "the same, to start children from",
}
"""Helper processes by their module in `multiprocessing` (and in `multiprocess`, which datasets brings)."""


def _allowed_children() -> set[int]:
    helpers = list(_helpers())
    pids = [getattr(h, "_pid", None) or getattr(h, "_forkserver_pid", None) for h in helpers]
    return {pid for pid in pids if pid}


def _allowed_files() -> Counter[str]:
    """The pipes by which the helper processes notice that we are gone."""
    names = ("_fd", "_forkserver_alive_fd")
    numbers = [getattr(helper, name, None) for helper in _helpers() for name in names]
    return Counter(target for number in numbers if number is not None for target in _targets([str(number)]))


def _helpers() -> Iterator[object]:
    for package in ("multiprocessing", "multiprocess"):
        for name in ALLOWED_HELPERS:
            if f"{package}.{name}" in sys.modules:
                yield getattr(sys.modules[f"{package}.{name}"], f"_{name}")


def _children() -> Iterator[int]:
    for task in (_SELF / "task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread ended meanwhile
            yield from map(int, (task / "children").read_text().split())


def _is_running(pid: int) -> bool:
    """Whether the process does anything still; a dead one whose status nobody has asked for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _command(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return "(gone)"
    return b" ".join(words).decode(errors="replace").strip()[:200]


def _files() -> Iterator[str]:
    return _targets(os.listdir(_SELF / "fd"))


def _targets(numbers: list[str]) -> Iterator[str]:
    for number in numbers:
        with contextlib.suppress(FileNotFoundError):  # the folder's own handle, or closed meanwhile
            yield os.readlink(_SELF / "fd" / number)


def _leaks(before: Holdings) -> list[str]:
    """What is more than before once the deadline has passed; empty, at once, in the usual case."""
    found = Holdings.now().more_than(before)
    if not found:
        return []
    gc.collect()  # what is only garbage closes itself here, and its ResourceWarning fails the test
    deadline = time.monotonic() + GRACE_S
    pause = threading.Event()
    while (found := Holdings.now().more_than(before)) and time.monotonic() < deadline:
        pause.wait(0.01)
    return found


@contextlib.contextmanager
def _nothing_leaks(what: str) -> Iterator[None]:
    before = Holdings.now()
    yield
    found = _leaks(before)
    for pid in Holdings.now()._new_children(before):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if found:
        pytest.fail(f"leaked by {what}, {GRACE_S:g} s after its end:\n  " + "\n  ".join(found), pytrace=False)


@pytest.fixture(autouse=True, scope="session")
def _session_leaves_nothing() -> Iterator[None]:
    gc.collect()
    gc.freeze()  # what is imported and collected stays: `_leaks` would look through all of it, for 0.7 s
    gc.enable()
    _adopt_orphans()
    _hear_ctrl_c()
    _start_what_stays()
    with _nothing_leaks("the session"):
        yield


@pytest.fixture(autouse=True, scope="module")
def _module_leaves_nothing(_session_leaves_nothing: None, request: pytest.FixtureRequest) -> Iterator[None]:
    with _nothing_leaks(f"the fixtures of {request.node.name}"):
        yield


@pytest.fixture(autouse=True)
def _test_leaves_nothing(_module_leaves_nothing: None) -> Iterator[None]:
    with _nothing_leaks("this test"):
        yield


@pytest.fixture(autouse=True)
def _log_is_as_it_was() -> Iterator[None]:
    """A command that ran in this process has sent the log somewhere: later tests would write there, too."""
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    yield
    root.setLevel(level)
    root.handlers[:] = handlers


def _adopt_orphans() -> None:
    """Become the parent of grandchildren whose parent dies: a worker that outlives its run is then seen."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def _hear_ctrl_c() -> None:
    """A shell without job control makes what it starts in the background deaf to SIGINT, and all that this starts."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _start_what_stays() -> None:
    """Start what a library keeps until the process ends, so that no single test is blamed for it.

    pyzmq frees buffers that were sent without a copy in a thread with sockets of its own.
    """
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with context, context.socket(zmq.PAIR) as left, context.socket(zmq.PAIR) as right:
        left.bind("inproc://warm")
        right.connect("inproc://warm")
        left.send(bytes(1 << 20), copy=False)
        right.recv()


@pytest.fixture
def fonts_are_closed() -> Iterator[None]:
    """matplotlib keeps the fonts that it has drawn with open, on purpose: they are no leak of ours."""
    yield
    from matplotlib import font_manager

    font_manager._get_font.cache_clear()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder with real text, word pairs and images beside the checkout; skips where there is none."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"needs the data folder {folder}, which is not part of the project")
    return folder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let whatever asks for `shared_data` be chosen with `-m data`, and play the simulation first.

    The simulation is one long file: played last, as in the order of folders, it leaves the other processes idle.
    """
    for item in items:
        if "shared_data" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.data)
    items.sort(key=lambda item: "simulation" not in item.path.parts)
