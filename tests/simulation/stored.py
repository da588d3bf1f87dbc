"""An object store for `--checkpoints`, which is on no machine's disk, and what must hold of it.

The program's own `Store` and `StoredCheckpoints` run on `SimulatedFiles`, which stands for what fsspec returns.
Requests and replies take time; an object appears whole or not at all, as in S3.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar
from unittest import mock

import fsspec.core
from disk import Disk
from oracles import CheckpointOracle, reached, reached_by, require
from threads import Event, threading
from world import Action, Clock, Killed, Process, World

from glovewire.common.storage.artifacts import MANIFEST, Manifest
from glovewire.common.storage.run_folder import CHECKPOINTS
from glovewire.server import stored_checkpoints
from glovewire.server.checkpoints import files, generations
from glovewire.server.checkpoints.copies import parts_in
from glovewire.server.checkpoints.generations import Generation

if TYPE_CHECKING:
    from cluster import Cluster

STORE_FAULTS = ("store away", "store fails", "slow store", "kill while storing", "lose all disks")
STORE_END_FAULTS = STORE_FAULTS[:-1]
"""Faults that also come when the run begins to end. Workers leave then: what the store lacks is lost with a disk."""
ROOT = "bucket/run"
URL = f"s3://{ROOT}"
SLOWER = 30.0
FAILS = 0.5
"""The share of requests to a failing store that fail, half of them before they do anything, half after."""
RESTORED = 0.3
"""The share of checkpoints that are restored from the store as soon as it has them."""
T = TypeVar("T")


class ObjectStore:
    """The objects of a store by name, and what happens to requests.

    `kill_at` says after how many more requests a process is killed in the middle of one. `changed` is called with the
    name of every object that is put or deleted.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.objects: dict[str, bytes] = {}
        self.away_until = self.fails_until = self.slow_until = 0.0
        self.kill_at: dict[str, int] = {}
        self.changed: Callable[[str], object] = lambda _: None
        self.refused: dict[str, bool] = {}
        """Whether the last request of each process has failed."""
        self._random = world.chance("requests to the store")
        self._delay_s = self._random.choice([0.001, 0.02, 0.2])
        self._bytes_per_s = self._random.choice([1e4, 1e6])

    def request(self, what: str, name: str, act: Callable[[], T], size: int = 0) -> T:
        """Carry out a request; if its process is killed meanwhile, it may or may not take effect."""
        world, chance = self.world, self._random
        thread = world.running
        process = thread.owner or thread
        takes = (self._delay_s * (0.5 + chance.random()) + size / self._bytes_per_s) / 2.0
        takes *= SLOWER if world.now < self.slow_until else 1.0
        self._perhaps_kill(process, f"{what} {name.removeprefix(ROOT)}", 2.0 * takes * chance.random())
        fails = world.now < self.fails_until and chance.random() < FAILS
        is_refused = world.now < self.away_until or (fails and chance.random() < 0.5)
        found: list[T | FileNotFoundError] = []
        answered = Event(world)

        def arrive() -> None:
            if not found and not is_refused and not thread.killed:
                try:
                    found.append(act())
                except FileNotFoundError as error:
                    found.append(error)

        world.after(takes, arrive)
        world.after(2.0 * takes, answered.set)
        try:
            while not answered.is_set():
                answered.wait(3600.0)
        except Killed:
            if not found and not is_refused and chance.random() < 0.5:
                with contextlib.suppress(FileNotFoundError):
                    act()
            raise
        self.refused[process.name] = fails or is_refused
        if fails or is_refused:
            raise OSError("503 Slow Down")
        if isinstance(found[0], FileNotFoundError):
            raise found[0]
        return found[0]

    def _perhaps_kill(self, process: Process, doing: str, after_s: float) -> None:
        if process.name in self.kill_at:
            self.kill_at[process.name] -= 1
            if self.kill_at[process.name] <= 0:
                del self.kill_at[process.name]
                self.world.tell(f"is killed during {doing}")
                self.world.after(after_s, lambda: self.world.kill(process))

    def put(self, name: str, content: bytes) -> None:
        """Replace an object."""
        self.objects[name] = content
        self.changed(name)

    def delete(self, names: list[str]) -> None:
        """Remove objects, one after the other, and ignore those that do not exist."""
        for name in names:
            if self.objects.pop(name, None) is not None:
                self.changed(name)


