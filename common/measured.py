"""What every benchmark says beside its figures: medians with their ranges, and of what and on what they were measured.

Reads facts about this machine and this program; measures nothing itself.
"""

from __future__ import annotations

import importlib.metadata
import math
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

PACKAGES = ("glovewire", "numba", "numpy", "pyzmq")


def spread(values: Iterable[float]) -> dict[str, float]:
    """Median, least and most of the repeats of one figure, to four significant digits."""
    found = sorted(values)
    figures = {"median": statistics.median(found), "min": found[0], "max": found[-1]}
    return {name: float(f"{figure:.4g}") for name, figure in figures.items()}


def percentile(values: Sequence[float], percent: float) -> float:
    """The least of the values that at least `percent` of them do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(math.ceil(len(ordered) * percent / 100) - 1, 0)]


def surroundings(packages: Sequence[str] = PACKAGES) -> dict[str, Any]:
    """Versions, commit, processor, cores and how busy they are; plain JSON values."""
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": commit(),
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in packages},
        "system": f"{platform.system()} {platform.release()}",
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "load_average": round(os.getloadavg()[0], 2),
    }


def commit() -> str:
    """The commit that this program's files are at, with `+` when some were changed since; "" when nobody knows."""
    here = Path(__file__).resolve().parent
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*"],
            cwd=here,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
