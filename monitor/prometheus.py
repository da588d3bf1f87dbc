"""A run as Prometheus metrics, read off the History when somebody scrapes; needs prometheus-client.

Counters end in `_total`, times are seconds, sizes bytes. It has a registry of its own, so that nothing of the process
that it runs in slips in. The scrape comes in a thread of the HTTP server: it reads copies and changes nothing.
"""

from __future__ import annotations

import errno
import time
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from common.errors import BindError
from common.messages import Message

from .extras import require_extra
from .history import History

if TYPE_CHECKING:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

STATES = ("training", "late", "lost", "left")


class Prometheus:
    """Serves `history` at http://host:port/metrics; port 0 takes a free one. BindError when it cannot."""

    def __init__(self, history: History, host: str, port: int) -> None:
        require_extra("prometheus_client", "metrics", "--prometheus")
        from prometheus_client import CollectorRegistry, start_http_server

        self._history = history
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except OSError as error:
            why = "the port is in use" if error.errno == errno.EADDRINUSE else str(error.strerror or error).lower()
            raise BindError(f"cannot serve metrics on {host}:{port}: {why}") from error
        self.url = f"http://{host}:{self._server.server_port}/metrics"

    def add(self, message: Message) -> None:
        """Nothing to do: the History has it."""

    def close(self) -> None:
        """Stop serving; twice is fine."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def collect(self) -> Iterator[Metric]:
        """The metrics as they stand now; called by the registry."""
        yield from _run(self._history, time.monotonic())
        yield from _workers(self._history, time.monotonic())
        yield from _shards(self._history)


def _run(history: History, now: float) -> Iterator[Metric]:
    info = _gauge("run_info", "The run that is watched; always 1.", "run")
    info.add_metric([history.run], 1)
    yield info
    silence, sample, mean = history.silence_s(now), history.loss, history.mean
    if silence is not None:
        yield _value(_gauge("last_sample_age_seconds", "Time since anything was heard."), silence)
    yield _value(_counter("samples_missed", "Samples of the stream that never arrived."), history.lost)
    if sample is not None:
        yield _value(_counter("entries", "Entries of the matrix trained by all workers."), sample.entries)
        yield _value(_gauge("planned_entries", "Entries that the whole run trains."), sample.total)
        yield _value(_gauge("epochs_done", "Epochs done."), sample.epoch)
        yield _value(_gauge("loss", "Mean weighted squared error per entry, over an epoch."), mean.loss)
        yield _value(_gauge("bias_only_loss", "The same with all vectors at zero."), mean.bias_only_loss)
        yield _value(_gauge("vector_norm", "Mean norm of the vectors."), sample.norm)
        yield _value(_gauge("entries_per_second", "Pace of all workers."), history.entries_per_second)
        yield _value(_gauge("training_seconds", "Time of training at the last sample."), history.t)
    quality = _gauge("quality_percent", "Score of a similarity or analogy test.", "test")
    for test, scores in list(history.quality.items()):
        quality.add_metric([test], scores[-1].score)
    yield quality


def _workers(history: History, now: float) -> Iterator[Metric]:
    workers = list(history.workers.values())
    counts = Counter(worker.state for worker in workers)
    states = _gauge("workers", "Workers by state.", "state")
    for state in STATES:
        states.add_metric([state], counts[state])
    entries = _counter("worker_entries", "Entries trained by a worker.", "worker")
    sent = _counter("worker_sent_bytes", "Bytes that a worker has sent.", "worker")
    age = _gauge("worker_last_heard_seconds", "Time since the server heard of a worker.", "worker")
    losses = _gauge("worker_loss", "Mean weighted squared error per entry of a worker.", "worker")
    for worker in workers:
        if worker.sample is not None:
            entries.add_metric([worker.name], worker.sample.entries)
            sent.add_metric([worker.name], worker.sample.bytes_sent)
            age.add_metric([worker.name], worker.age_s(now) or 0.0)
        if worker.series.last is not None:
            losses.add_metric([worker.name], worker.series.last.loss)
    yield from (states, entries, sent, age, losses)


def _shards(history: History) -> Iterator[Metric]:
    rows = _gauge("shard_rows", "Rows that a shard owns.", "shard")
    parked = _gauge("shard_parked_requests", "Requests that wait for their rows.", "shard")
    pulls = _counter("shard_pulls", "Pulls answered.", "shard")
    pushes = _counter("shard_pushes", "Pushes applied.", "shard")
    repeated = _counter("shard_repeated_pushes", "Pushes that came again and were not applied twice.", "shard")
    refused = _counter("shard_refused_requests", "Requests refused.", "shard")
    received = _counter("shard_received_bytes", "Bytes that a shard has received.", "shard")
    sent = _counter("shard_sent_bytes", "Bytes that a shard has sent.", "shard")
    for shard in list(history.shards.values()):
        sample = shard.sample
        for family, value in (
            (rows, sample.rows),
            (parked, sample.parked),
            (pulls, sample.pulls),
            (pushes, sample.pushes),
            (repeated, sample.repeated),
            (refused, sample.refused),
            (received, sample.bytes_in),
            (sent, sample.bytes_out),
        ):
            family.add_metric([str(sample.shard)], value)
    yield from (rows, parked, pulls, pushes, repeated, refused, received, sent)


def _gauge(name: str, told: str, *labels: str) -> GaugeMetricFamily:
    from prometheus_client.core import GaugeMetricFamily

    return GaugeMetricFamily(f"glovewire_{name}", told, labels=labels)


def _counter(name: str, told: str, *labels: str) -> CounterMetricFamily:
    from prometheus_client.core import CounterMetricFamily

    return CounterMetricFamily(f"glovewire_{name}", told, labels=labels)


def _value(family: GaugeMetricFamily | CounterMetricFamily, value: float) -> Metric:
    family.add_metric([], value)
    return family
