"""Run `glovewire train --launcher ray`: Ray places and restarts shards and workers; rows still travel over ZeroMQ.

Each shard and each worker is an actor that keeps one glovewire process running. When a process is killed, its actor
restarts it; when an actor or its machine is lost, Ray restarts the actor, possibly on another machine. A shard then has
another address, with which this process restarts the workers. Shards continue from the newest checkpoint.
"""

import json
import sys
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL
from typing import Any

from glovewire.common.cli.config_file import configured
from glovewire.common.errors import ProcessDied, ProtocolError
from glovewire.common.ready import Ready
from glovewire.common.runtime import ray_cluster as cluster
from glovewire.common.storage import run_folder as runs
from glovewire.monitor.watch import Watcher

from ..exits import signals_end_all
from .config import LocalConfig
from .local import facts_of
from .processes import READY_S, Child, Children
from .run_lock import errors_tell_what_is_left, locked_run_folder

HOST = "HOST"
"""Placeholder in arguments for the address of the machine that the actor runs on."""
STEP_S = 0.2


@dataclass(frozen=True)
class State:
    """State of a process: exit status (None while it runs), first and last line printed, error."""

    status: int | None
    first: str
    last: str
    died: str


class Role:
    """Starts and restarts one process of a run; lives in a Ray actor."""

    def __init__(self, role: str, logs: Path, host: str | None) -> None:
        self._role, self._host = role, host
        self._children = Children(logs, last_signal=SIGKILL)
        self._child: Child | None = None

    def keep(self, arguments: list[str]) -> State:
        """Start the process, or restart it if it was killed or has other `arguments`; return its state."""
        import ray

        host = self._host or str(ray.util.get_node_ip_address())
        words = [word.replace(HOST, host) for word in arguments]
        child = self._child
        if child is not None and list(child.arguments) != words:
            child.process.kill()
            child.process.wait()
        if child is None or list(child.arguments) != words or (child.killed and self._children.may_restart(self._role)):
            child = self._child = self._children.start(self._role, words)
        status = child.status  # first: a process that ends now may not have printed its last line yet
        lines = child.printed().splitlines() or [""]
        return State(status, lines[0], lines[-1], str(child.died()) if child.failed else "")

    def end(self) -> None:
        """End the process if it still runs."""
        self._children.end()


def train(config: LocalConfig) -> dict[str, Any]:
    """Train to the end on the Ray cluster at `config.address`, or on this machine, and return the facts of the run.

    Every machine must find the dataset and the run folder under the same paths.
    """
    with (
        cluster.connected(config.address) as ray,  # first: nothing is made where there is no Ray
        locked_run_folder(config),
        errors_tell_what_is_left(config.out),
        signals_end_all(),
    ):
        cores = cluster.share_of_cpus(ray, config.servers + config.workers)
        actor = ray.remote(max_restarts=-1, max_task_retries=-1, num_cpus=cores, scheduling_strategy="SPREAD")(Role)
        logs, host = config.out.resolve() / "logs", None if config.address else "127.0.0.1"
        servers = [actor.remote(f"server {shard}", logs, host) for shard in range(config.servers)]
        workers = [actor.remote(f"worker {rank}", logs, host) for rank in range(config.workers)]
        try:
            return _Driver(config, ray, servers, workers).run()
        finally:
            for roles in (servers, workers):  # servers first: workers complete the rounds that were begun
                with suppress(ray.exceptions.RayError):  # an actor that does not answer is killed
                    ray.get([role.end.remote() for role in roles], timeout=READY_S)
            for role in (*workers, *servers):
                ray.kill(role)


def _ready(shards: list[State]) -> list[Ready]:
    """Return the shards' ready messages with their addresses; an empty list until every shard has printed one."""
    with suppress(ProtocolError):
        return [Ready.parse(shard.first) for shard in shards]
    return []


class _Driver:
    """Drives the actors until the shards have ended well."""

    def __init__(self, config: LocalConfig, ray: Any, servers: list[Any], workers: list[Any]) -> None:
        self._config, self._ray = config, ray
        self._servers, self._workers = servers, workers
        logs = config.out.resolve() / "logs"
        self._server_words = configured("server", config.of_servers(recover=True), logs / "server.toml")
        self._worker_words = configured("worker", config.of_workers(), logs / "worker.toml")

    def run(self) -> dict[str, Any]:
        """Keep all processes running until every shard has ended successfully; return the facts of the run."""
        streams: list[str] = []
        with ExitStack() as watching:
            watch: Watcher | None = None
            while True:
                shards = self._keep(self._servers, [self._shard(shard) for shard in range(len(self._servers))])
                if all(shard.status == 0 for shard in shards):
                    break
                if ready := _ready(shards):
                    where = [each.address for each in ready]
                    self._keep(
                        self._workers,
                        [
                            [*self._worker_words, *self._config.of_worker(rank, where), "--json"]
                            for rank in range(len(self._workers))
                        ],
                    )
                    if streams != (streams := [each.stream for each in ready]):
                        watching.close()
                        watch = watching.enter_context(self._watch(streams))
                if watch is None:
                    time.sleep(STEP_S)
                else:
                    watch.step(STEP_S)
        return facts_of(self._config, [json.loads(shard.last) for shard in shards])

    def _keep(self, roles: list[Any], arguments: list[list[str]]) -> list[State]:
        pending = [role.keep.remote(words) for role, words in zip(roles, arguments, strict=True)]
        try:
            states: list[State] = self._ray.get(pending, timeout=READY_S)
        except self._ray.exceptions.GetTimeoutError as error:
            raise ProcessDied(f"Ray did not place every process within {READY_S:.0f} s: has it room?") from error
        for state in states:
            if state.status:
                raise ProcessDied(state.died)
        return states

    def _shard(self, shard: int) -> list[str]:
        address = f"tcp://{HOST}:0"
        where = ["--bind", address, "--publish", address, "--shard", f"{shard}/{self._config.servers}"]
        return [*self._server_words, *where, "--json"]

    def _watch(self, streams: list[str]) -> Watcher:
        config = self._config
        return Watcher(
            streams,
            name=config.out.name,
            picture=config.out / runs.PLOT,
            stream=sys.stderr if config.progress else None,
            keys=config.keys,
        )
