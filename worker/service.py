"""One worker from start to end: map the dataset, compile, say hello, train, say goodbye."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from functools import partial
from typing import Any

from glovewire.common import log
from glovewire.common.errors import (
    DeadlineExceeded,
    GlovewireError,
    Interrupted,
    LeaseLost,
    RunOver,
    UnknownSession,
    UsageError,
)
from glovewire.common.model.options import TrainingOptions
from glovewire.common.model.row_layout import RowLayout
from glovewire.common.runtime.compiled import without_blas
from glovewire.common.runtime.memory import freeze_loaded_objects, keep_freed_memory
from glovewire.common.runtime.signals import signals_raise, stop_on_signals
from glovewire.common.storage.dataset import Dataset
from glovewire.common.transport import curve_keys as keys
from glovewire.common.transport.client import RequestClient

from .config import WorkerConfig
from .kernels import objectives
from .metrics import WorkerMetrics
from .simulated_latency import Latency
from .stores.server_store import ServerStore
from .training.block_trainer import train

LOOPBACK = "127.0.0.1"

logger = logging.getLogger(__name__)

INTERRUPTED = Interrupted.code


def work(config: WorkerConfig) -> dict[str, Any]:
    """Train with the servers of `config` until they say that it is over; returns facts for `--json`."""
    keep_freed_memory()
    mine = None if config.keys is None else keys.load_client_keys(config.keys)
    try:
        with signals_raise(), without_blas():
            dataset = Dataset.open(config.dataset, verify=config.verify)
            objectives.warm()
            freeze_loaded_objects()
    except Interrupted:
        return {"worker": config.full_name, "ending": INTERRUPTED, "bytes_sent": 0}
    sent, reason, afresh = 0, "", False
    with _metrics(config) as metrics:
        while not reason:
            with RequestClient(config.servers, config.full_name, dataset.checksum, config.timeout_s, mine) as client:
                stop_on_signals(partial(_stop, client))
                client.on_sent = metrics.sent
                try:
                    reason = _join(client, dataset, Latency.parse(config.latency))
                except RunOver as error:
                    reason = error.reason
                except Interrupted:
                    reason = INTERRUPTED
                except (LeaseLost, UnknownSession) as error:  # we were away for too long: others have our blocks
                    logger.warning(log.line("afresh", why=error))
                    afresh = True
                except DeadlineExceeded as error:
                    if not afresh:
                        raise
                    silence = f"the run has not answered for {config.timeout_s:.0f} s"
                    raise DeadlineExceeded(f"{silence}, it may have ended while we were away: {error}") from error
                sent += client.bytes_sent
    logger.info(log.line("left", reason=reason, bytes_sent=sent))
    return {"worker": config.full_name, "ending": reason, "bytes_sent": sent}


@contextlib.contextmanager
def _metrics(config: WorkerConfig) -> Iterator[WorkerMetrics]:
    """What counts this worker's requests, served where `--prometheus` says."""
    metrics = WorkerMetrics(config.full_name)
    if config.prometheus is None:
        yield metrics
        return
    from glovewire.common.prometheus import Exposition

    with contextlib.closing(Exposition(metrics.collect, LOOPBACK, config.prometheus)) as exposition:
        logger.info(log.line("metrics", url=exposition.url))
        yield metrics


def _join(client: RequestClient, dataset: Dataset, latency: Latency) -> str:
    """Say hello, train, say goodbye; returns why training ended."""
    try:
        welcome = client.connect()
        options = TrainingOptions.from_message(welcome.options)
    except (UsageError, Interrupted):
        _part(client)
        raise
    logger.info(log.line("joined", run=welcome.run, shards=welcome.shards, worker=welcome.worker))
    delays = latency.draws(options.seed, welcome.rank)
    store = ServerStore(client, options, dataset.layout.rows, RowLayout.of(options).width, latency=delays)
    try:
        return train(store, dataset, options, welcome.rank, welcome.steps)
    except Interrupted:
        _part(client)
        raise


def _part(client: RequestClient) -> None:
    """Leave before the end, so that nobody waits for us; whatever the servers say to that, we are gone."""
    client.failed = None
    with contextlib.suppress(GlovewireError):
        client.part("left")


def _stop(client: RequestClient) -> None:
    """End the next wait for a server, so that no message is cut."""
    client.failed = Interrupted("told to stop")
