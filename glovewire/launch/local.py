"""Run a whole training on this machine: server shards, workers and the monitor.

Every process is a child of this one and ends with it. A fault in any child is raised here as one error.
"""

import shlex
import shutil
import sys
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from glovewire.common import log
from glovewire.common.cli.config_file import configured
from glovewire.common.errors import ProcessDied, require_extra
from glovewire.common.ready import Ready
from glovewire.common.roles import Role
from glovewire.common.runtime.signals import Signalled
from glovewire.common.storage import run_folder as runs
from glovewire.common.storage import stores
from glovewire.common.storage.artifacts import attempt_all
from glovewire.common.storage.dataset import Dataset
from glovewire.common.text import printable
from glovewire.common.transport import curve_keys as keys
from glovewire.monitor.history.records import read_metrics
from glovewire.monitor.sinks.plot import plot
from glovewire.monitor.watch import Watcher

from ..exits import signals_end_all
from ..vectors.testsets import read_pairs
from .config import ANY_PORT, LocalConfig
from .live_scores import Judge, scores_of, scoring
from .processes import READY_S, Child, Children
from .run_lock import errors_tell_what_is_left, locked_run_folder
from .supervise import GOODBYE_S, ServerLost, await_end, end_in_order, until, until_over

MAX_RESTARTS = 100


def train(config: LocalConfig) -> dict[str, Any]:
    """Train to the end and return the facts of the run; the run folder holds everything, logs included."""
    with stores.local(config.dataset) as folder:
        dataset = Dataset.open(folder)
        for file in config.watch:
            read_pairs(file)  # so that a file that cannot be read is an error before training begins
        if config.web is not None:
            require_extra("bokeh", "web", "--web")
        if config.keys is not None:
            keys.load_both_keys(config.keys, Role.ADMIN if config.patience else Role.WORKER)
        with locked_run_folder(config), errors_tell_what_is_left(config.out):
            config = replace(config, dataset=folder)
            if config.store == "server":
                return _run(config)
            from . import hogwild

            with signals_end_all():
                return hogwild.train(config, dataset)


def _run(config: LocalConfig) -> dict[str, Any]:
    """Train to the end; when a server is killed, restart from the newest checkpoint (or the beginning)."""
    judge = Judge(config.patience, config.keep_best) if config.watch else None
    with signals_end_all():
        for attempt in range(MAX_RESTARTS):
            try:
                return _attempt(config, judge, again=attempt > 0)
            except ServerLost as error:
                print(log.line("restart", why=error, attempt=attempt + 1), file=sys.stderr)
                lost = error
            finally:
                for scratch in config.out.rglob(".*.partial"):  # written by a process that was killed
                    shutil.rmtree(scratch) if scratch.is_dir() else scratch.unlink()
        raise lost


def _attempt(config: LocalConfig, judge: Judge | None, *, again: bool) -> dict[str, Any]:
    with Children(config.out / "logs") as children:
        servers, ready = _start_servers(config, children, again=again)
        addresses, streams = [each.address for each in ready], [each.stream for each in ready]
        if config.progress:
            told = shlex.quote(printable(str(config.out)))
            print(f"watch it: glovewire monitor {told} --web (or {' '.join(streams)})", file=sys.stderr)
        try:
            with watcher(config, streams, READY_S) as watch:
                words = configured("worker", config.of_workers(), children.logs / "worker.toml")
                with scoring(config, addresses, judge) if judge else nullcontext(lambda _: None) as score:
                    workers = [
                        children.start(f"worker {rank}", [*words, *config.of_worker(rank, addresses), "--json"])
                        for rank in range(config.workers)
                    ]
                    if config.web is not None:
                        _serve_dashboard(config, children, streams)
                    until_over(watch, servers, workers, children, score)
                attempt_all(watch.close, partial(await_end, servers, children))  # closing the monitor draws the losses
        except Signalled:
            end_in_order(servers)
            raise
        until(lambda: not any(worker.running for worker in workers), GOODBYE_S)
        if watch.history.overall.last is None:  # the run was over before its stream had reached this monitor
            plot(read_metrics(config.out), config.out / runs.PLOT)
        facts = facts_of(config, [server.facts() for server in servers])
        return facts if judge is None else facts | _judged(config, judge)


def _serve_dashboard(config: LocalConfig, children: Children, streams: list[str]) -> None:
    """Start a monitor that serves the dashboard while the training lasts, and print its address."""
    keys_words = [] if config.keys is None else ["--keys", str(config.keys.resolve())]
    child = children.start("dashboard", ["monitor", *streams, "--web", str(config.web), *keys_words])

    def address() -> str | None:
        lines = child.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return next((line for line in reversed(lines) if line.startswith("dashboard http")), None)

    until(lambda: address() is not None or not child.running, READY_S)
    if (found := address()) is None:
        raise child.died()
    print(found, file=sys.stderr)


def _judged(config: LocalConfig, judge: Judge) -> dict[str, Any]:
    """Write the best epoch's vectors if `keep_best` is set; record and return the scores of the final vectors."""
    if judge.best is not None and judge.best_epoch < judge.newest_epoch:
        facts = runs.load_vectors(config.out, verify=False).facts
        dataset = Dataset.open(config.dataset, verify=False)
        runs.write_trained(config.out, dataset, config.options, judge.best, facts)
    final = runs.load_vectors(config.out, verify=False)
    found: dict[str, Any] = {"quality": scores_of(final.words, final.vectors, config.watch)}
    if judge.best_scores:
        found |= {"best_epoch": judge.best_epoch, "best_epoch_is_kept": config.keep_best}
    runs.add_facts(config.out, found)
    return found


def watcher(config: LocalConfig, streams: list[str], timeout_s: float | None = None) -> Watcher:
    """Return the monitor of a training: it draws the losses in the run folder, and shows progress on stderr."""
    return Watcher(
        streams,
        name=config.out.name,
        picture=config.out / runs.PLOT,
        stream=sys.stderr if config.progress else None,
        timeout_s=timeout_s,
        keys=config.keys,
    )


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
