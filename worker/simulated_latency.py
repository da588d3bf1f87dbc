"""Draw a simulated latency for each push, from a distribution such as `exp:50ms`. No I/O.

`20ms` is constant, `20ms..80ms` uniform, `exp:50ms` exponential with mean 50 ms. `pareto:20ms` is heavy-tailed, with
minimum 20 ms, mean about three times and maximum a hundred times as much.
"""

import math
import re
from collections.abc import Callable
from functools import partial

import numpy as np

from glovewire.common.errors import UsageError
from glovewire.common.model.random_streams import Purpose, stream

FORMS = "20ms, 20ms..80ms, exp:50ms or pareto:20ms"
PARETO_SHAPE = 1.5
MAX_PARETO_FACTOR = 100.0
MAX_S = 10.0
UNITS = {"ms": 1e-3, "s": 1.0}


def parse_latency(text: str) -> Callable[[np.random.Generator], float]:
    """Return a function that draws a latency in seconds; UsageError unless `text` is one of FORMS, up to 10 s."""
    distribution, colon, time = text.partition(":") if text.startswith(("exp:", "pareto:")) else ("", "", text)
    low, dots, high = time.partition("..")
    if dots and not colon:
        low_s, high_s = sorted((_seconds(low, text), _seconds(high, text)))
        return lambda draw: float(draw.uniform(low_s, high_s))
    time_s = _seconds(time, text)
    match distribution:
        case "exp":
            return lambda draw: float(draw.exponential(time_s))
        case "pareto":
            return lambda draw: time_s * min(1.0 + float(draw.pareto(PARETO_SHAPE)), MAX_PARETO_FACTOR)
        case _:
            return lambda _: time_s


def latencies(text: str, seed: int, worker: int) -> Callable[[], float]:
    """Return a function that draws the next latency in seconds; the draws depend only on `seed` and `worker`."""
    return partial(parse_latency(text), stream(seed, Purpose.LATENCY, worker))


def _seconds(text: str, latency: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s)?", text)
    value = float(found[1]) * UNITS[found[2] or "s"] if found and (found[2] or not float(found[1])) else math.inf
    if value > MAX_S:
        raise UsageError(f"latency must look like {FORMS}, with times up to {MAX_S:.0f}s, not {latency!r}")
    return value
