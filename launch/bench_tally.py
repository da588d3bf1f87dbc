"""Figures of messages, added up over the repeats of a benchmark: rates, latencies, processor time, failures. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from common.measured import percentile, spread


@dataclass
class Measurement:
    """One repeat of one case: seconds until the last answer, latencies of what came, processor time of both ends."""

    seconds: float
    latencies_s: list[float]
    failed: int
    client_s: float
    server_s: float


@dataclass
class Tally:
    """What one case brought in all its repeats."""

    rows_per_second: list[float] = field(default_factory=list)
    p50_us: list[float] = field(default_factory=list)
    p99_us: list[float] = field(default_factory=list)
    client_s: list[float] = field(default_factory=list)
    server_s: list[float] = field(default_factory=list)
    sent: int = 0
    failed: int = 0

    def add(self, size: int, trial: Measurement) -> None:
        """Count one repeat of messages of `size` rows."""
        rows = size * len(trial.latencies_s)
        self.rows_per_second.append(rows / trial.seconds)
        self.p50_us.append(percentile(trial.latencies_s or [0.0], 50) * 1e6)
        self.p99_us.append(percentile(trial.latencies_s or [0.0], 99) * 1e6)
        self.client_s.append(trial.client_s / max(rows, 1) * 1e6)
        self.server_s.append(trial.server_s / max(rows, 1) * 1e6)
        self.sent += len(trial.latencies_s) + trial.failed
        self.failed += trial.failed

    def figures(self, row_bytes: int) -> dict[str, Any]:
        """Medians and ranges over the repeats."""
        return {
            "rows_per_second": spread(self.rows_per_second),
            "bytes_per_second": spread(rate * row_bytes for rate in self.rows_per_second),
            "p50_us": spread(self.p50_us),
            "p99_us": spread(self.p99_us),
            "client_cpu_s_per_million_rows": spread(self.client_s),
            "server_cpu_s_per_million_rows": spread(self.server_s),
            "messages": self.sent,
            "success": (self.sent - self.failed) / max(self.sent, 1),
        }
