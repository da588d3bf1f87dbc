"""Summarise measurements as medians, ranges and percentiles; describe the machine and the versions measured."""

import importlib.metadata
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

PACKAGES = ("glovewire", "numba", "numpy", "pyzmq")


@dataclass
class Repeat:
    """One repeat of a case: seconds until the last reply, latencies, failures, processor seconds of both ends."""

    seconds: float
    latencies_s: list[float]
    failed: int
    client_s: float
    server_s: float


@dataclass
class CaseStatistics:
    """Collects the figures of one case over all repeats."""

    repeats: list[dict[str, float]] = field(default_factory=list)
    sent: int = 0
    failed: int = 0

    def add(self, size: int, repeat: Repeat) -> None:
        """Add one repeat, in which each message had `size` rows."""
        rows, latencies = size * len(repeat.latencies_s), repeat.latencies_s or [0.0]
        p50, p99 = np.percentile(latencies, (50, 99), method="inverted_cdf").tolist()
        self.repeats.append(
            {
                "rows_per_second": rows / repeat.seconds,
                "p50_us": p50 * 1e6,
                "p99_us": p99 * 1e6,
                "client_cpu_s_per_million_rows": repeat.client_s / max(rows, 1) * 1e6,
                "server_cpu_s_per_million_rows": repeat.server_s / max(rows, 1) * 1e6,
            }
        )
        self.sent += len(repeat.latencies_s) + repeat.failed
        self.failed += repeat.failed

    def figures(self, row_bytes: int) -> dict[str, Any]:
        """Return the median and range of each figure over the repeats, and the share of messages that succeeded."""
        return {
            **{name: spread(repeat[name] for repeat in self.repeats) for name in self.repeats[0]},
            "bytes_per_second": spread(repeat["rows_per_second"] * row_bytes for repeat in self.repeats),
            "messages": self.sent,
            "success": (self.sent - self.failed) / max(self.sent, 1),
        }


def spread(values: Iterable[float]) -> dict[str, float]:
    """Return median, minimum and maximum of `values`, rounded to four significant digits."""
    ordered = sorted(values)
    figures = {"median": statistics.median(ordered), "min": ordered[0], "max": ordered[-1]}
    return {name: float(f"{figure:.4g}") for name, figure in figures.items()}


def surroundings(packages: Sequence[str] = PACKAGES) -> dict[str, Any]:
    """Return date, commit, versions, system, processor, cores and load as plain JSON values."""
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": _commit(),
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in packages},
        "system": f"{platform.system()} {platform.release()}",
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "load_average": round(os.getloadavg()[0], 2),
    }


def _commit() -> str:
    """Return the commit of this program's repository, with `+` for uncommitted changes; "" outside a repository."""
    command = ["git", "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*"]
    here = Path(__file__).resolve().parent
    try:
        done = subprocess.run(command, cwd=here, capture_output=True, text=True, timeout=10, check=True)
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
