"""Run one worker from start to end: open the dataset, compile, join the servers, train, leave."""

import contextlib
import logging
from collections.abc import Iterator
from functools import partial
from typing import Any

from glovewire.common import errors, log
from glovewire.common.addresses import url_of
from glovewire.common.endings import Ending, RunEnd
from glovewire.common.model.options import TrainingOptions
from glovewire.common.prometheus import Exposition
from glovewire.common.roles import Role
from glovewire.common.runtime import descriptors
from glovewire.common.runtime.compiled import without_blas
from glovewire.common.runtime.memory import freeze_loaded_objects, keep_freed_memory, release_code
from glovewire.common.runtime.signals import signals_raise, stop_on_signals
from glovewire.common.storage.cache import make_cache
from glovewire.common.storage.dataset import Dataset
from glovewire.common.storage.stores import Store
from glovewire.common.storage.strip_files import StripFiles
from glovewire.common.transport import curve_keys as keys
from glovewire.common.transport.client import RequestClient
from glovewire.common.transport.download import downloaded, trains_blocks
from glovewire.common.transport.files import Served

from .config import WorkerConfig
from .kernels import objectives
from .metrics import WorkerMetrics
from .simulated_latency import latencies
from .stores.server_store import ServerStore
from .strip_entries import ALL_ENTRIES, RemoteEntries, StripEntries
from .training.block_trainer import train

INTERRUPTED = RunEnd(Ending.INTERRUPTED)

KEEP_BYTES = 1 << 30
"""Freed memory to keep, more than a worker ever has: buffers for partitions are freed and allocated in equal sizes."""

logger = logging.getLogger(__name__)


def work(config: WorkerConfig) -> dict[str, Any]:
    """Train with the servers of `config` until they end the run; return the fields of `--json`."""
    keep_freed_memory(KEEP_BYTES, heap_bytes=None)
    descriptors.raise_limit()
    mine = None if config.keys is None else keys.load_client_keys(config.keys, Role.WORKER)
    name = config.full_name if mine is None else mine.session_name(config.full_name)
    sent, rejoined = 0, False
    end: RunEnd | None = None
    files: StripFiles | None = None
    with contextlib.ExitStack() as stack:
        try:
            with signals_raise(), without_blas():
                dataset = stack.enter_context(_dataset(config, name, mine))
                objectives.warm()
                freeze_loaded_objects()
                release_code("libllvmlite")
                if dataset.loaded is not None:
                    files = stack.enter_context(contextlib.closing(StripFiles(dataset, config.cache_bytes)))
        except errors.Interrupted:
            end = INTERRUPTED
        metrics = WorkerMetrics(name)
        if config.prometheus is not None:
            exposition = stack.enter_context(contextlib.closing(Exposition(metrics, "127.0.0.1", config.prometheus)))
            logger.info(log.line("metrics", url=exposition.url))
        while end is None:
            with RequestClient(config.servers, name, dataset.checksum, config.timeout_s, mine) as client:
                stopped = errors.Interrupted("told to stop")  # ends the next wait, so that no message is cut off
                stop_on_signals(partial(setattr, client, "failed", stopped))
                client.on_sent = metrics.sent
                try:
                    end = _join(config, client, dataset, files)
                except errors.RunOver as error:
                    end = error.end
                except errors.Interrupted:
                    end = INTERRUPTED
                except (errors.LeaseLost, errors.UnknownSession) as error:  # too long silent: others have our blocks
                    logger.warning(log.line("rejoins", why=error))
                    rejoined = True
                except errors.DeadlineExceeded as error:
                    if not rejoined:
                        raise
                    why = f"the run has not answered for {config.timeout_s:.0f} s, it may have ended while we were away"
                    raise errors.DeadlineExceeded(f"{why}: {error}") from error
                sent += client.bytes_sent
    logger.info(log.line("left", **end.as_fields(), bytes_sent=sent))
    return {"worker": name, **end.as_fields(), "bytes_sent": sent}


@contextlib.contextmanager
def _dataset(config: WorkerConfig, name: str, mine: keys.ClientKeys | None) -> Iterator[Dataset]:
    """Yield the given dataset, else that of the run; one that is downloaded for block training has no entries yet."""
    if config.dataset is not None and not url_of(config.dataset):
        yield Dataset.open(config.dataset, verify=config.verify)
        return
    make_cache(config.cache)  # before waiting for a server
    with contextlib.ExitStack() as held:
        with (
            RequestClient(config.servers, name, "", config.timeout_s, mine) as client,
            contextlib.ExitStack() as opened,
        ):
            source = Served(client) if config.dataset is None else opened.enter_context(Store(config.dataset))
            options = {"verify": config.verify, "in_blocks": trains_blocks(client)}
            dataset = held.enter_context(downloaded(source, config.cache, config.cache_bytes, **options))
        yield dataset


def _join(config: WorkerConfig, client: RequestClient, dataset: Dataset, files: StripFiles | None) -> RunEnd:
    """Join the servers and train; return why training ended."""
    try:
        welcome = client.connect()
        options = TrainingOptions.from_message(welcome.options)
    except (errors.UsageError, errors.Interrupted) as error:
        _leave_early(client, error)
        raise
    logger.info(log.line("joined", run=welcome.run, shards=welcome.shards, worker=welcome.worker))
    delays = latencies(config.latency, options.seed, welcome.rank)
    with _entries(config, client, files) as entries:
        store = ServerStore(client, options, dataset.layout.rows, latency=delays)
        try:
            return train(store, dataset, options, welcome.rank, welcome.steps, entries)
        except (errors.Interrupted, errors.OutputError, errors.ArtifactError) as error:  # others get the strips at once
            _leave_early(client, error)
            raise


@contextlib.contextmanager
def _entries(config: WorkerConfig, client: RequestClient, files: StripFiles | None) -> Iterator[StripEntries]:
    """Yield the source of the entries of strips, which downloads to `files`; None means that all entries are local."""
    if files is None:
        yield ALL_ENTRIES
        return
    store = None if config.dataset is None else Store(config.dataset)
    with contextlib.closing(RemoteEntries(client, files, store)) as entries, store or contextlib.nullcontext():
        yield entries


def _leave_early(client: RequestClient, error: errors.GlovewireError) -> None:
    """Leave before the end of the run, so that no server waits for this worker; ignore the servers' errors."""
    client.failed = None
    with contextlib.suppress(errors.GlovewireError):
        client.part(INTERRUPTED if isinstance(error, errors.Interrupted) else RunEnd(Ending.LEFT))
