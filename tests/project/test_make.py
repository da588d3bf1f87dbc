"""`make` refuses a Python that cannot make the environment, in one line."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def make(folder: Path, python: str) -> subprocess.CompletedProcess[str]:
    shutil.copy(ROOT / "Makefile", folder)
    environment = {
        name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "PYTHON")
    }
    return subprocess.run(
        ["make", f"PYTHON={python}", ".venv/made"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        timeout=120,
    )


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        ("exit 1", "is not Python 3.11 or newer; make PYTHON=python3.12 takes another"),
        ('case "$2" in *venv*) exit 1;; esac', "lacks the venv module"),
    ],
)
def test_a_python_that_does_not_suit_is_refused(tmp_path: Path, answer: str, complaint: str) -> None:
    python = tmp_path / "python3"
    python.write_text(f"#!/bin/sh\n{answer}\n")
    python.chmod(0o755)
    done = make(tmp_path, str(python))
    assert done.returncode == 2
    errors = [line for line in done.stderr.splitlines() if not line.startswith("make:")]
    assert len(errors) == 1
    assert errors[0].startswith(f"error: {python} ")
    assert complaint in errors[0]
    assert not (tmp_path / ".venv").exists()


def test_a_python_that_is_not_there_is_refused(tmp_path: Path) -> None:
    assert "error: no-such-python is not Python 3.11 or newer" in make(tmp_path, "no-such-python").stderr


def test_a_python_that_suits_makes_the_environment(tmp_path: Path) -> None:
    done = make(tmp_path, sys.executable)
    assert done.returncode == 0, done.stderr
    assert "== environment: Python 3." in done.stdout
    assert (tmp_path / ".venv" / "bin" / "python").exists()
