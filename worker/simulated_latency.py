"""Simulated latency: how long a push is on its way, drawn anew for each, from a law written in one word. Pure.

`20ms` is constant, `20ms..80ms` uniform, `exp:50ms` exponential with that mean, `pareto:20ms` heavy-tailed: never less
than that, three times as much in the mean, and now and then a hundred times as much (cut there).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from glovewire.common.errors import UsageError
from glovewire.common.model.random_streams import Purpose, stream

FORMS = "20ms, 20ms..80ms, exp:50ms or pareto:20ms"
SHAPE = 1.5
LONGEST = 100.0
MOST_S = 10.0
UNITS = {"ms": 1e-3, "s": 1.0}


@dataclass(frozen=True)
class Latency:
    """A law and its time, or for `uniform` its two times, in seconds."""

    law: str = "constant"
    low_s: float = 0.0
    high_s: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Self:
        """The latency that `text` writes; UsageError when it writes none, or a time above 10 s."""
        law, colon, time = text.partition(":") if text.startswith(("exp:", "pareto:")) else ("constant", "", text)
        low, dots, high = time.partition("..")
        if dots and not colon:
            return cls("uniform", *sorted((_seconds(low, text), _seconds(high, text))))
        return cls(law, _seconds(time, text))

    def draws(self, seed: int, worker: int) -> Callable[[], float]:
        """Seconds for one push after the other, a function of the seed and the worker's number alone."""
        draw = stream(seed, Purpose.LATENCY, worker)
        match self.law:
            case "uniform":
                return lambda: float(draw.uniform(self.low_s, self.high_s))
            case "exp":
                return lambda: float(draw.exponential(self.low_s))
            case "pareto":
                return lambda: self.low_s * min(1.0 + float(draw.pareto(SHAPE)), LONGEST)
            case _:
                return lambda: self.low_s


def _seconds(text: str, whole: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s)?", text)
    value = float(found[1]) * UNITS[found[2] or "s"] if found and (found[2] or not float(found[1])) else math.inf
    if value > MOST_S:
        raise UsageError(f"latency must look like {FORMS}, with times up to {MOST_S:.0f}s, not {whole!r}")
    return value
