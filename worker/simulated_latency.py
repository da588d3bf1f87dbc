"""Draw a simulated latency for each push, from a distribution such as `exp:50ms`. No I/O.

`20ms` is constant, `20ms..80ms` uniform, `exp:50ms` exponential with mean 50 ms. `pareto:20ms` is heavy-tailed, with
minimum 20 ms, mean about three times and maximum a hundred times as much.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from glovewire.common.errors import UsageError
from glovewire.common.model.random_streams import Purpose, stream

FORMS = "20ms, 20ms..80ms, exp:50ms or pareto:20ms"
PARETO_SHAPE = 1.5
MAX_PARETO_FACTOR = 100.0
MAX_S = 10.0
UNITS = {"ms": 1e-3, "s": 1.0}


@dataclass(frozen=True)
class Latency:
    """A distribution and its parameters in seconds: `low_s`, and for `uniform` also `high_s`."""

    distribution: str = "constant"
    low_s: float = 0.0
    high_s: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse one of FORMS; raise UsageError for other text or a time above 10 s."""
        distribution, colon, time = (
            text.partition(":") if text.startswith(("exp:", "pareto:")) else ("constant", "", text)
        )
        low, dots, high = time.partition("..")
        if dots and not colon:
            return cls("uniform", *sorted((_seconds(low, text), _seconds(high, text))))
        return cls(distribution, _seconds(time, text))

    def draws(self, seed: int, worker: int) -> Callable[[], float]:
        """Return a function that draws the next latency in seconds; the draws depend only on `seed` and `worker`."""
        draw = stream(seed, Purpose.LATENCY, worker)
        match self.distribution:
            case "uniform":
                return lambda: float(draw.uniform(self.low_s, self.high_s))
            case "exp":
                return lambda: float(draw.exponential(self.low_s))
            case "pareto":
                return lambda: self.low_s * min(1.0 + float(draw.pareto(PARETO_SHAPE)), MAX_PARETO_FACTOR)
            case _:
                return lambda: self.low_s


def _seconds(text: str, latency: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s)?", text)
    value = float(found[1]) * UNITS[found[2] or "s"] if found and (found[2] or not float(found[1])) else math.inf
    if value > MAX_S:
        raise UsageError(f"latency must look like {FORMS}, with times up to {MAX_S:.0f}s, not {latency!r}")
    return value
