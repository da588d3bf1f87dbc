"""The wheel, installed in an environment of its own: a script of twelve lines, in a folder with files named as ours."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import numpy as np
import pytest
from source import ROOT

PURE = sysconfig.get_paths()["purelib"]
OWN = ("worker.py", "server.py", "monitor.py", "preprocess.py", "common/__init__.py")
TEXTS = ["the cat sits on the mat", "the dog sits on the rug", "a cat and a dog play"] * 20
WORDS = """
import glovewire
dataset = glovewire.preprocess("text.txt", "data/text")
run = glovewire.train(dataset, "runs/text", dim=16, epochs=20)
print(run.vectors.most_similar("cat", topn=1)[0][0])
print(glovewire.__file__)
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a new environment in which the wheel is installed, and which sees the libraries of this one."""
    pytest.importorskip("hatchling", reason="hatchling builds the wheel: install the extra dev")
    made = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(made)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = made.glob("glovewire-*.whl")
    venv.create(made / "venv", symlinks=True)
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(made / "venv")}))
    shutil.unpack_archive(wheel, site, "zip")
    (site / "libraries.pth").write_text(f"{PURE}\n")  # whose own .pth files, one of them ours, are not read
    for part in ("common", "preprocess", "server", "worker"):
        for kernel in (ROOT / part).rglob("*.nbi"):
            _take_over(kernel.parent, kernel.name.partition(".")[0], site / "glovewire")
    return made / "venv" / "bin" / "python"


def _take_over(cache: Path, module: str, package: Path) -> None:
    """Let what Numba has compiled for the checkout serve the same file of the package."""
    source = cache.parent / f"{module}.py"
    installed = package / source.relative_to(ROOT)
    if installed.exists() and installed.read_bytes() == source.read_bytes():
        shutil.copystat(source, installed)
        (installed.parent / "__pycache__").mkdir(exist_ok=True)
        for made in cache.glob(f"{module}.*.nb?"):
            shutil.copy2(made, installed.parent / "__pycache__")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a text, and with files of the user that bear the names of ours."""
    (tmp_path / "common").mkdir()
    for name in OWN:
        (tmp_path / name).write_text("raise SystemExit('the file of the user was imported')\n")
    (tmp_path / "text.txt").write_text("\n".join(TEXTS))
    return tmp_path


def run(python: Path, folder: Path, program: str) -> str:
    """Return what a script of at most twelve lines printed to stdout; it must print nothing to stderr."""
    assert len([line for line in program.splitlines() if line.strip()]) <= 12
    (folder / "script.py").write_text(program)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [python, "script.py"], cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_a_text_becomes_vectors(python: Path, folder: Path) -> None:
    word, imported = run(python, folder, WORDS).split()
    assert word in " ".join(TEXTS).split()
    assert Path(imported).is_relative_to(python.parents[1])
    assert np.load(folder / "runs" / "text" / "vectors.npy").shape[1] == 16


def test_a_pytorch_model_is_trained_by_two_workers(python: Path, folder: Path) -> None:
    pytest.importorskip("torch")
    page = (ROOT / "docs" / "library.md").read_text(encoding="utf-8")
    program = re.search(r"## Dense models.*?```python\n(.*?)```", page, re.DOTALL)
    assert program
    printed = run(python, folder, program[1])
    assert [float(number) for number in re.findall(r"\d\.\d*", printed)] == pytest.approx([1.0, 1.0], abs=0.05)
