"""`glovewire bench dense`: refusals and figures; measuring needs a quiet machine."""

from __future__ import annotations

import subprocess
import sys

import pytest

from glovewire.bench.config import DenseBenchConfig
from glovewire.bench.convnet import Stopwatch, Throughput
from glovewire.bench.dense import MODES, summary, table
from glovewire.common.errors import UsageError


def test_all_problems_are_named_at_once() -> None:
    with pytest.raises(UsageError, match=r"workers must be at least 1, not 0; .*seconds must be at least 0\.1"):
        DenseBenchConfig(workers=0, seconds=0.0)


def test_a_synchronous_update_takes_one_gradient_of_each_worker() -> None:
    found = summary({mode: [Throughput(300.0, 3.0)] for mode in MODES}, [1.0], workers=2, cores=2)
    assert found["at_most"] == {"sync": 1000, "async": 2000}
    lines = table(found).splitlines()
    assert lines[0] == "sync     300 updates/s (300 to 300), 3.00 ms of processor time each"
    assert lines[-1] == "one gradient alone takes 1.00 ms: at most sync 1000, async 2000 updates/s on these cores"


def test_a_process_that_ends_meanwhile_takes_nothing_off_the_processor_time_of_others() -> None:
    busy = "sum(range(10_000_000)); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", busy], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        stopwatch = Stopwatch()
        child.communicate(b"\n")
    assert stopwatch.throughput(1).cpu_ms >= 0
