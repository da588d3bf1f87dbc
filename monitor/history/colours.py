"""Choose the colours of workers and runs, which plots, charts and tables share. No I/O."""

from collections.abc import Iterable
from itertools import cycle

from .formatting import natural_key

RUN_COLOURS = ("#2f7bf0", "#e0762f", "#2a9d72", "#b05fd6", "#d64570", "#2ba3b8", "#a5842a", "#7d8794")
WORKER_COLOURS = ("#2a9d8f", "#e9a23b", "#9b5de5", "#ef476f", "#5fa8d3", "#8ab17d", "#c77dff", "#f4845f")


def worker_colours(names: Iterable[str]) -> dict[str, str]:
    """Return the colour of each worker, in the order of their names."""
    return dict(zip(sorted(names, key=natural_key), cycle(WORKER_COLOURS), strict=False))
