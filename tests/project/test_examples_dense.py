"""The examples with handwritten digits run from their first line to their last, small, on pools of every kind."""

from __future__ import annotations

import operator
import re
import runpy
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from source import ROOT

from glovewire.common.errors import UsageError

pytestmark = pytest.mark.timeout(450)
LONG_S = 400.0
TORCH = ["mnist_torch.py", "--steps", "60", "--every", "30", "--batch", "64", "--lr", "0.05"]
THINC = ["mnist_thinc.py", "--set", "training.steps=60", "--set", "evaluation.frequency=30",
         "--set", "optimizer.learning_rate=0.01"]  # fmt: skip
CASES = {
    "torch": ("torch", [*TORCH, "--shards", "2", "--pool", "ray" if find_spec("ray") else "processes"]),
    "thinc": ("thinc", [*THINC, "--set", "parameter_server.pool=futures", "--set", "training.mode=async"]),
}


WRONG = {
    "no such folder": ("torch", ["mnist_torch.py", "--data", "nowhere"], "error: nowhere has no images"),
    "no number": (
        "thinc",
        ["mnist_thinc.py", "--set", "optimizer.learning_rate=fast"],
        "optimizer.learning_rate is 0.006 in mnist_thinc.cfg; 'fast' is of another type",
    ),
    "no interval": ("torch", ["mnist_torch.py", "--every", "0"], "N must be at least 1, not 0"),
    "a batch of more than there is": (
        "torch",
        ["mnist_torch.py", "--batch", "5000"],
        "a batch has 1 to 1437 of the 1437 training images, not 5000: choose another size",
    ),
    "the same of a config": ("thinc", ["mnist_thinc.py", "--set", "training.batch_size=5000"], "not 5000: choose"),
    "no such pool": (
        "thinc",
        ["mnist_thinc.py", "--set", "parameter_server.pool=nonsense"],
        "there is no pool 'nonsense': choose one of processes, futures, lithops, ray",
    ),
    "no address": ("zmq", ["subscriber.py", "nonsense"], "error: 'nonsense' is not an address"),
    "no such key": ("thinc", ["mnist_thinc.py", "--set", "training.stpes=60"], "mnist_thinc.cfg has no training.stpes"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_told_in_a_line(
    case: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    needs, words, told = WRONG[case]
    pytest.importorskip(needs)
    monkeypatch.syspath_prepend(ROOT / "examples")
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "examples" / words[0]), run_name="__main__")
    assert ended.value.code not in (None, 0)
    assert told in f"{capsys.readouterr().err}{ended.value.code}"


@pytest.mark.timeout(10)
@pytest.mark.parametrize("size", [0, 5])
def test_a_batch_that_cannot_be_drawn_is_refused(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "examples")
    import images

    assert sorted(next(images.batches(4, 4, seed=0))) == [0, 1, 2, 3]
    with pytest.raises(UsageError, match=rf"1 to 4 of the 4 training images, not {size}: choose another size"):
        next(images.batches(4, size, seed=0))


@pytest.mark.parametrize("pool", ["processes", "futures"])
def test_a_pool_of_processes_runs_every_job(pool: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "examples")
    import pools

    with pools.started(pool, operator.sub, [(5, 3), (9, 2)]) as results:
        assert results() == [2, 7]


def test_workers_that_fail_end_an_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The observer must not wait for their next update."""
    monkeypatch.syspath_prepend(ROOT / "examples")
    import training

    with pytest.raises(TypeError, match="unsupported operand"):
        training.train(
            tmp_path / "run", operator.sub, (), lambda _: 0.0, pool="processes", workers=1, shards=1, every=1, steps=2,
            lease_s=1.0,
        )  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_an_example_learns_its_digits(case: str, tmp_path: Path) -> None:
    needs, words = CASES[case]
    out = ["--out", tmp_path / "run"] if needs == "torch" else []
    for library in (needs, "sklearn"):
        pytest.importorskip(library)
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / words[0], *words[1:], *out],
        capture_output=True, text=True, check=False, timeout=LONG_S, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert (tmp_path / "run" / "tensors.npz").is_file() == bool(out)
    found = [float(score) for score in re.findall(r"accuracy (0\.\d+|1\.0)", done.stdout)]
    assert found, done.stdout
    assert found[-1] > 0.7  # ten classes: chance is 0.1
    batches = re.search(r"batches of each worker: \[(\d+), (\d+)\]", done.stdout)
    assert batches
    assert sum(map(int, batches.groups())) >= 60
