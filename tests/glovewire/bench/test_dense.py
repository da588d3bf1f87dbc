"""What `glovewire bench dense` refuses, and makes of its figures; measuring needs two libraries and a quiet machine."""

from __future__ import annotations

import subprocess
import sys

import pytest

from glovewire.bench.config import DenseBenchConfig
from glovewire.bench.convnet import Pace, Watch, drawn, loaded
from glovewire.bench.dense import MODES, summary, table
from glovewire.common.errors import UsageError


def test_all_problems_are_named_at_once() -> None:
    with pytest.raises(UsageError, match=r"workers must be at least 1; .*seconds must be at least 0\.1"):
        DenseBenchConfig(workers=0, seconds=0.0)


def test_what_a_gradient_takes_is_nobodys_merit() -> None:
    """With gradients of 1 ms, of which `sync` takes two: 3 ms against 10 leave 1 against 8."""
    ours, theirs = Pace(300.0, 3.0), Pace(100.0, 10.0)
    paces = {f"{who} {mode}": [pace] for mode in MODES for who, pace in (("glovewire", ours), ("ray", theirs))}
    found = summary(paces, [1.0], workers=2, cores=2)
    assert found["at_most"] == {"sync": 1000, "async": 2000}
    times = {name: (r["updates_per_second"]["median"], r["cpu_besides_gradient"]["median"])
             for name, r in found["ratio"].items()}  # fmt: skip
    assert times == {"ray sync": (3.0, 8.0), "ray async": (3.0, 4.5)}
    lines = table(found).splitlines()
    assert lines[0] == "glovewire sync         300 updates/s (300 to 300), 3.00 ms of processor time each"
    assert lines[-1] == "3.0 times ray async in updates, 4.5 times in all but the gradient"


def test_a_process_that_ends_meanwhile_takes_nothing_off_what_the_others_used() -> None:
    busy = "sum(range(10_000_000)); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", busy], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        watch = Watch()
        child.communicate(b"\n")
    assert watch.pace(1).cpu_ms >= 0


def test_what_is_made_ready_image_by_image_is_what_lies_in_memory() -> None:
    """Both ways end at the same tensors; only the work that they make differs."""
    torch = pytest.importorskip("torch")
    every = next(drawn(3, 20_000))[0]  # of 10,000 images: of 8 that the loader draws, hardly one is not among them
    made, labels = next(loaded(3, 8))
    assert (made.shape, labels.dtype) == ((8, 1, 28, 28), torch.int64)
    found = [(every - image).abs().flatten(1).amax(1).min() < 1e-6 for image in made]
    assert sum(found) >= 3, found