class SimulatedFiles:
    """Stands for the file system that fsspec has for a store, as far as `Store` uses it."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def find(self, path: str, *, detail: bool) -> dict[str, dict[str, Any]]:
        """Return the objects below a path."""
        assert detail
        return self._store.request("list", path, lambda: self._below(path))

    def _below(self, path: str) -> dict[str, dict[str, Any]]:
        objects = self._store.objects
        names = sorted(name for name in objects if name.startswith(f"{path}/"))
        return {name: {"type": "file", "size": len(objects[name])} for name in names}

    def cat_file(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        """Return an object, or its bytes from `start` to before `end`."""
        content = self._store.request("get", path, partial(self._get, path), len(self._store.objects.get(path, b"")))
        return content[start:end]

    def _get(self, path: str) -> bytes:
        if path not in self._store.objects:
            raise FileNotFoundError(path)
        return self._store.objects[path]

    def get_file(self, path: str, file: str) -> None:
        """Write an object to a file."""
        content = self.cat_file(path)
        with open(file, "wb") as stream:
            stream.write(content)

    def pipe_file(self, path: str, content: bytes) -> None:
        """Replace an object."""
        self._store.request("put", path, partial(self._store.put, path, content), len(content))

    def put_file(self, file: str, path: str) -> None:
        """Replace an object by the content of a file."""
        with open(file, "rb") as stream:
            content = stream.read()
        self.pipe_file(path, content)

    def rm_file(self, path: str) -> None:
        """Remove an object, if it exists."""
        self._store.request("delete", path, partial(self._store.delete, [path]))

    def rm(self, path: str, *, recursive: bool) -> None:
        """Remove all objects below a path."""
        assert recursive
        names = list(self.find(path, detail=True))
        if not names:
            raise FileNotFoundError(path)
        for name in names:
            self.rm_file(name)


@contextlib.contextmanager
def store_simulated(world: World, cluster: Callable[[], Cluster], upload_s: float) -> Iterator[None]:
    """Let shards reach the store of `cluster()`, in virtual time; they check every `upload_s` what it lacks."""

    def opened(url: str, **_: object) -> tuple[SimulatedFiles, str]:
        assert url == URL
        stored = cluster().stored
        assert stored is not None
        return SimulatedFiles(stored.store), ROOT

    with contextlib.ExitStack() as stack:
        for module, name, stands in [
            (stored_checkpoints, "time", Clock(world)), (stored_checkpoints, "threading", threading(world)),
            (stored_checkpoints, "EVERY_S", upload_s),
            (fsspec, "get_filesystem_class", lambda _: SimpleNamespace(async_impl=False)),
            (fsspec.core, "url_to_fs", opened),
        ]:  # fmt: skip
            stack.enter_context(mock.patch.object(module, name, stands))
        yield


class StoreOracle:
    """Requires that parts in the store are complete, and that its checkpoints outlive the disks of all shards.

    This oracle restores checkpoints from the store into `folder`, which is its own; `runs` are the run folders.
    """

    def __init__(self, store: ObjectStore, folder: Path, runs: Sequence[Path], checkpoints: CheckpointOracle) -> None:
        self.store, self._folder, self._runs, self._checkpoints = store, folder, runs, checkpoints
        self._shards = len(runs)
        self._had: set[str] = set()
        self._waiting: list[tuple[Action, float]] = []
        self._facts: dict[str, dict[str, Any]] = {}
        self._chance = store.world.chance("restored from the store")
        self._kept = self._promise = -1.0
        self._number = -1
        self._promised: dict[str, float] = {}
        store.changed = self._changed

    def _changed(self, name: str) -> None:
        """Require, whichever object changed, that a part that has a manifest has everything that the manifest names."""
        part, _, file = name.removeprefix(f"{ROOT}/").partition("/")
        text = self.store.objects.get(f"{ROOT}/{part}/{MANIFEST}")
        if text is None:
            if self._facts.pop(part, None) is not None:
                self._removed(part)
            return
        manifest = Manifest.parse(text, part)
        for each, entry in manifest.files.items():
            content = self.store.objects.get(f"{ROOT}/{part}/{each}")
            is_right = content is not None and hashlib.sha256(content).hexdigest() == entry["sha256"]
            require(is_right, f"{part} in the store has a manifest, but not the {each} that it names")
        self._facts[part] = dict(manifest.facts)
        label = part.partition(".shard-")[0]
        if file == MANIFEST and self._is_whole(label):
            if label.startswith(("round-", "update-")):
                self._kept = max(self._kept, reached(label))
                self._had.add(label)
                for action, seconds in self._waiting:
                    self.store.world.after(seconds, action)
                self._waiting.clear()
            if self._chance.random() < RESTORED:
                self._restore(label)

    def _removed(self, part: str) -> None:
        """Require that the store still has the newest checkpoint, or an older one while a part is uploaded again.

        A part is uploaded again if it was written again, in another generation.
        """
        left = max(map(self._reached, self._whole()), default=-1.0)
        label, _, shard = part.partition(".shard-")
        if (self._runs[int(shard.partition("-")[0])] / CHECKPOINTS / part).exists():
            alone = label not in self._had or self._had == {label}
            require(left >= 0.0 or alone, f"{label} is replaced in the store, which has no other whole")
            self._kept = left
        require(left >= self._kept, f"the store had {self._kept:.0f} rounds or updates, and keeps {left:.0f}")

    def _parts(self, label: str) -> list[str]:
        return [files.part_folder(Path(), label, shard, self._shards).name for shard in range(self._shards)]

    def _is_whole(self, label: str) -> bool:
        """Return whether the store has all parts of a checkpoint, and the parts belong together."""
        facts = [self._facts.get(part) for part in self._parts(label)]
        found = [each for each in facts if each is not None]
        return len(found) == self._shards and files.is_consistent(found)

    def _whole(self) -> list[str]:
        """Return the labels of checkpoints that are complete in the store."""
        labels = {part.partition(".shard-")[0] for part in self._facts}
        return sorted(filter(self._is_whole, labels))

    def _reached(self, label: str) -> float:
        """Return the rounds or updates of a checkpoint that is complete in the store."""
        return reached_by(self._facts[self._parts(label)[0]]) if label.startswith("asked-") else reached(label)

    def _restore(self, label: str) -> None:
        """Restore a checkpoint from the store alone."""
        shutil.rmtree(self._folder, ignore_errors=True)
        for name, content in self.store.objects.items():
            part, _, file = name.removeprefix(f"{ROOT}/").partition("/")
            if part in self._parts(label):
                path = self._folder / CHECKPOINTS / part / file
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
        CheckpointOracle.restore(self._checkpoints, label, self._folder)

    def once_whole(self, action: Action, seconds: float) -> None:
        """Run an action now if the store has a complete checkpoint, otherwise `seconds` after it gets one."""
        if self._kept >= 0.0:
            action()
        else:
            self._waiting.append((action, seconds))

    def loses_all(self) -> None:
        """Record what must outlive the disks of all shards, which are lost now, and restore it."""
        self._promise = self._kept
        known = [
            json.loads(text)["number"]
            for name, text in self.store.objects.items()
            if stored_checkpoints.KNOWN.fullmatch(name.removeprefix(f"{ROOT}/"))
        ]
        self._number = max(known, default=-1)
        for label in self._whole():
            self._restore(label)

    def loses_parts(self) -> None:
        """Drop the promise: a shard that has lost some files continues without the store if that is unavailable."""
        self._promise = -1.0

    def chosen(self, generation: Generation) -> None:
        """Record the progress that a generation that a shard wants to begin must not fall behind."""
        self._promised[generation.run] = self._promise

    def serves(self, run: Path, number: int) -> None:
        """Check the generation in which the shard with the folder `run` is about to serve."""
        path = generations._generation_file(run, number)
        generation = generations.parse_generation(path.read_text(encoding="utf-8"), str(path))
        promised = self._promised.get(generation.run, -1.0)
        require(
            number > self._number,
            f"generation {number} follows {self._number}, which the store had when all disks were lost",
        )
        require(
            reached(generation.label, run, generation.parts) >= promised,
            f"generation {number} begins from {generation.label or 'nothing'}, and the store had {promised:.0f}",
        )

    def require_stored(self, shard: int, run: Path) -> None:
        """Require that the store has the newest part of a shard that has ended, unless its last request has failed."""
        if self.store.refused.get(f"shard {shard}", True):
            return
        ends = f".shard-{shard}-of-{self._shards}"
        here = sorted(name for name in parts_in(run / CHECKPOINTS) if name.endswith(ends))
        for name in sorted(here, key=lambda name: reached(name.partition(".")[0]))[-1:]:
            there = self.store.objects.get(f"{ROOT}/{name}/{MANIFEST}")
            same = (run / CHECKPOINTS / name / MANIFEST).read_bytes() == there
            require(same, f"shard {shard} has ended, and the store has {'another' if there else 'no'} {name}")


def let_store_happen(cluster: Cluster, disks: Sequence[Disk], kind: str, seconds: float, pick: float) -> None:
    """Let one of STORE_FAULTS happen, see `scenario.Fault`."""
    world, stored = cluster.world, cluster.stored
    assert stored is not None
    store = stored.store
    match kind:
        case "store away" | "store fails" | "slow store":
            world.tell(f"{kind} for {seconds:.2f} s")
            place = {"store away": "away_until", "store fails": "fails_until", "slow store": "slow_until"}[kind]
            setattr(store, place, world.now + seconds)
        case "kill while storing":
            store.kill_at[f"shard {int(pick * len(cluster.shards))}"] = 1 + int(pick * 7919) % 20
        case "lose all disks":
            stored.once_whole(partial(_lose_all, cluster, disks), pick * seconds / 8.0)


def _lose_all(cluster: Cluster, disks: Sequence[Disk]) -> None:
    """Lose the disks of all shards at once, unless the run ends: workers leave then, and nothing could be trained."""
    stored = cluster.stored
    if stored is None or cluster.ends_at is not None:
        return
    for each in cluster.shards.values():
        cluster.world.kill(each)
    cluster.world.tell("loses the disks of all shards")
    for disk in disks:
        disk.lose_all()
    cluster.checkpoints.forget()
    if cluster.apart is not None:
        cluster.apart.forget()
    stored.loses_all()
