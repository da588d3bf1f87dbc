"""Shards and workers of one run: the program's own code with other sockets, clocks, signals and threads.

A shard is `server.service.serve` on a `SimulatedDaemon`, a worker is `worker.service.work` on `SimulatedLinks`. The run
folder is a real one, and generations, checkpoints and results are those of a real run.
"""

from __future__ import annotations

import contextlib
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar
from unittest import mock

import apart
import dense_model
import hostile
import stored
import visitors
import zmq
from disk import Disk
from network import Network, SimulatedLinks
from oracles import CheckpointOracle, ShardOracle, require
from threads import Executor, threading
from world import Action, Clock, Process, Secrets, World

from glovewire.cli import admin
from glovewire.common.array_types import Rows
from glovewire.common.endings import LASTING, Ending, RunEnd
from glovewire.common.errors import DeadlineExceeded, Interrupted, ProtocolError
from glovewire.common.model.options import TrainingOptions
from glovewire.common.protocol import messages as m
from glovewire.common.protocol import wire
from glovewire.common.protocol.wire import Frame
from glovewire.common.roles import Client, Role
from glovewire.common.storage.artifacts import MANIFEST
from glovewire.common.storage.cache import OURS
from glovewire.common.storage.dataset import Dataset, Layout
from glovewire.common.storage.run_folder import METRICS
from glovewire.common.transport import client as clients
from glovewire.monitor.stream import feed
from glovewire.server import leaving, service, stored_checkpoints
from glovewire.server.checkpoints import cuts, generations, writer
from glovewire.server.checkpoints import files as checkpoint
from glovewire.server.checkpoints.cuts import Snapshot
from glovewire.server.checkpoints.generations import Generation
from glovewire.server.config import ServerConfig
from glovewire.server.core.core import Core, Effects
from glovewire.server.core.state import NetworkCounts
from glovewire.server.daemon import CHECK_EVERY_S, TICK_MS, CheckShards
from glovewire.server.telemetry.metrics_file import MetricsFile
from glovewire.worker import service as work
from glovewire.worker.config import WorkerConfig
from glovewire.worker.dense import client as dense
from glovewire.worker.dense import session as dense_session
from glovewire.worker.stores import server_store

WRITTEN_S = 0.3
"""Delay of an action of `when_written` after a checkpoint was written: every shard announces its part meanwhile."""
TIMEOUT_S = 20.0
"""The `--timeout` of workers: how long they wait for an answer."""
LATE_S = 1.0
"""How much later than a process could send it a heartbeat arrives, at most."""
ROLES = {
    "monitor": Role.MONITOR, "admin": Role.ADMIN, "finisher": Role.ADMIN, "scorer": Role.ADMIN, "liar": Role.MONITOR
}  # fmt: skip
"""Roles of the keys of clients that are not workers."""
T = TypeVar("T")
really_open = Dataset.open
opened = lru_cache(maxsize=2)(really_open)
"""Every process of every cluster has the same dataset; downloaded copies of it are opened anew."""


