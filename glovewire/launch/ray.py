"""Run `glovewire train --launcher ray`: Ray places and restarts shards and workers; rows still travel over ZeroMQ.

Each shard and each worker is an actor that keeps one glovewire process running. When a process is killed, its actor
restarts it; when an actor or its machine is lost, Ray restarts the actor, possibly on another machine. A shard then has
a new address, and this process restarts all other processes with it. Shards continue from the newest checkpoint.

The machines share no folder. Shard 0 runs on the machine of this process, which has the dataset and the run folder. All
other actors have a folder of their own and get the dataset and the checkpoints from the shards.
"""

import contextlib
import fcntl
import json
import math
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from signal import SIGKILL
from typing import Any

from glovewire.common.cli.config_file import configured
from glovewire.common.errors import KeyFileError, ProcessDied
from glovewire.common.option import default_cache
from glovewire.common.roles import Role
from glovewire.common.runtime import ray_cluster as cluster
from glovewire.common.storage.artifacts import output_errors
from glovewire.common.transport import curve_keys
from glovewire.monitor.watch import Watcher
from glovewire.server.config import ServerConfig
from glovewire.worker.config import WorkerConfig

from ..exits import signals_end_all
from .config import LocalConfig
from .local import facts_of, watcher
from .processes import READY_S, Child, Children
from .run_lock import errors_tell_what_is_left, locked_run_folder

STEP_S = 0.2
END_S = 30.0
"""Time for a process to end after a signal: shard 0 still copies the last checkpoints of the other shards."""
WORKER_TIMEOUT_S = 300.0
"""Time that a worker waits for a shard while Ray restarts it."""
AFTER_RESULTS_S = 60.0
"""Time that other shards may still run after shard 0 has written the results and ended."""
LOG_BYTES = 1 << 18
"""Largest piece of a log in one answer of an actor."""
PORTS = 3
"""Ports of a shard: for workers, for monitors, for the other shards."""


@dataclass(frozen=True)
class Place:
    """Where an actor is: its node, the address of its machine, ports reserved for its process, a folder of its own."""

    node: str
    host: str
    ports: tuple[int, ...]
    folder: Path


@dataclass(frozen=True)
class Task:
    """What the actor at `place` is to run: `glovewire COMMAND` with the options of `config`, and `words`.

    `keys` are the key files of its process, by name.
    """

    place: Place
    command: str
    config: ServerConfig | WorkerConfig
    words: tuple[str, ...]
    keys: Mapping[str, str] = field(repr=False, compare=False)


@dataclass(frozen=True)
class State:
    """State of an actor: its place, and its process's exit status (None while running), last printed line and error.

    `log` is a piece of what the process has logged since the last State.
    """

    place: Place
    status: int | None = None
    last: str = ""
    died: str = ""
    log: bytes = field(default=b"", repr=False)


# ---- in the actors


class Keeper:
    """Starts and restarts one process of a run; lives in a Ray actor."""

    def __init__(self, role: str, host: str | None, ports: int) -> None:
        import ray

        self._role = role
        self._held = contextlib.ExitStack()
        folder = self._held.enter_context(own_folder(default_cache().with_name("runs")))
        where = host or str(ray.util.get_node_ip_address())
        reserved = tuple(self._held.enter_context(_reserved(where)).getsockname()[1] for _ in range(ports))
        self._place = Place(str(ray.get_runtime_context().get_node_id()), where, reserved, folder)
        self._children = Children(folder / "logs", last_signal=SIGKILL)
        self._children.patience_s = END_S
        self._child: Child | None = None
        self._task: Task | None = None
        self._keys: Mapping[str, str] = {}
        self._logged = 0

    def keep(self, task: Task | None) -> State:
        """Start the process, or restart it if it was killed or has another `task`; return the state.

        Ignores a task for another place, because it was meant for an actor that has been lost.
        """
        if task is not None and task.place == self._place:
            if task.keys != self._keys:
                curve_keys.write_files(self._place.folder / "keys", task.keys)
                self._keys = task.keys
            child, is_new = self._child, task != self._task
            if child is not None and is_new:
                child.process.kill()
                child.process.wait()
            if is_new or (child is not None and child.killed and self._children.may_restart(self._role)):
                self._start(task)
        return self._state()

    def end(self) -> State:
        """End the process if it still runs, remove the folder, and return the last state."""
        self._children.end()
        state = self._state()
        self._held.close()
        return state

    def _start(self, task: Task) -> None:
        config = replace(task.config, cache=default_cache())  # this machine's own
        words = configured(task.command, config, self._place.folder / f"{task.command}.toml")
        self._child, self._task = self._children.start(self._role, [*words, *task.words, "--json"]), task

    def _state(self) -> State:
        child = self._child
        if child is None:
            return State(self._place)
        status = child.status  # first: a process that ends now may not have printed its last line yet
        with child.log.open("rb") as log:
            log.seek(self._logged)
            piece = log.read(LOG_BYTES)
        self._logged += len(piece)
        lines = child.printed().splitlines() or [""]
        return State(self._place, status, lines[-1], str(child.died()) if child.failed else "", piece)


