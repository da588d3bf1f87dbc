"""Serve metrics of a run (from its stream) or of one process to Prometheus over HTTP. Needs prometheus-client.

Counters end in `_total`, times are seconds, sizes bytes; every name begins with `glovewire_`. The registry lacks the
client library's default metrics. A scrape runs in a thread of the HTTP server and changes no metric.
"""

from __future__ import annotations

import errno
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, TypeVar

from .errors import BindError, require_extra
from .protocol.messages import LossSample, Message, QualitySample, ServerSample, WorkerSample

if TYPE_CHECKING:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector

STATES = ("training", "late", "lost", "left")
T = TypeVar("T")
F = TypeVar("F", "CounterMetricFamily", "GaugeMetricFamily")
MAX_NAMES = 256


class Exposition:
    """Serves metrics of `collector` at http://host:port/metrics; port 0 takes a free one. BindError if this fails."""

    def __init__(self, collector: Collector, host: str, port: int) -> None:
        require_extra("prometheus_client", "metrics", "--prometheus")
        from prometheus_client import CollectorRegistry, start_http_server

        registry = CollectorRegistry(auto_describe=False)
        registry.register(collector)
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except OSError as error:
            why = "the port is in use" if error.errno == errno.EADDRINUSE else str(error.strerror or error).lower()
            raise BindError(f"cannot serve metrics on {host}:{port}: {why}") from error
        self.url = f"http://{host}:{self._server.server_port}/metrics"

    def close(self) -> None:
        """Stop serving; may be called twice."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class RunMetrics:
    """Metrics from the newest sample of each worker, shard and quality test, up to MAX_NAMES of each."""

    def __init__(self) -> None:
        self.run = ""
        self._loss: LossSample | None = None
        self._losses: dict[str, LossSample] = {}
        self._workers: dict[str, tuple[WorkerSample, float]] = {}
        self._shards: dict[str, ServerSample] = {}
        self._quality: dict[str, float] = {}

    def add(self, message: Message) -> None:
        """Keep a sample of the stream in place of the previous one of the same worker, shard or test."""
        match message:
            case LossSample(worker="all"):
                self._loss = message
            case LossSample():
                _put(self._losses, message.worker, message)
            case WorkerSample():
                _put(self._workers, message.worker, (message, time.monotonic()))
            case ServerSample():
                _put(self._shards, str(message.shard), message)
            case QualitySample():
                _put(self._quality, message.test, message.score)

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        yield gauge("run_info", "The run; always 1.", {self.run: 1}, "run")
        if (sample := self._loss) is not None:
            yield counter("entries", "Entries of the matrix trained by all workers.", sample.entries)
            yield gauge("planned_entries", "Entries that the whole run trains.", sample.total)
            yield gauge("epochs_done", "Epochs done.", sample.epoch)
            yield gauge("loss", "Loss per entry, over the whole matrix.", sample.mean_loss)
            yield gauge("bias_only_loss", "Bias-only loss per entry.", sample.mean_bias_only_loss)
            yield gauge("vector_norm", "Mean norm of the vectors.", sample.norm)
            yield gauge("entries_per_second", "Entries per second of all workers.", sample.entries_per_second)
            yield gauge("training_seconds", "Time since the server began, at the last sample.", sample.t)
        yield gauge("quality_percent", "Score of a similarity or analogy test.", self._quality.copy(), "test")
        yield from self._of_workers(self._workers.copy(), time.monotonic())
        yield from self._of_shards(self._shards.copy())

    def _of_workers(self, workers: dict[str, tuple[WorkerSample, float]], now: float) -> Iterator[Metric]:
        counts = Counter(sample.state for sample, _ in workers.values())
        yield gauge("workers", "Workers by state.", {state: counts[state] for state in STATES}, "state")
        samples = {name: sample for name, (sample, _) in workers.items()}
        ages = {name: sample.age_s + now - heard for name, (sample, heard) in workers.items()}
        entries, sent, staleness = (_each(samples, field) for field in ("entries", "bytes_sent", "staleness"))
        yield counter("worker_entries", "Entries trained by a worker.", entries, "worker")
        yield counter("worker_sent_bytes", "Bytes that a worker has sent.", sent, "worker")
        yield gauge("worker_last_heard_seconds", "Time since the server last heard from a worker.", ages, "worker")
        yield gauge("worker_staleness", "Staleness of the last push of a worker, in changes.", staleness, "worker")
        yield gauge("worker_loss", "Mean loss per entry of a worker.", _each(self._losses.copy(), "loss"), "worker")

    def _of_shards(self, shards: dict[str, ServerSample]) -> Iterator[Metric]:
        for field, metric, name, help in (
            ("rows", gauge, "shard_rows", "Rows that a shard owns."),
            ("table_bytes", gauge, "shard_table_bytes", "Memory that a shard's rows take."),
            ("waiting", gauge, "shard_waiting_requests", "Requests that wait for their rows."),
            ("checkpoint_s", gauge, "shard_checkpoint_seconds", "Time of the last checkpoint, -1 for none."),
            ("pulls", counter, "shard_pulls", "Pulls answered."),
            ("pushes", counter, "shard_pushes", "Pushes applied."),
            ("repeated", counter, "shard_repeated_pushes", "Repeated pushes, not applied twice."),
            ("refused", counter, "shard_refused_requests", "Requests refused."),
            ("undelivered", counter, "shard_undelivered_replies", "Replies whose receiver was gone."),
            ("checkpoints", counter, "shard_checkpoints", "Checkpoints written."),
            ("bytes_in", counter, "shard_received_bytes", "Bytes that a shard has received."),
            ("bytes_out", counter, "shard_sent_bytes", "Bytes that a shard has sent."),
        ):
            yield metric(name, help, _each(shards, field), "shard")
        stale = counter("shard_pushes_by_staleness", "Pushes by staleness, in changes.", {}, "shard", "staleness")
        for shard, sample in shards.items():
            for bin, count in sample.staleness.items():
                stale.add_metric([shard, bin], float(count))
        yield stale


def gauge(name: str, help: str, value: float | Mapping[str, float], *labels: str) -> GaugeMetricFamily:
    """Return the metric `glovewire_NAME`, which rises and falls: one value, or one for each value of its label."""
    from prometheus_client.core import GaugeMetricFamily

    return _filled(GaugeMetricFamily(f"glovewire_{name}", help, labels=labels), value)


def counter(name: str, help: str, value: float | Mapping[str, float], *labels: str) -> CounterMetricFamily:
    """Return the metric `glovewire_NAME_total`, which only grows: one value, or one for each value of its label."""
    from prometheus_client.core import CounterMetricFamily

    return _filled(CounterMetricFamily(f"glovewire_{name}", help, labels=labels), value)


def _filled(family: F, value: float | Mapping[str, float]) -> F:
    if isinstance(value, Mapping):
        for label, one in value.items():
            family.add_metric([label], one)
    else:
        family.add_metric([], value)
    return family


def _each(samples: Mapping[str, object], field: str) -> dict[str, float]:
    return {name: getattr(sample, field) for name, sample in samples.items()}


def _put(kept: dict[str, T], name: str, one: T) -> None:
    if name in kept or len(kept) < MAX_NAMES:
        kept[name] = one