class SimulatedDaemon:
    """Carries out the effects of a core, as `Daemon` does, on a simulated network."""

    def __init__(self, cluster: Cluster, core: Core, run: Path, bind: str, keep: int) -> None:
        self._cluster, self._core, self._run, self.address = cluster, core, run, bind
        self.stream_address = bind
        self.signalled = False
        self._ending: RunEnd | None = None
        self._unanswered = False
        self._arrived: deque[tuple[bytes, list[Frame], Client | None]] = deque()
        self._writer = writer.CheckpointWriter(run, keep, self._awake)
        self._metrics_file = MetricsFile(run / METRICS)
        self._wake: Callable[[], object] | None = None
        cluster.network.listeners[bind] = self
        self._oracle = cluster.oracle(core)

    def install_signals(self) -> None:
        """See Daemon."""

    def replace_core(self, core: Core) -> None:
        """See Daemon."""
        self._metrics_file.close()
        self._core, self._metrics_file, self._ending = core, MetricsFile(self._run / METRICS), None
        self._oracle = self._cluster.oracle(core)

    def arrive(self, peer: bytes, frames: list[Frame]) -> None:
        """Take a request from the network."""
        self._arrived.append((peer, frames, self._cluster.client_at(peer)))
        self._awake()

    @property
    def generation(self) -> int:
        """Return the number of the generation that is served."""
        return self._core._state.identity.generation

    def _awake(self) -> None:
        if self._wake is not None:
            self._wake()

    def serve(self, check_shards: CheckShards) -> RunEnd:
        """See Daemon."""
        world = self._cluster.world
        checked, known, ticked = 0.0, None, 0.0
        while True:
            owed = 0.0
            while self._arrived:
                self._handle(*self._arrived.popleft(), check_shards)
                owed = 0.0 if self._ending or self._unanswered else ticked + TICK_MS / 1e3 - world.now
            if owed > 0.0:
                self._wait(owed)
                continue
            ticked = world.now
            self._report_written(self._writer.results())
            effects = self._core.tick(world.time, NetworkCounts(port=visitors.REQUEST_PORT))
            self._oracle.ticked(effects)
            self._carry_out(effects)
            if world.now - checked >= CHECK_EVERY_S or known != self._ending:
                checked, known = world.now, self._ending
                if (end := check_shards(self._ending)) is not None and known is None:
                    self._carry_out(self._core.finish(end))
            if effects.finished is not None:
                return effects.finished
            if not self._arrived and not self._unanswered:
                self._wait(self._cluster.tick_s)

    def _wait(self, seconds: float) -> None:
        """Wait until a message has arrived, or a checkpoint was written."""
        self._wake = self._cluster.world.waker()
        self._cluster.world.wait(seconds)
        self._wake = None

    def _handle(self, peer: bytes, frames: list[Frame], client: Client | None, check_shards: CheckShards) -> None:
        try:
            request = wire.decode(frames)
        except ProtocolError as error:
            self._carry_out(self._core.reject(peer, error))
            return
        if isinstance(request.message, m.Hello) and (end := check_shards(self._ending)) is not None:
            self._carry_out(self._core.finish(end))
        self._oracle.receives(peer, request.message)
        effects = self._core.receive(peer, request.number, request.message, self._cluster.world.time, client)
        self._oracle.received(peer, request.number, request.message, effects)
        self._carry_out(effects)

    def finish_writing(self) -> None:
        """See Daemon."""
        self._writer.finish()

    def write_now(self, snapshot: Snapshot) -> None:
        """See Daemon."""
        self._report_written(self._writer.finish())
        checkpoint.write(self._run, snapshot)

    def aside(self, action: Callable[[], T]) -> T:
        """See Daemon."""
        return action()

    def farewell(self) -> None:
        """See Daemon."""
        self._carry_out(self._core.farewell())

    def announce(self, kind: str, text: str = "") -> None:
        """See Daemon."""
        self._carry_out(self._core.announce(self._cluster.world.time, kind, text))

    def close(self) -> None:
        """See Daemon."""
        self._cluster.network.listeners.pop(self.address, None)
        self._writer.close()
        self._metrics_file.close()

    def _report_written(self, written: list[writer.WriteResult]) -> None:
        world = self._cluster.world
        for each in written:
            world.tell(f"has written {each.label}: {each.error or 'on disk'}")
            self._cluster.checkpoints.removed(each.removed)
            if each.error is None and self._cluster.when_written:
                world.after(WRITTEN_S, self._cluster.when_written.pop(0))
            effects = self._core.checkpointed(each, world.time)
            self._carry_out(effects)

    def _carry_out(self, effects: Effects) -> None:
        for reply in effects.replies:
            frames = [bytes(frame) for frame in wire.encode(reply.number, reply.message)]
            if not self._cluster.network.to_client(reply.peer, frames):
                self._core.disconnected(reply.peer)
        for snapshot in effects.snapshots:
            self._writer.begin(snapshot)
        if effects.checkpoint_awaited:
            self._writer.speed_up()
        for published in effects.published:
            cluster = self._cluster
            cluster.published.add(self.address, published.run, published.frames[-1], self)
            cluster.network.publish(self.address, published.frames)
            if isinstance(published.sample, m.RunSample | m.LossSample | m.QualitySample):
                self._metrics_file.add(published.sample)
            elif isinstance(published.sample, m.Event):
                self._cluster.world.tell(f"{published.sample.kind} {published.sample.subject} {published.sample.text}")
                if published.sample.kind == "lost" and published.sample.text.startswith("not heard"):
                    cluster.require_silent(published.sample.subject)
        self._ending, self._unanswered = effects.ending, effects.unanswered
        if effects.ending is not None and self._cluster.ends_at is None:
            self._cluster.ends_at = self._cluster.network.counts["sent"]
            self._cluster.world.changes += 1


