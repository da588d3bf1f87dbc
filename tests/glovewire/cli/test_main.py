"""The program as a whole: what it sets before it imports a command."""

from __future__ import annotations

import subprocess
import sys

import pytest

COUNT = """
from glovewire.cli.main import program
program.get_command(None, {command!r})
import os, numpy
print(os.environ.get("OPENBLAS_NUM_THREADS"), len(os.listdir("/proc/self/task")))
"""


@pytest.mark.parametrize("command", ["server", "train"])
def test_sums_in_several_threads_do_not_change_the_last_bits_of_vectors(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    words = [sys.executable, "-c", COUNT.format(command=command)]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout.split() == ["1", "1"]
