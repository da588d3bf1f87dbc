"""Serve a run as Prometheus metrics, from the samples that the monitor receives and from the state of its stream."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from glovewire.common.prometheus import Exposition, RunMetrics, gauge
from glovewire.common.protocol.messages import Message

from ..history.history import RunHistory

if TYPE_CHECKING:
    from prometheus_client.core import Metric


class Prometheus:
    """Serves metrics of the samples passed to `add` and of `history`; port 0 selects a free port."""

    def __init__(self, history: RunHistory, host: str, port: int) -> None:
        self._history, self._metrics = history, RunMetrics()
        self._exposition = Exposition(self, host, port)
        self.url = self._exposition.url

    def add(self, message: Message) -> None:
        """Update the metrics with one sample."""
        self._metrics.run = self._history.run
        self._metrics.add(message)

    def close(self) -> None:
        """Stop serving; may be called twice."""
        self._exposition.close()

    def collect(self) -> Iterator[Metric]:
        """Yield every metric with its present value."""
        yield from self._metrics.collect()
        silence = self._history.silence_s(time.monotonic())
        if silence is not None:
            yield gauge("last_sample_age_seconds", "Time since the last sample of any kind.", silence)
        yield gauge("samples_missing", "Samples of the stream that have not arrived.", self._history.lost)
