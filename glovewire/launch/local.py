"""A whole training on this machine: server shards, workers and the monitor, from start to a tidy end.

Every process is a child that ends with this one. Whatever goes wrong in any of them becomes one error here.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glovewire.common import log
from glovewire.common.errors import ProcessDied, UsageError, require
from glovewire.common.model.options import TrainingOptions
from glovewire.common.runtime.signals import Signalled
from glovewire.common.storage import run_folder as runs
from glovewire.common.storage.dataset import Dataset
from glovewire.common.transport import curve_keys as keys
from glovewire.monitor.watch import Watcher
from glovewire.worker.simulated_latency import Latency

from ..exits import signals_end_all
from .processes import READY_S, Child, Children
from .run_lock import begun, errors_say_what_is_left
from .supervise import GOODBYE_S, Scored, ServerLost, await_end, end_in_order, until, until_over

MAX_RESTARTS = 100


@dataclass(frozen=True)
class LocalConfig:
    """Options of `glovewire train`; worker n has the n-th `latency`, those behind the last one the last."""

    dataset: Path
    out: Path
    options: TrainingOptions
    workers: int
    servers: int = 1
    store: str = "server"
    checkpoint_every: int = 0
    keep_checkpoints: int = 3
    progress: bool = True
    resume: bool = False
    init: Path | None = None
    watch: tuple[Path, ...] = ()
    keys: Path | None = None
    latency: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what cannot be meant, all problems in one UsageError."""
        problems = []
        if not 1 <= self.workers <= 256:
            problems.append(f"workers must be between 1 and 256, not {self.workers}")
        if not 1 <= self.servers <= 256:
            problems.append(f"servers must be between 1 and 256, not {self.servers}")
        if self.store == "local" and self.workers != 1:
            problems.append(
                f"--store local is one process: use --workers 1 or --store shared, not {self.workers} workers"
            )
        if self.store != "server" and self.servers > 1:
            problems.append(f"--servers are shards of a server, and --store {self.store} has none")
        if self.checkpoint_every < 0:
            problems.append(f"checkpoint-every must be at least 0 epochs, not {self.checkpoint_every}")
        if self.keep_checkpoints < 0:
            problems.append(f"keep-checkpoints must be at least 1, or 0 to keep all, not {self.keep_checkpoints}")
        if self.store != "server" and self.resume:
            problems.append(f"--store {self.store} keeps no checkpoints to resume from")
        for text in self.latency:
            try:
                Latency.parse(text)
            except UsageError as error:
                problems.append(str(error))
        if self.store != "server" and self.latency:
            problems.append(f"--latency is that of a network, and --store {self.store} has none")
        if self.store != "server" and self.keys is not None:
            problems.append(f"--keys protects connections, and --store {self.store} has none")
        in_step = self.options.schedule == "minibatch" and self.options.consistency != "async"
        if self.store != "server" and (in_step or self.options.staleness != "none"):
            problems.append(f"--store {self.store} goes without waiting: --consistency and --staleness need a server")
        if self.store != "server" and self.watch:
            problems.append(f"--watch scores what a server holds, not --store {self.store}")
        require(problems)


def train(config: LocalConfig) -> dict[str, Any]:
    """Train to the end; returns the facts of the run. The RUN folder holds everything, logs included."""
    dataset = Dataset.open(config.dataset)
    if config.watch:
        from . import live_scores as scores

        scores.check(config.watch)
    if config.keys is not None:
        keys.load_server_keys(config.keys)
        keys.load_client_keys(config.keys)
    with begun(config), errors_say_what_is_left(config.out):
        if config.store == "server":
            return _run(config)
        from . import hogwild

        with signals_end_all():
            return hogwild.train(config, dataset)


def _run(config: LocalConfig) -> dict[str, Any]:
    """Train until it is done, from the newest checkpoint (or the beginning) again whenever a server was killed."""
    with signals_end_all():
        for attempt in range(MAX_RESTARTS):
            try:
                return _attempt(config, again=attempt > 0)
            except ServerLost as error:
                note = log.line("restart", why=error, attempt=attempt + 1)
                print(note, file=sys.stderr)
                lost = error
        raise lost


def _attempt(config: LocalConfig, *, again: bool) -> dict[str, Any]:
    with _children(config.out / "logs") as children:
        servers, addresses, streams = _start_servers(config, children, again=again)
        try:
            with Watcher(
                streams,
                name=config.out.name,
                picture=config.out / runs.PLOT,
                stream=sys.stderr if config.progress else None,
                timeout_s=READY_S,
                keys=config.keys,
            ) as watch:
                workers = [_start_worker(config, children, addresses, rank) for rank in range(config.workers)]
                with _scores(config, addresses) as scored:
                    until_over(watch, servers, workers, children, scored)
        except Signalled:
            end_in_order(servers)
            raise
        await_end(servers, children)
        until(lambda: not any(worker.running for worker in workers), GOODBYE_S)
        said = [json.loads(server.printed().splitlines()[-1]) for server in servers]
        return {**facts_of(config, said), **_quality(config)}