class Cluster:
    """The processes of one run in `folder`: shards by number, workers by name. A killed process is restarted.

    `options` are those of the training, `checkpoint_every` counts epochs, and `at` is as in `CheckpointOracle`. An
    idle shard looks at its clock every `tick_s`. A `keen` administrator requests checkpoints all the time.
    """

    def __init__(
        self, world: World, dataset: Path, folder: Path, options: TrainingOptions, shards: int, workers: int,
        checkpoint_every: int = 0, lease_s: float = 3.0, at: Callable[[int], Rows | None] = lambda _: None,
        *, hold: bool = False, disks: Sequence[Disk] = (), store: stored.ObjectStore | None = None,
        keep: int = 3, init: Path | None = None, roles: bool = False, cache_bytes: int = 1 << 30, tick_s: float = 0.1,
        fixed: int = dense_model.FEW, keen: bool = False,
    ) -> None:  # fmt: skip
        self.world, self.network = world, Network(world)
        self.dataset, self.root, self.options, self.is_apart = dataset, folder, options, len(disks) > 1
        self.folders = [apart.folder_of(folder, shard) / "run" if self.is_apart else folder for shard in range(shards)]
        self.folder = self.folders[0]
        self.checkpoint_every, self.lease_s, self.count = checkpoint_every, lease_s, workers
        self.addresses = tuple(f"tcp://10.0.0.{shard + 1}:5555" for shard in range(shards))
        self.shards: dict[int, Process] = {}
        self.workers: dict[str, Process] = {}
        self.clients: dict[str, clients.RequestClient] = {}
        self._cache_bytes, self.tick_s, self.fixed, self.keen = cache_bytes, tick_s, fixed, keen
        self.hold, self._has_store, self._keep, self._init, self.has_roles = hold, store is not None, keep, init, roles
        self._of_tensors = options.objective == "tensors"
        data = None if self._of_tensors else Dataset.open(dataset, verify=False)
        watched = (self._config(0), data, at, world.observing)
        self.checkpoints = CheckpointOracle(*watched)
        self.apart: apart.ApartOracle | None = None
        if self.is_apart:
            self.checkpoints = apart.UnionOracle(folder, self.folders, *watched)
            self.apart = apart.ApartOracle(world, disks, self.folders, self.checkpoints)
        self.stored: stored.StoreOracle | None = None
        if store is not None:
            place = dataset.with_name(f"from-store-{world.seed}")
            self.stored = stored.StoreOracle(store, place, self.folders, self.checkpoints)
        self.published = visitors.Published()
        self.dataset_words = [] if data is None else [data.words[word] for word in data.permutation.tolist()]
        self.dataset_checksum = "" if data is None else data.checksum
        self._layout = None if data is None else data.layout
        self.visitors: dict[str, Process] = {}
        self.started = Counter[str]()
        self.when_written: list[Action] = []
        """Actions to run one by one, each after the next checkpoint that is written."""
        self.when_begun: list[Callable[[Generation], object]] = []
        """Actions to run one by one, each when the next generation begins from a checkpoint."""
        self._seen, self._over = -1, False
        self.ends_at: int | None = None
        """Number of messages that had been sent when the first shard said that the run ends, None before."""
        for shard in range(shards):
            self.start_shard(shard)
        for number in range(workers):
            self.start_worker(f"w{number}")

    def oracle(self, core: Core) -> ShardOracle:
        """Return an oracle that watches a core."""
        return ShardOracle(core, self.checkpoints, self.network.said_by)

    def start_shard(self, shard: int, *, recover: bool = False) -> None:
        """Start a shard."""
        config = self._config(shard, recover=recover or self.is_apart or self._has_store)

        def ready(daemon: Any) -> None:
            with self.world.observing():
                self.checkpoints.begins()
                if self.apart is not None:
                    self.apart.serves(shard, daemon.generation)
                if self.stored is not None:
                    self.stored.serves(self.folders[shard], daemon.generation)

        if self.apart is not None:
            self.apart.starts(shard)
        self.shards[shard] = self.world.start(f"shard {shard}", lambda: service.serve(config, ready))

    def _config(self, shard: int, *, recover: bool = False) -> ServerConfig:
        # Without `cache` a shard would look up the home folder each time, though with a shared folder it uses no cache.
        places: dict[str, Any] = {"dataset": None if self._of_tensors else self.dataset, "cache": self.root}
        if self.is_apart:
            cache = apart.folder_of(self.root, shard) / "cache"
            places = {"dataset": None if shard else places["dataset"], "cache": cache, "verify": True}
            places["peers"] = tuple(map(apart.address_of, range(len(self.addresses))))
        if self._has_store:
            places["checkpoints"] = stored.URL
        return ServerConfig(
            out=self.folders[shard], bind=self.addresses[shard],
            publish="tcp://127.0.0.1:0", shard=shard, shards=len(self.addresses), lease_s=self.lease_s,
            checkpoint_every=self.checkpoint_every, join=not recover, recover=recover, workers=self.count,
            hold=self.hold, keep_checkpoints=self._keep, insecure=True, options=self.options, init=self._init,
            **{"verify": False, **places},
        )  # fmt: skip

    def start_worker(self, name: str) -> None:
        """Start a worker."""
        if self._of_tensors:
            self._start_worker(name, partial(dense_model.work, self.addresses, name, TIMEOUT_S, self.fixed))
            return
        dataset, cache = (None, self.cache_of(name)) if self.is_apart else (self.dataset, self.root)
        config = WorkerConfig(
            dataset=dataset, cache=cache, cache_bytes=self._cache_bytes, servers=self.addresses, name=name,
            timeout_s=TIMEOUT_S, verify=False,
        )  # fmt: skip
        self._start_worker(name, partial(work.work, config))

    def cache_of(self, worker: str) -> Path:
        """Return the cache of a worker that has no dataset."""
        return self.root / "cache" / worker

    def _start_worker(self, name: str, works: Callable[[], dict[str, Any]]) -> None:
        """Start a worker; require that it ends a run as complete only when no restarted shard can still need it."""

        def work_to_the_end() -> dict[str, Any]:
            try:
                facts = works()
            except DeadlineExceeded as error:
                with self.world.observing():
                    require(not self._was_served(name), f"{name} was answered all the time, and fails: {error}")
                raise
            if facts["ending"] in LASTING:
                with self.world.observing():
                    if self._gave_up(name):
                        hindered = not self._could_end(name)
                        require(hindered, f"{name} waits in vain to be let go, and nothing keeps the run from ending")
                    else:
                        require(self._is_saved, f"{name} ends as {facts['ending']} before all rows are on disk")
            return facts

        self.workers[name] = self.world.start(name, work_to_the_end)

    def _was_served(self, name: str) -> bool:
        """Return whether a worker and all shards have reached each other for as long as a worker waits for an answer.

        Return False for shards apart, which also wait for each other, over links that may be cut, and if a shard has
        ended: an ended shard answers no requests while it waits for the store.
        """
        if self.is_apart or not all(address in self.network.listeners for address in self.addresses):
            return False
        return self._ran_undisturbed([name], self.world.now - TIMEOUT_S / self.workers[name].clock.rate - LATE_S)

    def _could_end(self, name: str) -> bool:
        """Return whether nothing has kept the run from ending while a worker waited for the answer to its goodbye.

        Return False for shards apart or with a store, which wait for more than workers, and with visitors, which may
        keep a run from ending.
        """
        if self.is_apart or self._has_store or self.visitors:
            return False
        return self._ran_undisturbed(self.workers, self.world.now - clients.LEAVING_S / self.workers[name].clock.rate)

    def _ran_undisturbed(self, workers: Collection[str], since: float) -> bool:
        """Return whether workers and all shards have ended well, or have run and reached each other since a time."""
        processes = (*(self.workers[name] for name in workers), *self.shards.values())
        return all(each.result is not None or self.world.ran_since(each, since) for each in processes) and all(
            self.network.was_good(name, address, since) for name in workers for address in self.addresses
        )

    @property
    def _is_saved(self) -> bool:
        """Return whether the run has results, or the final checkpoints of all shards of one generation.

        Also return True if a shard's mark says that it has no final checkpoint: a dense model may lack values.
        """
        newest = self.checkpoints.newest()
        assert newest is not None
        shards = range(len(self.addresses))
        marks = [generations.mark_of(self._config(shard)) for shard in shards]
        if (self.folder / MANIFEST).exists() or any(mark is not None and mark.is_empty for mark in marks):
            return True
        labels = [cuts.final_label(number) for number in (newest.number, newest.number - 1)]
        return any(
            all(
                any(checkpoint.part_folder(run, label, shard, len(shards)).exists() for run in self.folders)
                for shard in shards
            )
            for label in labels
        )

    def client_at(self, peer: bytes) -> Client | None:
        """Return the name and role that a client's key is for, None if there are no keys."""
        name = self.network.name_of(peer) if self.has_roles else ""
        return Client(name, ROLES.get(name, Role.WORKER)) if name else None

    def start_visitor(self, name: str) -> None:
        """Start one of `scenario.VISITORS`."""
        self.started[name] += 1

        def connect(session: str, dataset: str = "") -> clients.RequestClient:
            links = SimulatedLinks(self.network, name, self.addresses)
            return clients.RequestClient(self.addresses, session, dataset, 20.0, None, links)

        task: dict[str, Callable[[], object]] = {
            "monitor": partial(visitors.follow, self),
            "admin": partial(visitors.administer, self, name, connect),
            "scorer": partial(visitors.proceed, self, connect),
            "finisher": partial(visitors.finish, self, connect),
            "liar": partial(hostile.mislead, self, name, connect),
            "idler": partial(hostile.idle, self, name, connect),
        }
        self.visitors[name] = self.world.start(name, task[name])

    def require_silent(self, name: str) -> None:
        """Require that a worker that shard 0 takes for lost could not reach it for the time of a lease."""
        shard, worker, world = self.shards[0], self.workers.get(name), self.world
        since = world.now - self.lease_s / shard.clock.rate - LATE_S
        is_welcome = name in self.clients and self.clients[name].channels[0].welcome is not None
        if worker is not None and is_welcome and all(world.ran_since(each, since) for each in (worker, shard)):
            heard = self.network.was_heard(name, self.addresses[0], since)
            require(not heard, f"{name} is lost, and nothing has kept it from sending heartbeats")

    def interrupt(self, name: str) -> None:
        """Tell a worker to leave, as a signal does."""
        if (client := self.clients.get(name)) is not None and self.workers[name].alive:
            client.failed = Interrupted("told to stop")

    @property
    def layout(self) -> Layout:
        """Return the partitions of the dataset."""
        assert self._layout is not None
        return self._layout

    @property
    def over(self) -> bool:
        """Return whether every shard has ended without an error; the answer is cached until `World.changes` does."""
        if self._seen != self.world.changes:
            self._seen = self.world.changes
            self._over = all(not each.alive and each.result is not None for each in self.shards.values())
        return self._over

    @property
    def all_serve(self) -> bool:
        """Return whether no shard has ended."""
        return all(each.result is None for each in self.shards.values())

    @property
    def facts(self) -> dict[str, Any]:
        """Return the result of shard 0: the facts of the run."""
        found = self.shards[0].result
        assert isinstance(found, dict)
        return found

    @property
    def vectors(self) -> bytes:
        """Return the bytes of the results."""
        return (self.folder / "vectors.npy").read_bytes()

    def revive(self) -> None:
        """Restart processes that were killed or failed, and workers that were told to leave, unless the run is over.

        Also restart a worker that gave up waiting to be let go: its rows may not have been saved.
        """
        if self.over:
            return
        killed = [shard for shard, process in self.shards.items() if not process.alive and process.result is None]
        for shard in killed:
            self.start_shard(shard, recover=True)
        for name, process in self.workers.items():
            ended = process.result is not None and process.result["ending"] != Ending.INTERRUPTED
            if not process.alive and (not ended or self._gave_up(name)):
                self.start_worker(name)
        for name, process in self.visitors.items():
            if not process.alive and process.result is None:
                self.start_visitor(name)

    def _gave_up(self, name: str) -> bool:
        """Return whether an ended worker waited in vain for the answer to its goodbye, without being refused."""
        client = self.clients.get(name)
        return client is not None and client.failed is None and any(each.welcome for each in client.channels)


