"""Dense models from a program of one's own: servers end with it, and its files are not in their way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from processes import until

import glovewire
from glovewire import errors
from glovewire.common.transport.curve_keys import make_keys

OWN = ("worker.py", "server.py", "monitor.py", "common/__init__.py", "glovewire_user.py")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with files of the user that bear the names of ours."""
    (tmp_path / "common").mkdir()
    for name in OWN:
        (tmp_path / name).write_text("raise SystemExit('the file of the user was imported')\n")
    return tmp_path


def run(folder: Path, program: str) -> subprocess.CompletedProcess[str]:
    (folder / "script.py").write_text(program)
    words = [sys.executable, "script.py"]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=200, check=False)


def test_a_program_that_forgets_to_close_ends_and_keeps_its_tensors(folder: Path) -> None:
    program = """
import glovewire
server = glovewire.serve("run")
ps = glovewire.Client(server.addresses)
ps.create({"weight": [1.0, 2.0]})
ps.close()
"""
    done = run(folder, program)
    assert (done.returncode, done.stderr) == (0, "")
    with np.load(folder / "run" / "tensors.npz") as tensors:
        assert tensors["weight"].tolist() == [1.0, 2.0]


def test_servers_end_with_a_program_that_is_killed(tmp_path: Path) -> None:
    program = (
        f"import glovewire, time; s = glovewire.serve({str(tmp_path / 'run')!r}); print('up', flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        server = [pid for pid in _children(process.pid) if b"server" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        assert len(server) == 1
        process.send_signal(signal.SIGKILL)
        until(lambda: not _is_running(server[0]), "the server has ended")


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_server_in_another_thread_leaves_signals_alone(tmp_path: Path) -> None:
    before, found = signal.getsignal(signal.SIGINT), []

    def serve() -> None:
        with glovewire.serve(tmp_path / "run") as server, glovewire.Client(server.addresses) as ps:
            ps.create({"weight": 1.0})
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=serve)
    thread.start()
    thread.join()
    assert found == [before]


def test_a_run_is_closed_once_and_then_has_tensors(tmp_path: Path) -> None:
    server = glovewire.serve(tmp_path / "run", shards=2)
    try:
        assert len(server.addresses) == len(server.streams) == 2
        with pytest.raises(errors.ArtifactError):
            server.tensors()
        with glovewire.Client(server.addresses) as ps:
            ps.create({"weight": np.arange(600.0)})
    finally:
        server.close()
        server.close()
    assert repr(server).endswith("ended)")
    np.testing.assert_array_equal(server.tensors()["weight"], np.arange(600.0))
    with pytest.raises(errors.UsageError, match="'optimiser'; did you mean 'optimizer'"):
        glovewire.serve(tmp_path / "other", optimiser="sgd")
    for objective in ("glove", "tensors"):
        with pytest.raises(errors.UsageError, match="no option is called 'objective'"):
            glovewire.serve(tmp_path / "other", objective=objective)
    assert os.listdir(tmp_path) == ["run"]


def test_an_address_and_the_folder_of_keys_may_be_texts(tmp_path: Path) -> None:
    make_keys(tmp_path / "keys")
    keys = str(tmp_path / "keys")
    with glovewire.serve(tmp_path / "run", keys=keys) as server:
        with glovewire.Client(server.addresses[0], keys=keys) as ps:
            ps.create({"weight": 1.0})
        assert next(glovewire.subscribe(server.streams[0], ["event"], keys=keys))["kind"] == "joined"
