"""Simulated latency: what can be written, what is drawn, and that workers push so much later."""

from __future__ import annotations

import numpy as np
import pytest

from glovewire.common.errors import UsageError
from glovewire.worker.simulated_latency import latencies, parse_latency


@pytest.mark.parametrize(
    ("text", "low", "mean", "high"),
    [
        ("0", 0, 0, 0), ("20ms", 0.02, 0.02, 0.02), ("1.5s", 1.5, 1.5, 1.5), ("20ms..80ms", 0.02, 0.05, 0.08),
        ("80ms..20ms", 0.02, 0.05, 0.08), ("exp:50ms", 0, 0.05, 1), ("pareto:10ms", 0.01, 0.03, 1),
    ],
)  # fmt: skip
def test_a_law_has_its_least_its_mean_and_its_most(text: str, low: float, mean: float, high: float) -> None:
    draw = latencies(text, 3, 0)
    times = np.array([draw() for _ in range(4000)])
    assert low <= times.min() <= times.max() <= high
    assert times.mean() == pytest.approx(mean, rel=0.15)


def test_a_heavy_tail_is_heavy() -> None:
    """One push in a hundred takes more than ten times the median."""
    draw = latencies("pareto:10ms", 3, 0)
    times = np.array([draw() for _ in range(4000)])
    assert (times > 10 * np.median(times)).mean() > 0.01


def test_each_worker_has_its_own_delays_and_the_same_ones_every_time() -> None:
    first, again, other = (latencies("exp:50ms", 3, worker) for worker in (0, 0, 1))
    times = [first() for _ in range(5)]
    assert times == [again() for _ in range(5)]
    assert times != [other() for _ in range(5)]


NONE = ["", "20", "ms", "-5ms", "20ms..", "..", "exp:", "exp:1ms..2ms", "gauss:5ms", "11s", "1h", "nan"]


@pytest.mark.parametrize("text", NONE)
def test_what_is_no_latency_is_refused_in_words(text: str) -> None:
    with pytest.raises(UsageError, match="latency must look like 20ms, "):
        parse_latency(text)