@contextlib.contextmanager
def simulated(
    world: World,
    cluster: Callable[[], Cluster],
    piece_bytes: int = 0,
    unwritten: int = cuts.MAX_UNWRITTEN,
    data_bytes: int = m.MAX_DATA_BYTES,
    upload_s: float = stored_checkpoints.EVERY_S,
) -> Iterator[None]:
    """Let the program's modules use the virtual time, the seed and the simulated network of `cluster()`.

    Rows travel in messages of at most `piece_bytes`, if given, and files in pieces of `data_bytes`. At most `unwritten`
    automatic checkpoints wait to be written. Shards check every `upload_s` whether something is to be uploaded.
    """
    clock, chance = Clock(world), Secrets(world)
    contexts: list[visitors.SimulatedContext] = []

    def daemon(core: Core, run: Path, bind: str, publish: str, keep: int, *_: object) -> SimulatedDaemon:
        del publish
        return SimulatedDaemon(cluster(), core, run, bind, keep)

    def client(
        addresses: Sequence[str], name: str, dataset: str = "", silence_s: float = 30.0, keys: object = None
    ) -> Any:
        del keys
        links = SimulatedLinks(cluster().network, name, tuple(addresses))
        made = cluster().clients[name] = clients.RequestClient(addresses, name, dataset, silence_s, None, links)
        return made

    def context(_: object) -> visitors.SimulatedContext:
        contexts.append(visitors.SimulatedContext(cluster().network, world.running.name))
        return contexts[-1]

    def executor(*_: object) -> Executor:
        return Executor(world)

    def nothing(*_: object, **__: object) -> None:
        pass

    def open_dataset(path: Path, *, verify: bool = True, in_blocks: bool = False) -> Dataset:
        if OURS.fullmatch(path.name):
            return really_open(path, verify=verify, in_blocks=in_blocks)
        return opened(path, verify=verify)

    with contextlib.ExitStack() as stack:
        stack.enter_context(apart.apart_simulated(world, cluster))
        stack.enter_context(stored.store_simulated(world, cluster, upload_s))
        for module in (service, leaving, writer, dense):
            stack.enter_context(mock.patch.object(module, "time", clock))
        stack.enter_context(mock.patch.object(cuts, "MAX_UNWRITTEN", unwritten))
        stack.enter_context(mock.patch.object(m, "MAX_DATA_BYTES", data_bytes))
        stack.enter_context(mock.patch.object(writer, "ThreadPoolExecutor", executor))
        stack.enter_context(mock.patch.object(writer, "threading", threading(world)))
        for module in (generations, clients):
            stack.enter_context(mock.patch.object(module, "secrets", chance))
        for module, name in [
            (service, "keep_freed_memory"), (leaving, "trim"), (service, "freeze_loaded_objects"),
            (service, "release_code"), (work, "release_code"),
            (service.kernels, "warm"), (service.optimizers, "warm"), (work.objectives, "warm"),
            (work, "keep_freed_memory"), (work, "freeze_loaded_objects"), (work, "stop_on_signals"),
            (dense, "keep_freed_memory"),
        ]:  # fmt: skip
            stack.enter_context(mock.patch.object(module, name, nothing))
        for module in (service, work):
            stack.enter_context(mock.patch.object(module, "signals_raise", contextlib.nullcontext))
            stack.enter_context(mock.patch.object(module, "without_blas", contextlib.nullcontext))
        if piece_bytes:
            stack.enter_context(mock.patch.object(server_store, "PIECE_BYTES", (piece_bytes, piece_bytes)))
            stack.enter_context(mock.patch.object(server_store, "ADDED_BYTES", piece_bytes))
        stack.enter_context(mock.patch.object(service, "Daemon", daemon))
        simulated_zmq = SimpleNamespace(POLLIN=zmq.POLLIN, Again=zmq.Again, Poller=lambda: contexts[-1])
        for name, stands in [
            ("zmq", simulated_zmq), ("Context", context), ("receive", visitors.receive), ("time", clock),
            ("RequestClient", client),
        ]:  # fmt: skip
            stack.enter_context(mock.patch.object(feed, name, stands))
        stack.enter_context(mock.patch.object(admin, "time", clock))
        stack.enter_context(mock.patch.object(Dataset, "open", open_dataset))
        stack.enter_context(mock.patch.object(admin, "secrets", chance))
        for module in (work, dense_session):
            stack.enter_context(mock.patch.object(module, "RequestClient", client))
        try:
            yield
        finally:
            world.end()