@contextlib.contextmanager
def own_folder(base: Path) -> Iterator[Path]:
    """Yield a new folder in `base`, removed at the end; first remove the folders that killed processes left."""
    with contextlib.ExitStack() as held:
        with output_errors(base, "folder"):
            base.mkdir(parents=True, exist_ok=True)
            with _locked(base):  # otherwise another process may remove the new folder before it is locked
                for other in base.glob("run-*"):
                    with contextlib.suppress(BlockingIOError), _locked(other, fcntl.LOCK_NB):
                        shutil.rmtree(other)
                folder = Path(tempfile.mkdtemp(prefix="run-", dir=base))
                held.enter_context(_locked(folder))
        held.callback(shutil.rmtree, folder, ignore_errors=True)
        yield folder


@contextlib.contextmanager
def _locked(folder: Path, how: int = 0) -> Iterator[None]:
    """Hold an exclusive lock on a folder; the system releases it when this process ends, even if killed."""
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | how)
        yield
    finally:
        os.close(lock)


def _reserved(host: str) -> socket.socket:
    """Return a socket that reserves a port for a child process: it is bound but never listens.

    The system assigns the port to no other process; a socket with SO_REUSEADDR, such as ZeroMQ's, can listen on it.
    """
    holder = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind((host, 0))
    return holder


# ---- in the process that drives them


def train(config: LocalConfig) -> dict[str, Any]:
    """Train to the end on the Ray cluster at `config.address`, or on this machine, and return the facts of the run."""
    with (
        cluster.connected(config.address) as ray,  # first, so that nothing is created if Ray is missing
        locked_run_folder(config),
        errors_tell_what_is_left(config.out),
        signals_end_all(),
    ):
        driver = _Driver(config, ray)
        try:
            return driver.run()
        finally:
            driver.end()


class _Actor:
    """An actor as the driving process sees it; what its process logs is appended to the file `log`."""

    def __init__(self, ray: Any, handle: Any, role: str, log: Path) -> None:
        self._ray, self._role, self._log = ray, role, log
        self.handle = handle
        self.state: State | None = None
        self._pending: Any = None
        self._asked = 0.0

    @property
    def done(self) -> bool:
        """Return whether its process has ended successfully."""
        return self.state is not None and self.state.status == 0

    @property
    def fault(self) -> str:
        """Return why its process has failed, or that Ray has not placed the actor; "" if neither is true."""
        if self.state is not None and self.state.status:
            return self.state.died.replace(f"see {self.state.place.folder}", f"see {self._log.parents[1]}")
        late = self._pending is not None and time.monotonic() > self._asked + READY_S
        return f"Ray has not placed {self._role} within {READY_S:.0f} s: are enough cores free?" if late else ""

    def keep(self, task: Task | None) -> None:
        """Ask the actor to keep its process running, unless it has not answered yet or its process is done."""
        if self._pending is None and not self.done:
            self._pending, self._asked = self.handle.keep.remote(task), time.monotonic()

    def hear(self) -> None:
        """Take the actor's answer if it has arrived."""
        if self._pending is not None and self._ray.wait([self._pending], timeout=0)[0]:
            answer, self._pending = self._pending, None
            self.take(self._ray.get(answer))

    def take(self, state: State) -> None:
        """Keep a new state of the actor, and write its piece of the log."""
        self.state = state
        if state.log:
            with output_errors(self._log), self._log.open("ab") as log:
                log.write(state.log)