def facts_of(config: LocalConfig, said: list[dict[str, Any]]) -> dict[str, Any]:
    """What shard 0 says of the run, with the pushes to all shards and the bytes from them; `said` is what each said."""
    pushes = {key: sum(one["pushes"][key] for one in said if "pushes" in one) for key in said[0].get("pushes", ())}
    received = sum(one["bytes_received"] for one in said if "bytes_received" in one)
    return {**said[0], "bytes_received": received, "pushes": pushes, "workers": config.workers, "run": str(config.out)}


def _quality(config: LocalConfig) -> dict[str, Any]:
    if not config.watch:
        return {}
    from . import live_scores as scores

    return {"quality": scores.of_run(config.out, config.watch)}


def server_arguments(config: LocalConfig, shard: int, host: str) -> list[str]:
    """The words that start one shard of this run, on free ports of `host`."""
    return [
        "server", str(config.dataset.resolve()), "--out", str(config.out.resolve()), "--bind", f"tcp://{host}:0",
        "--publish", f"tcp://{host}:0", "--shard", f"{shard}/{config.servers}",
        "--checkpoint-every", str(config.checkpoint_every), "--keep-checkpoints", str(config.keep_checkpoints),
        "--workers", str(config.workers), "--no-verify", "--json", *_keys(config), *_init(config),
        *training_arguments(config.options),
    ]  # fmt: skip


def worker_arguments(config: LocalConfig, addresses: list[str], rank: int) -> list[str]:
    """The words that start one worker of this run."""
    where = [argument for address in addresses for argument in ("--server", address)]
    latency = ["--latency", config.latency[min(rank, len(config.latency) - 1)]] if config.latency else []
    dataset = str(config.dataset.resolve())
    return ["worker", dataset, "--name", f"w{rank}", "--no-verify", "--json", *where, *_keys(config), *latency]


def _start_servers(config: LocalConfig, children: Children, *, again: bool) -> tuple[list[Child], list[str], list[str]]:
    beginning = ["--join", *(["--recover"] if again else ["--resume"] if config.resume else [])]
    servers = [
        children.start(f"server {shard}", [*server_arguments(config, shard, "127.0.0.1"), *beginning])
        for shard in range(config.servers)
    ]
    try:
        lines = [server.ready_line(time.monotonic() + READY_S).split() for server in servers]
    except ProcessDied as error:
        raise ServerLost(str(error)) if any(server.killed for server in servers) else error from error
    return servers, [words[1] for words in lines], [words[3] for words in lines]


def _start_worker(config: LocalConfig, children: Children, addresses: list[str], rank: int) -> Child:
    return children.start(f"worker {rank}", worker_arguments(config, addresses, rank))


def _init(config: LocalConfig) -> list[str]:
    return [] if config.init is None else ["--init", str(config.init.resolve())]


def _keys(config: LocalConfig) -> list[str]:
    return [] if config.keys is None else ["--keys", str(config.keys.resolve())]


def training_arguments(options: TrainingOptions) -> list[str]:
    """The flags that give these options to another glovewire process."""
    arguments = []
    for key, value in options.as_message().items():
        flag = key.replace("_", "-")
        if key == "mean_gradient":
            arguments.append("--mean-gradient" if value else "--sum-gradient")
        elif isinstance(value, bool):
            arguments.append(f"--{flag}" if value else f"--un{flag}")
        else:
            arguments += [f"--{flag}", str(value)]
    return arguments


@contextlib.contextmanager
def _scores(config: LocalConfig, addresses: list[str]) -> Iterator[Scored]:
    """What to call with each overall sample, so that `--watch` is scored."""
    if not config.watch:
        yield lambda _: None
        return
    from . import live_scores as scores

    scorer = scores.Scorer(
        addresses, Dataset.open(config.dataset, verify=False), config.options, config.watch, config.keys
    )
    try:
        yield lambda sample: scorer.at(sample.epoch) if sample is not None else None
    finally:
        scorer.close()


@contextlib.contextmanager
def _children(logs: Path) -> Iterator[Children]:
    children = Children(logs)
    try:
        yield children
    finally:
        children.end()
        _sweep(logs.parent)


def _sweep(run: Path) -> None:
    """Remove what a process was writing when it was killed; nobody writes any more."""
    for scratch in run.rglob(".*.partial"):
        shutil.rmtree(scratch) if scratch.is_dir() else scratch.unlink()
