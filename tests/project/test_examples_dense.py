"""The examples with handwritten digits run from their first line to their last, small, on pools of every kind."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from source import ROOT

pytestmark = pytest.mark.timeout(450)
LONG_S = 400.0
TORCH = ["mnist_torch.py", "--steps", "60", "--every", "30", "--batch", "64", "--lr", "0.05"]
THINC = ["mnist_thinc.py", "--set", "training.steps=60", "--set", "evaluation.frequency=30",
         "--set", "optimizer.learning_rate=0.01"]  # fmt: skip
CASES = {
    "torch": ("torch", [*TORCH, "--shards", "2"]),
    "thinc": ("thinc", [*THINC, "--set", "parameter_server.pool=futures", "--set", "training.mode=async"]),
    "ray": ("torch ray", [*TORCH, "--pool", "ray"]),
}


WRONG = {
    "no such folder": ("torch", ["mnist_torch.py", "--data", "nowhere"], "error: nowhere has no images"),
    "no number": (
        "thinc",
        ["mnist_thinc.py", "--set", "optimizer.learning_rate=fast"],
        "optimizer.learning_rate is 0.006 in mnist_thinc.cfg; 'fast' is of another type",
    ),
    "no such key": ("thinc", ["mnist_thinc.py", "--set", "training.stpes=60"], "mnist_thinc.cfg has no training.stpes"),
}


def example(needs: str, words: list[str]) -> subprocess.CompletedProcess[str]:
    for library in needs.split():
        pytest.importorskip(library)
    return subprocess.run(
        [sys.executable, ROOT / "examples" / words[0], *words[1:]],
        capture_output=True, text=True, check=False, timeout=LONG_S, cwd=ROOT,
    )  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_told_in_a_line(case: str) -> None:
    needs, words, told = WRONG[case]
    done = example(needs, words)
    assert done.returncode in (1, 2)
    assert told in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("case", CASES)
def test_an_example_learns_its_digits(case: str) -> None:
    needs, words = CASES[case]
    done = example(f"{needs} sklearn", words)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    found = [float(score) for score in re.findall(r"accuracy (0\.\d+|1\.0)", done.stdout)]
    assert found, done.stdout
    assert found[-1] > 0.7  # ten classes: chance is 0.1
    batches = re.search(r"batches of each worker: \[(\d+), (\d+)\]", done.stdout)
    assert batches
    assert sum(map(int, batches.groups())) >= 60
