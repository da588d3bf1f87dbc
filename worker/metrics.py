"""Count a worker's requests and sent bytes for Prometheus; its HTTP thread reads the counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from glovewire.common.prometheus import counter
from glovewire.common.protocol import messages as m

if TYPE_CHECKING:
    from prometheus_client.core import Metric

COUNTED = {
    "entries": ("worker_entries", "Entries trained by a worker."),
    "seconds": ("worker_training_seconds", "Time that a worker has spent computing."),
    "bytes": ("worker_sent_bytes", "Bytes that a worker has sent."),
    "Pull": ("worker_pulls", "Pulls that a worker has asked for."),
    "Push": ("worker_pushes", "Pushes that a worker has made."),
    "Report": ("worker_reports", "Reports that a worker has made."),
}


class WorkerMetrics:
    """Counts the requests of the worker called `name`, by the names of their classes."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._counts: Counter[str] = Counter()

    def sent(self, message: m.Message, size: int) -> None:
        """Count a request of `size` bytes."""
        self._counts["bytes"] += size
        self._counts[type(message).__name__] += 1
        if isinstance(message, m.Report):
            self._counts["entries"] += message.entries
            self._counts["seconds"] += message.seconds  # type: ignore[assignment] # a Counter adds floats as well

    def collect(self) -> Iterator[Metric]:
        """Yield every count as a Prometheus metric."""
        for key, (name, description) in COUNTED.items():
            yield counter(name, description, {self._name: self._counts[key]}, "worker")
