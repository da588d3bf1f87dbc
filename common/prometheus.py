"""Serve metrics of a run (from its stream) or of one process to Prometheus over HTTP. Needs prometheus-client.

Counters end in `_total`, times are seconds, sizes bytes; every name begins with `glovewire_`. The registry lacks the
client library's default metrics. A scrape runs in a thread of the HTTP server and changes no metric.
"""

from __future__ import annotations

import errno
import time
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeVar

from .errors import BindError, require_extra
from .protocol.messages import LossSample, Message, QualitySample, ServerSample, WorkerSample

if TYPE_CHECKING:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector

STATES = ("training", "late", "lost", "left")
T = TypeVar("T")
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
        info = gauge("run_info", "The run; always 1.", "run")
        info.add_metric([self.run], 1)
        yield info
        yield from self._run()
        yield from self._of_workers(time.monotonic())
        yield from self._of_shards(list(self._shards.values()))

    def _run(self) -> Iterator[Metric]:
        sample = self._loss
        if sample is not None:
            yield value(counter("entries", "Entries of the matrix trained by all workers."), sample.entries)
            yield value(gauge("planned_entries", "Entries that the whole run trains."), sample.total)
            yield value(gauge("epochs_done", "Epochs done."), sample.epoch)
            yield value(gauge("loss", "Loss per entry, over the whole matrix."), sample.mean_loss)
            yield value(gauge("bias_only_loss", "Bias-only loss per entry."), sample.mean_bias_only_loss)
            yield value(gauge("vector_norm", "Mean norm of the vectors."), sample.norm)
            yield value(gauge("entries_per_second", "Entries per second of all workers."), sample.entries_per_second)
            yield value(gauge("training_seconds", "Time since the server began, at the last sample."), sample.t)
        quality = gauge("quality_percent", "Score of a similarity or analogy test.", "test")
        for test, score in list(self._quality.items()):
            quality.add_metric([test], score)
        yield quality

    def _of_workers(self, now: float) -> Iterator[Metric]:
        workers = list(self._workers.values())
        counts = Counter(sample.state for sample, _ in workers)
        states = gauge("workers", "Workers by state.", "state")
        for state in STATES:
            states.add_metric([state], counts[state])
        entries = counter("worker_entries", "Entries trained by a worker.", "worker")
        sent = counter("worker_sent_bytes", "Bytes that a worker has sent.", "worker")
        age = gauge("worker_last_heard_seconds", "Time since the server last heard from a worker.", "worker")
        stale = gauge("worker_staleness", "Staleness of the last push of a worker, in changes.", "worker")
        losses = gauge("worker_loss", "Mean loss per entry of a worker.", "worker")
        for sample, heard in workers:
            entries.add_metric([sample.worker], sample.entries)
            sent.add_metric([sample.worker], sample.bytes_sent)
            age.add_metric([sample.worker], sample.age_s + now - heard)
            stale.add_metric([sample.worker], sample.staleness)
        for worker, loss in list(self._losses.items()):
            losses.add_metric([worker], loss.loss)
        yield from (states, entries, sent, age, stale, losses)

    def _of_shards(self, shards: list[ServerSample]) -> Iterator[Metric]:
        fields: dict[str, CounterMetricFamily | GaugeMetricFamily] = {
            "rows": gauge("shard_rows", "Rows that a shard owns.", "shard"),
            "table_bytes": gauge("shard_table_bytes", "Memory that a shard's rows take.", "shard"),
            "waiting": gauge("shard_waiting_requests", "Requests that wait for their rows.", "shard"),
            "checkpoint_s": gauge("shard_checkpoint_seconds", "Time of the last checkpoint, -1 for none.", "shard"),
            "pulls": counter("shard_pulls", "Pulls answered.", "shard"),
            "pushes": counter("shard_pushes", "Pushes applied.", "shard"),
            "repeated": counter("shard_repeated_pushes", "Repeated pushes, not applied twice.", "shard"),
            "refused": counter("shard_refused_requests", "Requests refused.", "shard"),
            "undelivered": counter("shard_undelivered_replies", "Replies whose receiver was gone.", "shard"),
            "checkpoints": counter("shard_checkpoints", "Checkpoints written.", "shard"),
            "bytes_in": counter("shard_received_bytes", "Bytes that a shard has received.", "shard"),
            "bytes_out": counter("shard_sent_bytes", "Bytes that a shard has sent.", "shard"),
        }
        stale = counter("shard_pushes_by_staleness", "Pushes by staleness, in changes.", "shard", "staleness")
        for sample in shards:
            for field, family in fields.items():
                family.add_metric([str(sample.shard)], getattr(sample, field))
            for bin, count in sample.staleness.items():
                stale.add_metric([str(sample.shard), bin], float(count))
        yield from (*fields.values(), stale)


def gauge(name: str, help: str, *labels: str) -> GaugeMetricFamily:
    """Return a metric family for values that rise and fall; `glovewire_` is put before its name."""
    from prometheus_client.core import GaugeMetricFamily

    return GaugeMetricFamily(f"glovewire_{name}", help, labels=labels)


def counter(name: str, help: str, *labels: str) -> CounterMetricFamily:
    """Return a metric family for values that only grow, named `glovewire_NAME_total`."""
    from prometheus_client.core import CounterMetricFamily

    return CounterMetricFamily(f"glovewire_{name}", help, labels=labels)


def value(family: GaugeMetricFamily | CounterMetricFamily, one: float) -> Metric:
    """Return `family` after adding `one`, its only value, without labels."""
    family.add_metric([], one)
    return family


def _put(kept: dict[str, T], name: str, one: T) -> None:
    if name in kept or len(kept) < MAX_NAMES:
        kept[name] = one
