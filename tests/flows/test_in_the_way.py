"""Files of the user in the current folder that bear the names of ours, or of libraries, are not imported."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from handmade import random_dataset

PROGRAM = shutil.which("glovewire", path=str(Path(sys.executable).parent))
SCRIPT = [str(PROGRAM)]
MODULE = [sys.executable, "-m", "glovewire"]
LIBRARY = [
    sys.executable,
    "-c",
    "import glovewire; print('glovewire', glovewire.__version__, glovewire.errors.UsageError)",
]
OWN = "raise SystemExit('the file of the user was imported')\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a worker.py and a common/ of the user's own."""
    (tmp_path / "common").mkdir()
    for name in ("worker.py", "common/__init__.py"):
        (tmp_path / name).write_text(OWN)
    return tmp_path


def run(folder: Path, words: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("words", [[*SCRIPT, "--version"], [*MODULE, "--version"], LIBRARY])
def test_a_worker_and_a_common_of_the_users_own(folder: Path, words: list[str]) -> None:
    done = run(folder, words)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("glovewire 0.")


def test_files_with_the_names_of_libraries(folder: Path) -> None:
    for name in ("click.py", "signal.py", "numpy.py", "json.py"):
        (folder / name).write_text(OWN)
    done = run(folder, [*MODULE, "stats", "--help"])
    assert (done.returncode, done.stderr) == (0, "")


def test_a_training_with_everything_in_the_way(folder: Path) -> None:
    """Its child processes do not import the user's files either."""
    random_dataset(folder / "data", size=40)
    for name in ("glovewire.py", "click.py", "signal.py"):
        (folder / name).write_text(OWN)
    words = ["train", "data", "--out", "run", "--dim", "4", "--epochs", "1", "--workers", "1", "--quiet", "--json"]
    done = run(folder, [*SCRIPT, *words])
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout.splitlines()[-1])["epochs"] == 1
    shared = run(folder, [sys.executable, "-P", "-m", "glovewire", *words, "--out", "shared", "--store", "shared"])
    assert (shared.returncode, shared.stderr) == (0, "")


def test_the_package_is_imported_without_libraries() -> None:
    code = "import sys; import glovewire; print(*sys.modules)"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert not {"click", "msgpack", "numba", "numpy", "scipy", "zmq"} & set(done.stdout.split())
