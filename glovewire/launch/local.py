"""Run a whole training on this machine: server shards, workers and the monitor.

Every process is a child of this one and ends with it. A fault in any child is raised here as one error.
"""

import contextlib
import shutil
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from glovewire.common import log
from glovewire.common.cli.config_file import configured
from glovewire.common.errors import ProcessDied
from glovewire.common.ready import Ready
from glovewire.common.roles import Role
from glovewire.common.runtime.signals import Signalled
from glovewire.common.storage import run_folder as runs
from glovewire.common.storage.artifacts import attempt_all
from glovewire.common.storage.dataset import Dataset
from glovewire.common.transport import curve_keys as keys
from glovewire.monitor.watch import Watcher

from ..exits import signals_end_all
from .config import ANY_PORT, LocalConfig
from .processes import READY_S, Child, Children
from .run_lock import errors_tell_what_is_left, locked_run_folder
from .supervise import GOODBYE_S, Scored, ServerLost, await_end, end_in_order, until, until_over

MAX_RESTARTS = 100


def train(config: LocalConfig) -> dict[str, Any]:
    """Train to the end and return the facts of the run; the run folder holds everything, logs included."""
    dataset = Dataset.open(config.dataset)
    if config.watch:
        from . import live_scores

        live_scores.check(config.watch)
    if config.keys is not None:
        keys.load_both_keys(config.keys, Role.WORKER)
    with locked_run_folder(config), errors_tell_what_is_left(config.out):
        if config.store == "server":
            return _run(config)
        from . import hogwild

        with signals_end_all():
            return hogwild.train(config, dataset)


def _run(config: LocalConfig) -> dict[str, Any]:
    """Train to the end; when a server is killed, restart from the newest checkpoint (or the beginning)."""
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
        servers, ready = _start_servers(config, children, again=again)
        addresses = [each.address for each in ready]
        try:
            with Watcher(
                [each.stream for each in ready],
                name=config.out.name,
                picture=config.out / runs.PLOT,
                stream=sys.stderr if config.progress else None,
                timeout_s=READY_S,
                keys=config.keys,
            ) as watch:
                words = configured("worker", config.of_workers(), children.logs / "worker.toml")
                workers = [
                    children.start(f"worker {rank}", [*words, *config.of_worker(rank, addresses), "--json"])
                    for rank in range(config.workers)
                ]
                with _scores(config, addresses) as scored:
                    until_over(watch, servers, workers, children, scored)
                attempt_all(watch.close, partial(await_end, servers, children))  # the first draws the losses
        except Signalled:
            end_in_order(servers)
            raise
        until(lambda: not any(worker.running for worker in workers), GOODBYE_S)
        facts = facts_of(config, [server.facts() for server in servers])
        if config.watch:
            from . import live_scores

            facts["quality"] = live_scores.of_run(config.out, config.watch)
        return facts


def facts_of(config: LocalConfig, shards: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the facts of the run from shard 0, with pushes and received bytes summed over all shards."""
    pushes = {key: sum(one["pushes"][key] for one in shards if "pushes" in one) for key in shards[0].get("pushes", ())}
    received = sum(one.get("bytes_received", 0) for one in shards)
    changed = {"bytes_received": received, "pushes": pushes, "workers": config.workers, "run": str(config.out)}
    return shards[0] | changed


def _start_servers(config: LocalConfig, children: Children, *, again: bool) -> tuple[list[Child], list[Ready]]:
    how = config.of_servers(
        bind=ANY_PORT, publish=ANY_PORT, join=True, recover=again, resume=config.resume and not again
    )
    servers = children.start_shards(configured("server", how, children.logs / "server.toml"), config.servers)
    try:
        return servers, [server.ready() for server in servers]
    except ProcessDied as error:
        raise ServerLost(str(error)) if any(server.killed for server in servers) else error from error


@contextlib.contextmanager
def _scores(config: LocalConfig, addresses: list[str]) -> Iterator[Scored]:
    """Yield a function that takes each overall loss sample and scores the vectors at each new epoch (--watch)."""
    if not config.watch:
        yield lambda _: None
        return
    from . import live_scores

    scorer = live_scores.Scorer(
        addresses, Dataset.open(config.dataset, verify=False), config.options, config.watch, config.keys
    )
    try:
        yield lambda sample: scorer.at(sample.epoch) if sample is not None else None
    finally:
        scorer.close()


@contextlib.contextmanager
def _children(logs: Path) -> Iterator[Children]:
    try:
        with Children(logs) as children:
            yield children
    finally:
        for scratch in logs.parent.rglob(".*.partial"):  # written by a process that was killed
            shutil.rmtree(scratch) if scratch.is_dir() else scratch.unlink()