class _Driver:
    """Drives the actors until the shards have ended successfully."""

    def __init__(self, config: LocalConfig, ray: Any) -> None:
        self._config, self._ray = config, ray
        self._node = str(ray.get_runtime_context().get_node_id())
        self._server, self._worker = config.of_servers(recover=True), config.of_workers(timeout_s=WORKER_TIMEOUT_S)
        self._keys: tuple[Mapping[str, str], Mapping[str, str]] = ({}, {})
        self._read_keys()
        self._logs = config.out.resolve() / "logs"
        with output_errors(self._logs):
            self._logs.mkdir(exist_ok=True)
        cores = cluster.share_of_cpus(ray, config.servers + config.workers)
        self._kind = ray.remote(max_restarts=-1, max_task_retries=-1, num_cpus=cores)(Keeper)
        self._shards = [self._actor("server 0", cluster.on_this_node(ray), PORTS)]
        self._workers: list[_Actor] = []
        self._results_at = math.inf

    @property
    def _all(self) -> list[_Actor]:
        return [*self._shards, *self._workers]

    def _actor(self, role: str, where: Any, ports: int) -> _Actor:
        """Have Ray start an actor on a node that `where` allows."""
        host = None if self._config.address else "127.0.0.1"
        handle = self._kind.options(scheduling_strategy=where).remote(role, host, ports)
        return _Actor(self._ray, handle, role, self._logs / f"{role.replace(' ', '-')}.log")

    def _read_keys(self) -> None:
        if self._config.keys is not None:
            self._keys = curve_keys.files_elsewhere(self._config.keys, Role.WORKER)

    def run(self) -> dict[str, Any]:
        """Keep all processes running until every shard has ended successfully; return the facts of the run."""
        config = self._config
        streams: list[str] = []
        with contextlib.ExitStack() as watching:
            watch: Watcher | None = None
            while not self._over():
                places = [actor.state.place for actor in self._all if actor.state is not None]
                if places and not self._workers:  # shard 0 has its core on this node: no other can take it
                    self._shards += [self._actor(f"server {n}", "SPREAD", PORTS) for n in range(1, config.servers)]
                    self._workers += [self._actor(f"worker {n}", "SPREAD", 0) for n in range(config.workers)]
                placed = len(places) == len(self._all)
                with contextlib.suppress(KeyFileError):  # the files are being replaced
                    self._read_keys()
                for number, task in enumerate(self._tasks(places) if placed else [None] * len(self._all)):
                    self._all[number].keep(task)
                if placed and streams != (streams := self._addresses(places, 1)):
                    watching.close()
                    watch = watching.enter_context(watcher(config, streams))
                if watch is None:
                    time.sleep(STEP_S)
                else:
                    watch.step(STEP_S)
                for actor in self._all:
                    actor.hear()
        ended = [shard.state.last if shard.state is not None and shard.done else "{}" for shard in self._shards]
        return facts_of(config, [json.loads(last) for last in ended])

    def _over(self) -> bool:
        """Return whether the shards have ended and shard 0 has written the results; ProcessDied if they cannot."""
        if self._shards[0].done:
            self._results_at = min(self._results_at, time.monotonic())
            late = time.monotonic() > self._results_at + AFTER_RESULTS_S
            return late or all(shard.done or shard.fault for shard in self._shards)
        for actor in self._all:
            if fault := actor.fault:
                raise ProcessDied(fault)
        return False

    def _addresses(self, places: list[Place], port: int) -> list[str]:
        """Return the address of every shard on port number `port` (0 to PORTS - 1) of its place."""
        return [f"tcp://{place.host}:{place.ports[port]}" for place in places[: len(self._shards)]]

    def _tasks(self, places: list[Place]) -> list[Task | None]:
        """Return what every actor is to run while they are at `places`."""
        requests, streams, peers = (self._addresses(places, port) for port in range(PORTS))
        count, own_keys = len(self._shards), self._config.keys
        tasks: list[Task | None] = []
        for number, place in enumerate(places):
            dataset = self._worker.dataset if place.node == self._node else None
            keys = own_keys and place.folder / "keys"
            if number >= count:
                worker = replace(self._worker, dataset=dataset, keys=keys)
                words = self._config.of_worker(number - count, requests)
                tasks.append(Task(place, "worker", worker, tuple(words), self._keys[1]))
                continue
            server = replace(
                self._server,
                bind=requests[number],
                publish=streams[number],
                shard=number,
                shards=count,
                peers=tuple(peers) if count > 1 else (),
            )
            if number:
                server = replace(server, dataset=dataset, out=place.folder / "run", keys=keys)
            tasks.append(Task(place, "server", server, ("--shard", f"{number}/{count}"), self._keys[0]))
        return tasks

    def end(self) -> None:
        """End all processes and actors; shards first, so that workers complete the rounds that were begun."""
        for actors in filter(None, (self._shards, self._workers)):
            ends = {actor.handle.end.remote(): actor for actor in actors}
            for end in self._ray.wait(list(ends), num_returns=len(ends), timeout=END_S)[0]:
                with contextlib.suppress(self._ray.exceptions.RayError):
                    ends[end].take(self._ray.get(end))
        for actor in (*self._workers, *self._shards):
            self._ray.kill(actor.handle)
